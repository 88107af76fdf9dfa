//! The layouts that GPUs of one class may be given, each with its devices and its cost.

use crate::{
    board::Packing,
    fleet::{Devices, count},
};

/// Where a layout comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// The GPU has it, or is changing to it.
    Present,
    /// One of the pool's whole devices, by index of the offer.
    Whole(usize),
    /// One of the class's layouts in shares, by index.
    Shares(usize),
    /// A set of instances of the layout table.
    Instances(Packing),
}

/// One layout for one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub source: Source,
    pub supply: Devices,
    pub cost: Cost,
}

/// The cost of a layout, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// Pods to evict, by weight in thousandths.
    pub evict: i64,
    /// 1 for a GPU that changes, more when its MIG mode changes or needs a reset.
    pub touch: i64,
    /// Slices that no profile can use.
    pub strand: i64,
    /// Memory slices less than the whole of the largest block that is left.
    pub split: i64,
    /// Instances destroyed and created.
    pub steps: i64,
}

impl Cost {
    pub fn add(&mut self, other: &Self, times: i64) {
        self.evict += times * other.evict;
        self.touch += times * other.touch;
        self.strand += times * other.strand;
        self.split += times * other.split;
        self.steps += times * other.steps;
    }

    fn no_more_than(&self, other: &Self) -> bool {
        self.evict <= other.evict
            && self.touch <= other.touch
            && self.strand <= other.strand
            && self.split <= other.split
            && self.steps <= other.steps
    }
}

/// The candidate layouts of a class.
#[derive(Debug)]
pub(crate) struct CandidateLayouts {
    /// The first is the present layout; the others are sorted by cost.
    pub list: Vec<Candidate>,
    /// By profile: candidates that have more of it than the first, in the order of the list.
    pub giving: Vec<Vec<usize>>,
    /// By candidate: the number of the difference between its devices and those of the first.
    pub differences: Vec<usize>,
}

impl CandidateLayouts {
    /// `number` numbers differences between devices.
    pub fn new(
        present: Candidate,
        mut rest: Vec<Candidate>,
        profiles: usize,
        mut number: impl FnMut(Devices) -> usize,
    ) -> Self {
        rest.retain(|c| !(c.cost.touch == 0 && c.supply == present.supply && c.cost.evict == present.cost.evict));
        rest.sort_by_key(|c| (c.cost, c.source));
        let mut giving = vec![Vec::new(); profiles];
        for (index, candidate) in (1..).zip(&rest) {
            for (slot, n) in &candidate.supply {
                if let Some(list) = giving.get_mut(*slot).filter(|_| *n > count(&present.supply, *slot)) {
                    list.push(index);
                }
            }
        }
        let list: Vec<Candidate> = [present].into_iter().chain(rest).collect();
        let first = list.first().map(|c| c.supply.clone()).unwrap_or_default();
        let differences = list.iter().map(|c| number(difference(&first, &c.supply))).collect();
        Self { list, giving, differences }
    }

    /// Candidates that no other is at least as good as in everything, the present layout among them. Of equal ones the first stays.
    pub fn undominated(&self, profiles: usize) -> Vec<usize> {
        let rest = || self.list.iter().enumerate().skip(1);
        let as_good = |a: &Candidate, b: &Candidate| a.cost.no_more_than(&b.cost) && covers(a, b, profiles);
        let beaten = |index: usize, c: &Candidate| {
            rest().any(|(i, other)| i != index && as_good(other, c) && (i < index || !as_good(c, other)))
        };
        [0].into_iter().chain(rest().filter(|(i, c)| !beaten(*i, c)).map(|(i, _)| i)).collect()
    }

    /// Candidates of which no cheaper one has as much: sums of costs compare as their parts do, most important first.
    pub fn cheapest(&self, profiles: usize) -> Vec<usize> {
        let mut order: Vec<(usize, &Candidate)> = self.list.iter().enumerate().collect();
        order.sort_by_key(|(index, c)| (c.cost, *index));
        let mut cheapest: Vec<(usize, &Candidate)> = Vec::new();
        for (index, candidate) in order {
            if !cheapest.iter().any(|(_, other)| covers(other, candidate, profiles)) {
                cheapest.push((index, candidate));
            }
        }
        cheapest.into_iter().map(|(index, _)| index).collect()
    }
}

/// Devices of `to` that `from` lacks; less than none where `to` lacks them.
pub(super) fn difference(from: &Devices, to: &Devices) -> Devices {
    let lost = from.iter().map(|(slot, n)| (*slot, count(to, *slot) - n));
    let gained = to.iter().filter(|(slot, _)| count(from, *slot) == 0).copied();
    let mut difference: Devices = lost.chain(gained).filter(|(_, n)| *n != 0).collect();
    difference.sort_unstable();
    difference
}

/// Whether `a` has at least the devices of `b`, and keeps the same devices in use.
fn covers(a: &Candidate, b: &Candidate, profiles: usize) -> bool {
    a.supply.iter().chain(&b.supply).all(|(slot, _)| {
        let (a, b) = (count(&a.supply, *slot), count(&b.supply, *slot));
        a == b || (a > b && *slot < profiles)
    })
}
