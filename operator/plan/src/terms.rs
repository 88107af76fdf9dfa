//! What a layout of the fleet is measured by: who is guaranteed how much, and what must not go.

use super::lines::Line;

/// Ranks of guarantees, the first is served first.
pub(super) const RANKS: usize = 11;

/// A number for each rank.
pub(super) type ByRank = [i64; RANKS];

/// Demand for one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LineTerms {
    /// Devices guaranteed.
    pub wanted: ByRank,
    /// Of these, devices that guaranteed pods hold: in a shortage nobody's guarantee is served from another's.
    pub held: ByRank,
    /// Of these, devices that exist, held or not: a pod that is just moving finds its place.
    pub there: ByRank,
    /// Share of a GPU of one device, in 840ths.
    pub weight: i64,
    /// Pods use it where no outage is allowed: one GPU at least carries it on.
    pub protected: bool,
}

/// Somebody who holds more devices of a profile than guaranteed: what is beyond stays where that costs nothing, and is
/// nobody's supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    /// Where in the sums the devices kept are counted.
    pub place: usize,
    pub line: Line,
    pub guaranteed: i64,
    pub held: i64,
}

/// Everything that layouts are measured by.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub lines: Vec<LineTerms>,
    /// In an order that depends on names only.
    pub excess: Vec<Excess>,
    /// By place: the profile, and what is guaranteed to the holder that the place counts for.
    places: Vec<(Line, Option<i64>)>,
}

/// What a layout of the fleet fails to give, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shortfall {
    /// Profiles in use that no GPU would carry any more.
    pub outage: i64,
    /// Share guaranteed and in use today that would be gone, in 840ths of a GPU.
    pub lost: i64,
    /// For each rank: share guaranteed and there today that would be gone, and share guaranteed that does not exist.
    pub ranks: [(i64, i64); RANKS],
    /// Inequality among profiles: squares of what is missing, in thousandths of what is wanted.
    pub uneven: i64,
    /// Devices guaranteed that do not exist.
    pub missing: i64,
}

impl LineTerms {
    /// How a number of devices is handed out: first to who holds them, then by rank.
    pub fn serve(&self, supply: i64) -> ByRank {
        let mut left = supply.max(0);
        if left >= self.total() {
            return self.wanted;
        }
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

    pub fn shortfall(&self, supply: i64, devices: i64) -> Shortfall {
        let mut short = Shortfall { outage: i64::from(self.protected && devices <= 0), ..Shortfall::default() };
        if supply >= self.total() {
            return short;
        }
        let got = self.serve(supply);
        short.lost = (self.held.iter().sum::<i64>() - supply).max(0) * self.weight;
        let wants = self.wanted.iter().zip(&self.there);
        for ((short_by, got), (wanted, there)) in short.ranks.iter_mut().zip(got).zip(wants) {
            let missing = wanted - got;
            *short_by = ((there - got).max(0) * self.weight, missing * self.weight);
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

impl Terms {
    pub fn new(lines: Vec<LineTerms>, holders: impl IntoIterator<Item = Line>, excess: Vec<Excess>) -> Self {
        let mut places: Vec<(Line, Option<i64>)> = (0..lines.len()).map(|line| (line, None)).collect();
        places.extend(holders.into_iter().map(|line| (line, None)));
        for e in &excess {
            if let Some(place) = places.get_mut(e.place) {
                place.1 = Some(e.guaranteed);
            }
        }
        Self { lines, excess, places }
    }

    /// Sums with a place for each profile, and for each holder of more than guaranteed.
    pub fn sums(&self) -> Vec<i64> {
        vec![0; self.places.len()]
    }

    /// The profile that a place in the sums has to do with, and for a holder what is guaranteed to it.
    pub fn place(&self, place: usize) -> (Line, Option<i64>) {
        self.places.get(place).copied().unwrap_or((usize::MAX, None))
    }

    /// Devices held beyond guarantees, by profile.
    pub fn beyond(&self, sums: &[i64]) -> Vec<i64> {
        let mut beyond = vec![0; self.lines.len()];
        for e in &self.excess {
            add(&mut beyond, e.line, (of(sums, e.place) - e.guaranteed).max(0));
        }
        beyond
    }

    /// What the profiles lack for which `counts` says yes.
    pub fn shortfall(&self, sums: &[i64], counts: impl Fn(Line) -> bool) -> Shortfall {
        let beyond = self.beyond(sums);
        let mut short = Shortfall::default();
        for (line, terms) in self.lines.iter().enumerate().filter(|(line, _)| counts(*line)) {
            short.add(&terms.shortfall(of(sums, line) - of(&beyond, line), of(sums, line)), 1);
        }
        short
    }
}

pub(super) fn of(sums: &[i64], place: usize) -> i64 {
    sums.get(place).copied().unwrap_or(0)
}

pub(super) fn add(sums: &mut [i64], place: usize, more: i64) {
    if let Some(sum) = sums.get_mut(place) {
        *sum += more;
    }
}
