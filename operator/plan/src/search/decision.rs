//! The decision for the fleet: for each class of GPUs the layouts that they are given.

use std::collections::BTreeMap;

use super::{
    candidates::{Candidate, Source},
    objective::{Objective, ProfileDemand, add_all, at},
    part::number,
};
use crate::{
    fleet::{ClassId, Fleet},
    problem::Problem,
};

/// A candidate, and how many GPUs of a class are given it.
pub(crate) type Share = (Candidate, usize);

#[derive(Debug)]
pub(crate) struct FleetDecision {
    pub objective: Objective,
    /// Devices by slot, as they are.
    pub before: Vec<i64>,
    /// Devices by slot, after the plan.
    pub after: Vec<i64>,
    /// Classes of which not all GPUs keep their layout.
    pub shares: BTreeMap<ClassId, Vec<Share>>,
    pub problems: Vec<Problem>,
    /// A heuristic search decided a part.
    pub searched: bool,
}

impl FleetDecision {
    /// Every GPU keeps its layout.
    pub fn unchanged(fleet: &Fleet<'_>) -> Self {
        let profiles = fleet.profiles.len();
        let (mut protected, mut weights) = (vec![false; profiles], vec![0; profiles]);
        let mut before = vec![0; profiles + fleet.demand.excess.len()];
        for (_, class, options) in fleet.classes() {
            add_all(&mut before, &class.supply, number(class.members.len()));
            for profile in class.in_use.iter().filter(|_| !class.pool_rules.allow_outage) {
                protected.get_mut(*profile).into_iter().for_each(|p| *p = true);
            }
            for offer in &options.offers {
                weights.get_mut(offer.profile).into_iter().for_each(|w| *w = offer.share.max(*w));
            }
        }
        let demand = fleet.demand.wanted.iter().zip(&fleet.demand.served).zip(protected.into_iter().zip(weights));
        let demand = demand.enumerate().map(|(profile, ((wanted, held), (protected, weight)))| ProfileDemand {
            wanted: *wanted,
            held: *held,
            existing: *wanted,
            weight,
            protected: protected && at(&before, profile) > 0,
        });
        let mut objective = Objective { profiles: demand.collect(), excess: fleet.demand.excess.clone() };
        let usable = objective.usable(&before);
        for (demand, usable) in objective.profiles.iter_mut().zip(usable) {
            demand.existing = demand.serve(usable);
        }
        let (after, shares) = (before.clone(), BTreeMap::new());
        Self { objective, before, after, shares, problems: Vec::new(), searched: false }
    }

    /// Counts GPUs of a class with other devices than before.
    pub fn exchange(&mut self, old: &Candidate, new: &Candidate, gpus: usize) {
        add_all(&mut self.after, &old.supply, -number(gpus));
        add_all(&mut self.after, &new.supply, number(gpus));
    }

    /// Sets what the GPUs of a class are given.
    pub fn set(&mut self, class: ClassId, shares: Vec<Share>) {
        if shares.iter().any(|(c, _)| c.source != Source::Present) {
            self.shares.insert(class, shares);
        } else {
            self.shares.remove(&class);
        }
    }
}
