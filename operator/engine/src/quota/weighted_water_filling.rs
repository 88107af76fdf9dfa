//! Levelling of things that weigh differently: each has a room in whole devices, and what counts is what the rooms weigh.

/// A room that can be filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// What one device weighs; more than zero.
    pub weight: i128,
    /// Devices.
    pub devices: i128,
}

impl Room {
    /// What all of it weighs.
    pub fn weighs(self) -> i128 {
        self.weight.saturating_mul(self.devices)
    }
}

/// What these rooms weigh together.
pub fn sum(rooms: &[Room]) -> i128 {
    rooms.iter().fold(0, |sum, room| sum.saturating_add(room.weighs()))
}

/// Brings each of these rooms to one and the same weight, as far as its bounds let it: the highest with which all that are named weigh no
/// more than `amount`. Where even the lower bounds weigh more, it is these.
pub fn level(rooms: &mut [Room], among: &[usize], amount: i128, bounds: impl Fn(usize) -> (i128, i128)) {
    let at = |rooms: &[Room], index: usize, level: i128| {
        let (least, most) = bounds(index);
        rooms.get(index).map_or(0, |room| (level / room.weight.max(1)).min(most).max(least))
    };
    let total = |rooms: &[Room], level: i128| {
        let weighs = |i: &usize| rooms.get(*i).map_or(0, |r| r.weight.saturating_mul(at(rooms, *i, level)));
        among.iter().map(weighs).fold(0, i128::saturating_add)
    };
    let (mut low, mut high) = (0, amount.max(0));
    while low < high {
        let middle = low + (high - low + 1) / 2;
        if total(rooms, middle) <= amount {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    for index in among {
        let devices = at(rooms, *index, low);
        if let Some(room) = rooms.get_mut(*index) {
            room.devices = devices;
        }
    }
}

/// Adds to these rooms what is free of `whole`, the lowest first, none beyond its bound; what is too little for all goes to the first
/// that can take it.
pub fn fill(rooms: &mut [Room], among: &[usize], whole: i128, most: impl Fn(usize) -> i128) {
    let had: Vec<i128> = rooms.iter().map(|room| room.devices).collect();
    let least = |index: usize| had.get(index).copied().unwrap_or(0);
    let inside: i128 = among.iter().filter_map(|i| rooms.get(*i)).map(|r| r.weighs()).sum();
    let free = whole - sum(rooms);
    if free <= 0 {
        return;
    }
    level(rooms, among, inside.saturating_add(free), |i| (least(i), most(i).max(least(i))));
    let mut left = whole - sum(rooms);
    for index in among {
        let bound = most(*index);
        if let Some(room) = rooms.get_mut(*index) {
            let more = (left / room.weight.max(1)).min(bound - room.devices).max(0);
            room.devices += more;
            left -= more * room.weight;
        }
    }
}
