//! The measure of a layout of the fleet: guarantees that it fails to serve.

use crate::fleet::{ByRank, Devices, Excess, ProfileId, RANKS};

/// Demand for one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileDemand {
    /// Guaranteed devices.
    pub wanted: ByRank,
    /// Of these, devices that guaranteed pods hold: in a shortage these are served first.
    pub held: ByRank,
    /// Of these, devices that exist, held or not: an evicted pod finds its new device.
    pub existing: ByRank,
    /// Share of a GPU of one device, in 840ths.
    pub weight: i64,
    /// Pods use it where no outage is allowed: at least one GPU keeps it.
    pub protected: bool,
}

/// Everything that layouts are measured by. Sums have a slot for each profile, and after these one for each holder of more than its
/// guarantee.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objective {
    pub profiles: Vec<ProfileDemand>,
    /// Devices beyond a guarantee stay where that costs nothing, and are no supply for others.
    pub excess: Vec<Excess>,
}

/// The guarantees that a layout of the fleet fails to serve, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shortfall {
    /// Profiles in use that no GPU would have any more.
    pub outage: i64,
    /// Share of guaranteed devices in use that would be removed, in 840ths of a GPU.
    pub lost: i64,
    /// For each rank: share of guaranteed devices that exist and would be removed, and share that does not exist.
    pub ranks: [(i64, i64); RANKS],
    /// Inequality among profiles: squares of what is missing, in thousandths of the guarantees.
    pub uneven: i64,
    /// Guaranteed devices that do not exist.
    pub missing: i64,
}

impl ProfileDemand {
    /// How devices are given to ranks: first to those that hold them, then from the highest rank.
    pub fn serve(&self, usable: i64) -> ByRank {
        let mut left = usable.max(0);
        let mut got = ByRank::default();
        for most in [&self.held, &self.wanted] {
            for (got, most) in got.iter_mut().zip(most) {
                let more = (most - *got).clamp(0, left);
                *got += more;
                left -= more;
            }
        }
        got
    }

    pub fn total(&self) -> i64 {
        self.wanted.iter().sum()
    }

    pub fn shortfall(&self, usable: i64, devices: i64) -> Shortfall {
        let mut short = Shortfall { outage: i64::from(self.protected && devices <= 0), ..Shortfall::default() };
        if usable >= self.total() {
            return short;
        }
        short.lost = (self.held.iter().sum::<i64>() - usable).max(0) * self.weight;
        let wanted = self.wanted.iter().zip(&self.existing);
        for ((rank, got), (wanted, existing)) in short.ranks.iter_mut().zip(self.serve(usable)).zip(wanted) {
            let missing = wanted - got;
            *rank = ((existing - got).max(0) * self.weight, missing * self.weight);
            short.uneven += (missing * 1000 / wanted.max(&1)).pow(2);
            short.missing += missing;
        }
        short
    }
}

impl Shortfall {
    pub fn add(&mut self, other: &Self, sign: i64) {
        self.outage += sign * other.outage;
        self.lost += sign * other.lost;
        self.uneven += sign * other.uneven;
        self.missing += sign * other.missing;
        for (sum, more) in self.ranks.iter_mut().zip(other.ranks) {
            sum.0 += sign * more.0;
            sum.1 += sign * more.1;
        }
    }
}

impl Objective {
    /// Number of slots in sums.
    pub fn slots(&self) -> usize {
        self.profiles.len() + self.excess.len()
    }

    pub fn total(&self, profile: ProfileId) -> i64 {
        self.profiles.get(profile).map_or(0, ProfileDemand::total)
    }

    /// The profile that a slot counts, and the guarantee of the holder that it is for.
    pub fn slot(&self, slot: usize) -> (ProfileId, Option<i64>) {
        let excess = slot.checked_sub(self.profiles.len()).and_then(|at| self.excess.get(at));
        excess.map_or((slot, None), |e| (e.profile, Some(e.guaranteed)))
    }

    /// Devices held beyond guarantees, by profile.
    pub fn beyond(&self, sums: &[i64]) -> Vec<i64> {
        let mut beyond = vec![0; self.profiles.len()];
        for (e, held) in self.excess.iter().zip(sums.iter().skip(self.profiles.len())) {
            add(&mut beyond, e.profile, (held - e.guaranteed).max(0));
        }
        beyond
    }

    /// Devices that are not held beyond guarantees, by profile.
    pub fn usable(&self, sums: &[i64]) -> Vec<i64> {
        sums.iter().zip(self.beyond(sums)).map(|(devices, beyond)| devices - beyond).collect()
    }

    /// Profiles of which less is usable than guaranteed.
    pub fn scarce(&self, sums: &[i64]) -> Vec<ProfileId> {
        let usable = self.usable(sums).into_iter().zip(&self.profiles).enumerate();
        usable.filter(|(_, (usable, demand))| *usable < demand.total()).map(|(profile, _)| profile).collect()
    }

    /// The missing devices of the profiles in `inside`.
    pub fn shortfall(&self, sums: &[i64], inside: &[bool]) -> Shortfall {
        let mut short = Shortfall::default();
        let usable = self.usable(sums);
        let profiles = self.profiles.iter().zip(inside).zip(usable.iter().zip(sums));
        for ((demand, _), (usable, devices)) in profiles.filter(|((_, inside), _)| **inside) {
            short.add(&demand.shortfall(*usable, *devices), 1);
        }
        short
    }
}

pub(crate) fn at(sums: &[i64], slot: usize) -> i64 {
    sums.get(slot).copied().unwrap_or(0)
}

pub(crate) fn add(sums: &mut [i64], slot: usize, more: i64) {
    if let Some(sum) = sums.get_mut(slot) {
        *sum += more;
    }
}

/// Adds devices to the sums, so many times.
pub(crate) fn add_all(sums: &mut [i64], devices: &Devices, times: i64) {
    for (slot, n) in devices {
        add(sums, *slot, times * n);
    }
}
