//! The weight of a device as a share of a whole GPU, and a cap on the weight of all devices of a tenant.

use std::{cmp::Ordering, collections::BTreeMap, fmt};

use gputenancy_crds::quantity::Amount;

use super::limits::is_gpu_key;

/// Share of a whole GPU that one device is: memory slices that it covers, of those of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    slices: u16,
    of: u16,
}

/// Most memory slices of a board: sums stay exact. The planner has the same bound.
const MAX_SLICES: u16 = 32;
/// Parts of a GPU in which weights are counted that are not a share of so few slices; it divides what 1 to 32 divide.
const PARTS: u16 = 840;

impl Weight {
    /// A whole GPU, the most that a device can weigh.
    pub const WHOLE: Self = Self { slices: 1, of: 1 };

    /// `slices` memory slices of a board that has `of`; `None` if that is not a share of it.
    pub fn new(slices: i32, of: i32) -> Option<Self> {
        let (slices, of) = (u16::try_from(slices).ok()?, u16::try_from(of).ok()?);
        if slices == 0 || slices > of || of > MAX_SLICES {
            return None;
        }
        let by = gcd(slices.into(), of.into());
        let reduced = |n: u16| u16::try_from(i128::from(n) / by).ok();
        Some(Self { slices: reduced(slices)?, of: reduced(of)? })
    }

    /// So many 840ths of a GPU, as the planner weighs shares.
    pub fn parts(parts: i64) -> Option<Self> {
        let parts = u16::try_from(parts).ok().filter(|parts| (1..=PARTS).contains(parts))?;
        let by = gcd(parts.into(), PARTS.into());
        let reduced = |n: u16| u16::try_from(i128::from(n) / by).ok();
        Some(Self { slices: reduced(parts)?, of: reduced(PARTS)? })
    }
}

impl Ord for Weight {
    fn cmp(&self, other: &Self) -> Ordering {
        let times = |a: u16, b: u16| u32::from(a) * u32::from(b);
        times(self.slices, other.of).cmp(&times(other.slices, self.of))
    }
}

impl PartialOrd for Weight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.of == 1 { write!(f, "{}", self.slices) } else { write!(f, "{}/{}", self.slices, self.of) }
    }
}

/// The most that all devices of a tenant may weigh together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// In whole GPUs.
    pub whole: Amount,
    /// Weight of one device, by quota key. A device that is not listed weighs as much as a whole GPU, which is the most.
    pub weights: BTreeMap<String, Weight>,
}

impl Cap {
    fn weight(&self, key: &str) -> Weight {
        self.weights.get(key).copied().unwrap_or(Weight::WHOLE)
    }

    /// Parts per whole GPU, so that every weight is a whole number of parts.
    fn parts(&self) -> i128 {
        self.weights.values().fold(1, |parts, w| parts / gcd(parts, w.of.into()) * i128::from(w.of))
    }

    /// Weight of one device, in parts.
    pub(super) fn device(&self, key: &str) -> i128 {
        let weight = self.weight(key);
        self.parts() / i128::from(weight.of) * i128::from(weight.slices)
    }

    /// The cap in thousandths of a part.
    pub(super) fn limit(&self) -> i128 {
        self.whole.milli().max(0).saturating_mul(self.parts())
    }

    /// Thousandths of a part as whole GPUs, rounded up.
    pub(super) fn gpus(&self, thousandths: i128) -> Amount {
        let parts = self.parts();
        Amount::of_milli(thousandths.max(0).saturating_add(parts - 1) / parts)
    }

    /// Weight of these amounts, in whole GPUs, rounded up to thousandths.
    pub fn weigh<'a>(&self, amounts: impl IntoIterator<Item = (&'a str, Amount)>) -> Amount {
        let held = amounts.into_iter().filter(|(key, _)| is_gpu_key(key));
        let weights = held.map(|(key, amount)| amount.milli().saturating_mul(self.device(key)));
        self.gpus(weights.fold(0, i128::saturating_add))
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_is_a_share_of_a_board() {
        let shown = |slices, of| Weight::new(slices, of).map(|w| w.to_string());
        assert_eq!(shown(1, 8).as_deref(), Some("1/8"));
        assert_eq!(shown(4, 8).as_deref(), Some("1/2"));
        assert_eq!(shown(8, 8).as_deref(), Some("1"));
        for (slices, of) in [(0, 8), (-1, 8), (9, 8), (1, 0), (1, 33), (300, 400)] {
            assert_eq!(shown(slices, of), None, "{slices}/{of}");
        }
        assert!(Weight::new(1, 4) > Weight::new(1, 8) && Weight::new(4, 8) == Weight::new(2, 4));
    }

    #[test]
    fn weights_of_several_boards_add_up_exactly_and_are_shown_rounded_up() {
        let (eighth, third) = ("requests.nvidia.com/mig-1g.10gb", "requests.nvidia.com/mig-x");
        let weights = [(eighth, Weight::new(1, 8)), (third, Weight::new(1, 3))];
        let weights = weights.into_iter().filter_map(|(key, w)| Some((key.to_owned(), w?))).collect();
        let cap = Cap { whole: Amount::units(1), weights };
        assert_eq!((cap.parts(), cap.limit()), (24, 24_000));
        assert_eq!((cap.device(eighth), cap.device(third), cap.device("requests.nvidia.com/gpu")), (3, 8, 24));
        let weigh =
            |n, of| cap.weigh([(eighth, Amount::units(n)), (third, Amount::units(of)), ("pods", Amount::units(9))]);
        assert_eq!(weigh(8, 0), Amount::units(1));
        assert_eq!(weigh(0, 3), Amount::units(1));
        assert_eq!(weigh(0, 1), Amount::of_milli(334));
    }

    #[test]
    fn huge_cap_does_not_overflow() {
        let cap = Cap { whole: Amount::of_milli(i128::MAX), weights: BTreeMap::new() };
        assert_eq!(cap.weigh([("requests.nvidia.com/gpu", Amount::of_milli(i128::MAX))]), Amount::of_milli(i128::MAX));
    }
}
