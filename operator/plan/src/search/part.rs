//! A part of the fleet that is decided by itself, because no profile connects it with the others.

use std::sync::Arc;

use super::{
    candidates::{Candidate, CandidateLayouts},
    objective::{Objective, Shortfall, add_all},
};

/// The GPUs of a class.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub candidates: Arc<CandidateLayouts>,
    pub count: usize,
}

/// For a group: candidates, each with a number of GPUs, by candidate.
pub(super) type Picks = Vec<(usize, usize)>;

/// The GPUs and guarantees to decide about.
pub(super) struct Part<'a> {
    pub objective: &'a Objective,
    /// In the order of the fleet.
    pub groups: Vec<Group>,
    /// By profile: whether it counts here.
    pub inside: Vec<bool>,
    /// Devices by slot of all other GPUs.
    pub others: Vec<i64>,
}

impl Group {
    pub fn candidate(&self, index: usize) -> Option<&Candidate> {
        self.candidates.list.get(index)
    }
}

impl Part<'_> {
    pub fn profiles(&self) -> usize {
        self.objective.profiles.len()
    }

    pub fn is_inside(&self, profile: usize) -> bool {
        self.inside.get(profile).copied().unwrap_or(false)
    }

    pub fn shortfall(&self, sums: &[i64]) -> Shortfall {
        self.objective.shortfall(sums, &self.inside)
    }

    /// GPUs of all groups.
    pub fn count(&self) -> usize {
        self.groups.iter().map(|g| g.count).sum()
    }

    /// Devices of the fleet with these picks, and the weight of the pods that they evict.
    pub fn totals(&self, picks: &[Picks]) -> (Vec<i64>, i64) {
        let (mut sums, mut evicted) = (self.others.clone(), 0);
        for (group, picks) in self.groups.iter().zip(picks) {
            for (candidate, count) in picks.iter().filter_map(|(c, n)| Some((group.candidate(*c)?, number(*n)))) {
                add_all(&mut sums, &candidate.supply, count);
                evicted += count * candidate.cost.evict;
            }
        }
        (sums, evicted)
    }
}

pub(crate) fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
