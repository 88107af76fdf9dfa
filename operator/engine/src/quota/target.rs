//! How one resource's budget shall lie on the namespaces of a tenant, in the end.
//!
//! What is used stays where it is. The rest is room, and room goes where pods wait; as long as none waits it is spread, so that a
//! pod which nobody announces finds some in any namespace. Limits move only when a namespace has become short, and then in one
//! step, so that a tenant at rest is not written.

use super::water_filling::{drain, pour};

/// How sure it is that pods of a namespace want an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A controller was refused, and there is no room yet; or it has just taken what there was.
    Open,
    /// Room has been made, and the controller has not come back for it.
    Held,
    /// It came back, and may go on.
    Lingering,
}

/// What pods of a namespace want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// For one pod.
    pub amount: i128,
    /// How sure that is.
    pub stage: Stage,
}

/// One namespace, as far as one resource is concerned. Amounts are in one and the same small unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// It may get room; false: it keeps what it uses and gets nothing new.
    pub open: bool,
    /// Granted to its pods.
    pub used: i128,
    /// The limit that was written last, if any.
    pub limit: Option<i128>,
    /// What is wanted beyond `used`.
    pub wants: Vec<Want>,
}

impl Seat {
    /// What it may use already, never less than what it uses.
    fn base(&self) -> i128 {
        self.limit.unwrap_or(0).max(self.used)
    }

    /// What it may use beyond that.
    pub fn room(&self) -> i128 {
        self.base() - self.used
    }

    fn largest(&self, stage: Stage, at_most: i128) -> Option<i128> {
        let fitting = self.wants.iter().filter(|w| w.stage == stage && w.amount <= at_most);
        fitting.map(|w| w.amount).max()
    }
}

/// The limit of each seat. Together with what closed seats use they are the budget, if anybody may have room, and never more.
/// `unit`: limits that change are whole multiples of it as far as budget and use are.
pub fn target(budget: i128, unit: i128, seats: &[Seat]) -> Vec<i128> {
    let budget = budget.max(0);
    let used: i128 = seats.iter().map(|s| s.used).sum();
    let slack = budget - used;
    if slack <= 0 {
        return pinned(slack.saturating_neg(), seats);
    }
    let open: Vec<usize> = seats.iter().enumerate().filter(|(_, s)| s.open).map(|(i, _)| i).collect();
    let serving = served(slack, seats, &open);
    if serving.is_empty() {
        spread(slack, unit.max(1), seats, &open)
    } else {
        give(slack, unit.max(1), seats, &serving)
    }
}

/// Nothing is free: nobody gets anything new. `over`: used beyond the budget. A limit stays so far below what its namespace uses
/// that pods which end there make room for none before the whole is within the budget again.
fn pinned(over: i128, seats: &[Seat]) -> Vec<i128> {
    let limit = |s: &Seat| {
        let most = (s.used - over).max(0);
        if over == 0 { most } else { s.limit.unwrap_or(0).clamp(0, most) }
    };
    seats.iter().map(|s| if s.open { limit(s) } else { 0 }).collect()
}

/// The waiting namespaces that can be served whole, with the amounts: who uses least comes first. A request that does not fit is
/// passed over, so that an impossible one takes nothing from anybody.
pub fn served(slack: i128, seats: &[Seat], open: &[usize]) -> Vec<(usize, i128)> {
    let seat = |i: usize| seats.get(i);
    let held: i128 = open.iter().filter_map(|i| seat(*i)).map(protected).sum();
    let mut left = slack - held;
    let mut order: Vec<usize> = open.to_vec();
    order.sort_by_key(|i| (seat(*i).map(|s| s.used), *i));
    let mut serving = Vec::new();
    for index in order {
        let Some(seat) = seat(index) else { continue };
        // what it holds already may be used for what it waits for
        let own = protected(seat);
        if let Some(amount) = seat.largest(Stage::Open, left + own) {
            // nor is room given away that was made for another pod of its own
            let expected = seat.largest(Stage::Held, left + own).unwrap_or(0).max(own.min(left + own));
            let amount = amount.max(expected);
            left -= (amount - own).max(0);
            serving.push((index, amount));
        }
    }
    serving.sort_unstable();
    serving
}

/// Room that was made for a pod which is still expected, as long as it is there whole.
pub fn protected(seat: &Seat) -> i128 {
    seat.largest(Stage::Held, seat.room()).unwrap_or(0)
}

/// Somebody waits: they get what they wait for, and all that others need not keep.
fn give(slack: i128, unit: i128, seats: &[Seat], serving: &[(usize, i128)]) -> Vec<i128> {
    let waits = |i: usize| serving.iter().find(|(s, _)| *s == i).map(|(_, amount)| *amount);
    let wanted: i128 = serving.iter().map(|(_, amount)| amount).sum();
    let others: Vec<(usize, &Seat)> = seats.iter().enumerate().filter(|(i, s)| s.open && waits(*i).is_none()).collect();
    let expected: i128 = others.iter().map(|(_, s)| protected(s)).sum();
    // what rounding up may cost
    let pad: i128 = others.iter().map(|(_, s)| up(s.used, unit) - s.used).sum();
    let open = others.len() + serving.len();
    let keep = keep(slack, slack - wanted - expected - pad, unit, open, others.len());
    let mut limits = vec![0; seats.len()];
    for (index, seat) in &others {
        let kept = keep.min(seat.room());
        let round = up(seat.used + kept, unit);
        // never up beyond what it has, nor at the cost of those who wait
        let fits = kept > 0 && round <= seat.base();
        let least = if fits { round } else { seat.used + kept };
        set(&mut limits, *index, least.max(seat.used + protected(seat)));
    }
    let closed: i128 = seats.iter().filter(|s| !s.open).map(|s| s.used).sum();
    let total = slack + seats.iter().map(|s| s.used).sum::<i128>();
    let mut left = total - closed - limits.iter().sum::<i128>();
    let need = |(index, amount): &(usize, i128)| seats.get(*index).map_or(0, |s| s.used) + amount;
    let rounded = serving.iter().map(|s| up(need(s), unit)).sum::<i128>() <= left;
    for waiting in serving {
        let need = need(waiting);
        let limit = if rounded { up(need, unit) } else { need };
        set(&mut limits, waiting.0, limit);
        left -= limit;
    }
    let mut parts = vec![0; serving.len()];
    let all: Vec<usize> = (0..serving.len()).collect();
    pour(&mut parts, &all, left.max(0) / unit, i128::MAX);
    for ((index, _), part) in serving.iter().zip(&parts) {
        add(&mut limits, *index, part * unit);
    }
    if let Some((first, _)) = serving.first() {
        add(&mut limits, *first, left.max(0) % unit);
    }
    limits
}

/// The room that a namespace keeps while others wait: a fourth of its even part, at least one unit, nothing where there is not
/// enough for all.
fn keep(slack: i128, left: i128, unit: i128, open: usize, keepers: usize) -> i128 {
    let (open, keepers) = (i128::try_from(open).unwrap_or(1), i128::try_from(keepers).unwrap_or(1));
    if keepers == 0 || slack < open * unit {
        return 0;
    }
    let most = left.max(0) / keepers / unit * unit;
    (slack / (4 * open) / unit * unit).max(unit).min(most)
}

/// Nobody waits. Limits stay as they are, but for what nobody has yet, what is too much, and for namespaces that have become
/// short: with less than half of the even part.
fn spread(slack: i128, unit: i128, seats: &[Seat], open: &[usize]) -> Vec<i128> {
    let mut rest: Vec<i128> = seats.iter().map(Seat::base).collect();
    let mut rooms = vec![0; seats.len()];
    for index in open {
        if let Some(seat) = seats.get(*index) {
            set(&mut rooms, *index, seat.room() / unit);
            set(&mut rest, *index, seat.base() - seat.room() / unit * unit);
        }
    }
    let given = |rooms: &[i128], rest: &[i128]| -> i128 {
        let over = |i: &usize| rest.get(*i).unwrap_or(&0) - seats.get(*i).map_or(0, |s| s.used);
        open.iter().map(|i| rooms.get(*i).unwrap_or(&0) * unit + over(i)).sum()
    };
    let excess = given(&rooms, &rest) - slack;
    if excess > 0 {
        drain(&mut rooms, open, up(excess, unit) / unit, 0);
        let still = given(&rooms, &rest) - slack;
        if still > 0 {
            // parts of a unit that are nobody's
            for index in open {
                set(&mut rest, *index, seats.get(*index).map_or(0, |s| s.used));
            }
        }
    }
    let free = (slack - given(&rooms, &rest)).max(0);
    let fair = slack / i128::try_from(open.len()).unwrap_or(1).max(1) / unit;
    let stage = |stage: Stage| -> Vec<usize> {
        let wants = |i: &&usize| seats.get(**i).is_some_and(|s| s.wants.iter().any(|w| w.stage == stage));
        open.iter().filter(wants).copied().collect()
    };
    let (held, lingering) = (stage(Stage::Held), stage(Stage::Lingering));
    let short: Vec<usize> =
        open.iter().filter(|i| rooms.get(**i).is_some_and(|room| room * 2 < fair)).copied().collect();
    let before = rooms.clone();
    let mut units = free / unit;
    if held.is_empty() && lingering.is_empty() {
        units = pour(&mut rooms, &short, units, fair);
        let missing: i128 = short.iter().filter_map(|i| rooms.get(*i)).map(|room| fair - room).sum();
        let untaken = drain(&mut rooms, open, missing, fair);
        pour(&mut rooms, &short, missing - untaken, fair);
    } else {
        // limits are moving after pods that have just waited: nothing is taken from anybody until that is over
        let first = if held.is_empty() { &lingering } else { &held };
        units = pour(&mut rooms, first, units, i128::MAX);
    }
    pour(&mut rooms, open, units, i128::MAX);
    let raised = open.iter().copied().find(|i| rooms.get(*i) > before.get(*i));
    if let Some(first) = raised.or(open.first().copied()) {
        add(&mut rest, first, free % unit);
    }
    let limit = |(i, s): (usize, &Seat)| {
        if s.open { rest.get(i).unwrap_or(&0) + rooms.get(i).unwrap_or(&0) * unit } else { 0 }
    };
    seats.iter().enumerate().map(limit).collect()
}

fn up(amount: i128, unit: i128) -> i128 {
    (amount + unit - 1) / unit * unit
}

fn set(limits: &mut [i128], index: usize, amount: i128) {
    if let Some(limit) = limits.get_mut(index) {
        *limit = amount;
    }
}

fn add(limits: &mut [i128], index: usize, amount: i128) {
    if let Some(limit) = limits.get_mut(index) {
        *limit += amount;
    }
}
