//! How a cap lies on the resources that count against it, before each lies on the namespaces.
//!
//! It goes as with namespaces (see [`super::target`]), by weight: what is used stays, the rest is room; room goes to the resource that
//! pods wait for, and as long as none waits it stays where it is until a resource is short.

use super::{
    target::{Seat, Stage, protected, served},
    weighted_water_filling::{Room, fill, level, sum},
};

/// One resource over all namespaces. Amounts are in thousandths of a device.
#[derive(Clone, Debug)]
pub struct Line {
    /// What a device weighs; more than zero.
    pub weight: i128,
    /// The budget without a cap.
    pub most: i128,
    /// The namespaces.
    pub seats: Vec<Seat>,
}

const DEVICE: i128 = 1000;

impl Line {
    fn used(&self) -> i128 {
        self.seats.iter().map(|s| s.used).sum()
    }

    /// Devices that may be granted beyond those in use.
    fn bound(&self) -> i128 {
        let open = self.seats.iter().any(|s| s.open);
        if open { (self.most - self.used()).max(0) / DEVICE } else { 0 }
    }

    /// Devices of room that its namespaces have.
    fn had(&self) -> i128 {
        let rooms = self.seats.iter().filter(|s| s.open).map(Seat::room);
        rooms.fold(0, i128::saturating_add) / DEVICE
    }

    /// Devices of room that pods are expected for.
    fn expected(&self) -> i128 {
        up(self.seats.iter().filter(|s| s.open).map(protected).sum())
    }

    fn wants(&self, stage: Stage) -> bool {
        self.seats.iter().any(|s| s.open && s.wants.iter().any(|w| w.stage == stage))
    }

    /// Devices of room with which those who wait can be served, if there are at most so many.
    fn needs(&self, devices: i128) -> Option<i128> {
        let open: Vec<usize> = self.seats.iter().enumerate().filter(|(_, s)| s.open).map(|(i, _)| i).collect();
        let serving = served(devices.saturating_mul(DEVICE), &self.seats, &open);
        let others = self.seats.iter().enumerate().filter(|(i, s)| s.open && serving.iter().all(|(at, _)| at != i));
        let kept: i128 = others.map(|(_, s)| protected(s)).sum();
        let wanted: i128 = serving.iter().map(|(_, amount)| amount).sum();
        (!serving.is_empty()).then(|| up(wanted + kept).min(devices))
    }
}

/// The budget of each line under a cap, in thousandths of a device: never more than its own, and in all no heavier than the cap, unless
/// more is in use. `cap`: in thousandths of what weights count.
pub fn allot(cap: i128, lines: &[Line]) -> Vec<i128> {
    let used = lines.iter().map(|l| l.used().saturating_mul(l.weight)).fold(0, i128::saturating_add);
    let slack = cap.saturating_sub(used);
    if slack < 0 {
        return lines.iter().map(|l| pinned(slack.saturating_neg(), l)).collect();
    }
    // from here on weights are of whole devices
    let slack = slack / DEVICE;
    let rows = rows(slack, lines);
    let serving = serving(slack, lines, &rows);
    let rooms = if serving.is_empty() { spread(slack, lines, &rows) } else { give(slack, &rows, &serving) };
    let budget = |(line, room): (&Line, &Room)| (line.used() + room.devices * DEVICE).min(line.most).max(0);
    lines.iter().zip(&rooms).map(budget).collect()
}

/// More is in use than the cap allows: of no resource may anything new come before as much has ended as is too much.
fn pinned(over: i128, line: &Line) -> i128 {
    let weight = line.weight.max(1);
    let devices = up(over / weight + i128::from(over % weight > 0));
    (line.used() - devices.saturating_mul(DEVICE)).min(line.most).max(0)
}

/// What a decision looks at, by line.
struct Row {
    /// The room that it has, no more than it may have, and all together no more than there is.
    had: Room,
    /// Devices of room that it may have at most, by its own budget and by the cap.
    bound: i128,
    /// Devices that pods are expected for.
    expected: i128,
}

fn rows(slack: i128, lines: &[Line]) -> Vec<Row> {
    let bounds: Vec<i128> = lines.iter().map(|line| line.bound().min(slack / line.weight.max(1))).collect();
    let had = |(line, bound): (&Line, &i128)| Room { weight: line.weight, devices: line.had().clamp(0, *bound) };
    let mut rooms: Vec<Room> = lines.iter().zip(&bounds).map(had).collect();
    if sum(&rooms) > slack {
        // limits that are too high together, by an edit or a lower cap
        let (all, had): (Vec<usize>, Vec<i128>) = rooms.iter().map(|room| room.devices).enumerate().unzip();
        level(&mut rooms, &all, slack, |i| (0, had.get(i).copied().unwrap_or(0)));
    }
    let row =
        |((line, bound), had): ((&Line, i128), Room)| Row { had, bound, expected: line.expected().min(had.devices) };
    lines.iter().zip(bounds).zip(rooms).map(row).collect()
}

/// Lines whose pods wait and can be served, with the devices of room that they need: who uses least comes first.
fn serving(slack: i128, lines: &[Line], rows: &[Row]) -> Vec<(usize, i128)> {
    let kept = |row: &Row| Room { devices: row.expected, ..row.had }.weighs();
    let mut left = slack - rows.iter().map(kept).sum::<i128>();
    let mut order: Vec<(i128, usize, &Line, &Row)> =
        lines.iter().zip(rows).enumerate().map(|(i, (l, r))| (l.used().saturating_mul(l.weight), i, l, r)).collect();
    order.sort_by_key(|(used, index, ..)| (*used, *index));
    let mut serving = Vec::new();
    for (_, index, line, row) in order {
        let most = (row.expected + left.max(0) / line.weight.max(1)).min(row.bound);
        let Some(devices) = line.needs(most) else { continue };
        let devices = devices.max(row.expected);
        left -= (devices - row.expected) * line.weight;
        serving.push((index, devices));
    }
    serving.sort_unstable();
    serving
}

/// Somebody waits: they get what they wait for, and all that others need not keep.
fn give(slack: i128, rows: &[Row], serving: &[(usize, i128)]) -> Vec<Room> {
    let waits = |i: usize| serving.iter().find(|(s, _)| *s == i).map(|(_, devices)| *devices);
    let open = rows.iter().filter(|row| row.bound > 0);
    let others: Vec<usize> = (0..rows.len()).filter(|i| waits(*i).is_none()).collect();
    let least = |(index, row): (usize, &Row)| Room { devices: waits(index).unwrap_or(row.expected), ..row.had };
    let mut rooms: Vec<Room> = rows.iter().enumerate().map(least).collect();
    // each keeps a fourth of its even part, one device at least, nothing where there is not one for each
    let one_each = open.clone().map(|row| row.had.weight).sum::<i128>() <= slack;
    let even = slack / number(open.count()).max(1);
    let most = (slack - sum(&rooms)).max(0) / number(others.len()).max(1);
    for index in others.iter().filter(|_| one_each) {
        if let (Some(row), Some(room)) = (rows.get(*index), rooms.get_mut(*index)) {
            let keep = (even / 4 / row.had.weight.max(1)).max(1).min(most / row.had.weight.max(1));
            room.devices = room.devices.max(keep.min(row.had.devices));
        }
    }
    let bound = |i: usize| rows.get(i).map_or(0, |row| row.bound);
    let waiting: Vec<usize> = serving.iter().map(|(index, _)| *index).collect();
    fill(&mut rooms, &waiting, slack, bound);
    // what these cannot have stays where it was, and what nobody has is spread when nobody waits any more
    fill(&mut rooms, &others, slack, |i| rows.get(i).map_or(0, |row| row.had.devices));
    rooms
}

/// Nobody waits. Rooms stay as they are, but for what nobody has yet, and for lines that have become short: with less than half of the
/// even part.
fn spread(slack: i128, lines: &[Line], rows: &[Row]) -> Vec<Room> {
    let all: Vec<usize> = (0..rows.len()).collect();
    let bound = |i: usize| rows.get(i).map_or(0, |row| row.bound);
    let mut rooms: Vec<Room> = rows.iter().map(|row| row.had).collect();
    let stage = |stage: Stage| -> Vec<usize> {
        lines.iter().enumerate().filter(|(_, line)| line.wants(stage)).map(|(i, _)| i).collect()
    };
    let (held, lingering) = (stage(Stage::Held), stage(Stage::Lingering));
    if held.is_empty() && lingering.is_empty() {
        refill(slack, rows, &mut rooms);
    } else {
        // limits are moving after pods that have just waited: nothing is taken from anybody until that is over
        fill(&mut rooms, if held.is_empty() { &lingering } else { &held }, slack, bound);
    }
    fill(&mut rooms, &all, slack, bound);
    rooms
}

/// Fills lines that are short up to their even part, from those that have more than theirs.
fn refill(slack: i128, rows: &[Row], rooms: &mut [Room]) {
    let even = slack / number(rows.iter().filter(|row| row.bound > 0).count()).max(1);
    let fair = |i: usize| rows.get(i).map_or(0, |row| (even / row.had.weight.max(1)).min(row.bound));
    let chosen = |test: &dyn Fn(i128, i128) -> bool| -> Vec<usize> {
        rooms.iter().enumerate().filter(|(i, room)| test(room.devices, fair(*i))).map(|(i, _)| i).collect()
    };
    let short = chosen(&|has, fair| has * 2 < fair);
    // the last device is not moved on a guess: a controller that room was made for may come back late
    let donors = chosen(&|has, fair| has > fair.max(1));
    let missing: i128 =
        short.iter().filter_map(|i| Some(rooms.get(*i)?.weight * (fair(*i) - rooms.get(*i)?.devices))).sum();
    let missing = missing - (slack - sum(rooms));
    if missing > 0 {
        let has: Vec<i128> = rooms.iter().map(|room| room.devices).collect();
        let theirs: i128 = donors.iter().filter_map(|i| rooms.get(*i)).map(|r| r.weighs()).sum();
        level(rooms, &donors, theirs - missing, |i| (fair(i).max(1), has.get(i).copied().unwrap_or(0)));
    }
    fill(rooms, &short, slack, fair);
}

fn number(n: usize) -> i128 {
    i128::try_from(n).unwrap_or(i128::MAX)
}

/// Thousandths as whole devices, rounded up.
fn up(thousandths: i128) -> i128 {
    thousandths.saturating_add(DEVICE - 1) / DEVICE
}
