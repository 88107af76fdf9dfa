//! Water-filling by weight: headroom is counted in whole devices and compared by what the devices weigh.

/// Devices that may still be granted of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// Weight of one device; more than zero.
    pub weight: i128,
    /// Devices.
    pub devices: i128,
}

impl Headroom {
    /// Weight of all its devices.
    pub fn total_weight(self) -> i128 {
        self.weight.saturating_mul(self.devices)
    }
}

/// Weight of all of these together.
pub fn total_weight(headrooms: &[Headroom]) -> i128 {
    headrooms.iter().fold(0, |sum, headroom| sum.saturating_add(headroom.total_weight()))
}

/// Brings the headrooms of `among` to one common weight, each within its bounds: the highest with which they weigh no more than `amount`
/// together. Where the lower bounds already weigh more, each gets its lower bound.
pub fn equalize(headrooms: &mut [Headroom], among: &[usize], amount: i128, bounds: impl Fn(usize) -> (i128, i128)) {
    let devices_at = |headrooms: &[Headroom], index: usize, weight: i128| {
        let (least, most) = bounds(index);
        headrooms.get(index).map_or(0, |h| (weight / h.weight.max(1)).min(most).max(least))
    };
    let total = |headrooms: &[Headroom], weight: i128| {
        let of =
            |i: &usize| headrooms.get(*i).map_or(0, |h| h.weight.saturating_mul(devices_at(headrooms, *i, weight)));
        among.iter().map(of).fold(0, i128::saturating_add)
    };
    let (mut low, mut high) = (0, amount.max(0));
    while low < high {
        let middle = low + (high - low + 1) / 2;
        if total(headrooms, middle) <= amount {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    for index in among {
        let devices = devices_at(headrooms, *index, low);
        if let Some(headroom) = headrooms.get_mut(*index) {
            headroom.devices = devices;
        }
    }
}

/// Distributes over `among` what all headrooms leave of `whole`, the lowest first, none beyond `most`. A rest that is too small for all
/// goes to the first that can take it.
pub fn fill_lowest(headrooms: &mut [Headroom], among: &[usize], whole: i128, most: impl Fn(usize) -> i128) {
    let before: Vec<i128> = headrooms.iter().map(|headroom| headroom.devices).collect();
    let least = |index: usize| before.get(index).copied().unwrap_or(0);
    let inside: i128 = among.iter().filter_map(|i| headrooms.get(*i)).map(|h| h.total_weight()).sum();
    let free = whole - total_weight(headrooms);
    if free <= 0 {
        return;
    }
    equalize(headrooms, among, inside.saturating_add(free), |i| (least(i), most(i).max(least(i))));
    let mut left = whole - total_weight(headrooms);
    for index in among {
        let bound = most(*index);
        if let Some(headroom) = headrooms.get_mut(*index) {
            let more = (left / headroom.weight.max(1)).min(bound - headroom.devices).max(0);
            headroom.devices += more;
            left -= more * headroom.weight;
        }
    }
}
