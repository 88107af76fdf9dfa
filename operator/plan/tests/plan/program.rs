//! Layouts for a fleet as a program for a solver: how many GPUs of each group become what.

use std::collections::BTreeMap;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};

/// A GPU's choices: devices by profile, and what is evicted for them.
pub type Choices = BTreeMap<Vec<u32>, u32>;

/// GPUs that have the same choices, and how many they are.
pub struct Program<'a> {
    groups: &'a [(Choices, u32)],
    /// Whole GPUs; without, a bound that is found fast.
    whole: bool,
}

/// How many GPUs are given this, with its devices and evictions.
type Pick<'a> = (Variable, &'a Vec<u32>, u32);

impl<'a> Program<'a> {
    pub fn new(groups: &'a [(Choices, u32)], whole: bool) -> Self {
        Self { groups, whole }
    }

    fn picks(&self, variables: &mut ProblemVariables) -> Vec<(Vec<Pick<'a>>, u32)> {
        let mut all = Vec::new();
        for (choices, count) in self.groups {
            let mut picks = Vec::with_capacity(choices.len());
            for (gives, evicts) in choices {
                let pick = variable().min(0).max(*count);
                picks.push((variables.add(if self.whole { pick.integer() } else { pick }), gives, *evicts));
            }
            all.push((picks, *count));
        }
        all
    }

    /// The least that is evicted where at least so many devices exist of each profile.
    pub fn fewest(&self, least: &[u32]) -> f64 {
        let mut variables = ProblemVariables::new();
        let groups = self.picks(&mut variables);
        let evicted: Expression =
            groups.iter().flat_map(|(p, _)| p).map(|(p, _, evicts)| f64::from(*evicts) * *p).sum();
        let mut model = variables.minimise(evicted.clone()).using(microlp);
        for (picks, count) in &groups {
            model = model.with(together(picks).eq(*count));
        }
        for (profile, least) in least.iter().enumerate() {
            model = model.with(supply(&groups, profile).geq(f64::from(*least)));
        }
        model.solve().unwrap().eval(evicted)
    }

    /// The most weight served of what is wanted, where at least `floor` is served of each profile and `beside` is left for others.
    pub fn most(&self, weights: &[f64], wanted: &[u32], floor: &[u32], beside: &[u32]) -> f64 {
        let mut variables = ProblemVariables::new();
        let groups = self.picks(&mut variables);
        let bounds = wanted.iter().zip(floor);
        let served: Vec<Variable> =
            bounds.map(|(most, least)| variables.add(variable().min(*least).max(*most))).collect();
        let share: Expression = served.iter().zip(weights).map(|(s, w)| *w * *s).sum();
        let mut model = variables.maximise(share.clone()).using(microlp);
        for (picks, count) in &groups {
            model = model.with(together(picks).eq(*count));
        }
        for (profile, (served, beside)) in served.iter().zip(beside).enumerate() {
            model = model.with((supply(&groups, profile) - *served).geq(f64::from(*beside)));
        }
        model.solve().unwrap().eval(share)
    }
}

fn together(picks: &[Pick<'_>]) -> Expression {
    picks.iter().map(|(pick, ..)| Expression::from(*pick)).sum()
}

fn supply(groups: &[(Vec<Pick<'_>>, u32)], profile: usize) -> Expression {
    groups.iter().flat_map(|(picks, _)| picks).map(|(pick, gives, _)| f64::from(gives[profile]) * *pick).sum()
}
