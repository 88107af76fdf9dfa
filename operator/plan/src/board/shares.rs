//! Shares of a GPU without MIG: what one of them has on a board, and how many fit.

use gputenancy_crds::{CONTEXT_MIB, ComputeMode, Interval, ResizePolicy, SharingMode};

use super::{
    geometry::BoardGeometry,
    shape::{ShareShape, ShareSize},
};

/// Most clients of one MPS server on every architecture since Volta (NVIDIA's MPS documentation before CUDA 13.1).
const MPS_CLIENTS: i32 = 48;
/// Most shares of one GPU, as the API allows.
const MAX_SHARES: i32 = gputenancy_crds::MAX_SHARES;
/// Parts of a GPU that weights are counted in, so that thirds, quarters, sevenths and eighths are whole numbers.
pub(crate) const PARTS: i64 = 840;

/// A share on one board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShareOffer {
    /// How the pods are kept apart.
    pub mode: SharingMode,
    /// Length of a time-slice.
    pub interval: Interval,
    /// The GPU has exactly so many, and no other shares.
    pub exactly: Option<i32>,
    /// Memory of one share, in MiB.
    pub memory: Option<i64>,
    /// Compute of one share, in percent of the GPU.
    pub compute: Option<i32>,
    /// Effect of a smaller memory on pods that hold more.
    pub resize: ResizePolicy,
    /// Whether it may use compute that its neighbours leave idle.
    pub compute_mode: ComputeMode,
}

impl BoardGeometry {
    /// Memory that shares can have, in MiB: all but what the driver reserves.
    pub fn usable_memory(&self) -> i64 {
        (self.memory - self.reserved).max(0)
    }

    /// The size of a share on this board; `None` if not even one fits.
    pub fn share(&self, shape: &ShareShape) -> Option<ShareOffer> {
        let ShareShape { mode, interval, resize, compute_mode, size } = *shape;
        let (exactly, memory, compute) = match (mode, size) {
            (SharingMode::Mps, ShareSize::Equal(n)) if n <= MPS_CLIENTS => {
                let n = n.max(1);
                (Some(n), Some(self.usable_memory() / i64::from(n) - CONTEXT_MIB), Some((100 / n).max(1)))
            }
            (SharingMode::Mps, ShareSize::Equal(_)) => return None,
            (_, ShareSize::Equal(n)) => (Some(n.clamp(1, MAX_SHARES)), None, None),
            (_, ShareSize::Part { memory, compute }) => (None, Some(memory), Some(compute)),
        };
        let offer = ShareOffer { mode, interval, exactly, memory, compute, resize, compute_mode };
        let fits = memory.is_none_or(|m| m > 0) && ShareCapacity::of(self, mode).takes(&offer, 1);
        fits.then_some(offer)
    }

    /// Whether something is left for the programs on one share to be limited to: time-slices have equal parts, less their contexts.
    pub fn can_limit(&self, offer: &ShareOffer) -> bool {
        match (offer.memory, offer.exactly) {
            (None, Some(n)) => self.usable_memory() / i64::from(n.max(1)) > CONTEXT_MIB,
            _ => true,
        }
    }

    /// Share of the GPU that one share is, in 840ths: the larger of its parts of memory and compute. At least 1.
    pub fn weight(&self, offer: &ShareOffer) -> i64 {
        let up = |part: i64, of: i64| (part * PARTS + of - 1) / of.max(1);
        let parts = if let Some(n) = offer.exactly {
            up(1, n.into())
        } else {
            let memory = up(offer.memory.unwrap_or(0), self.usable_memory().max(1));
            memory.max(up(offer.compute.unwrap_or(0).into(), 100))
        };
        parts.clamp(1, PARTS)
    }
}

/// The capacity of a GPU that its shares leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareCapacity {
    memory: i64,
    compute: i64,
    shares: i64,
}

impl ShareCapacity {
    /// A GPU without shares.
    pub fn of(board: &BoardGeometry, mode: SharingMode) -> Self {
        let shares = if mode == SharingMode::Mps { MPS_CLIENTS } else { MAX_SHARES };
        Self { memory: board.usable_memory(), compute: 100, shares: shares.into() }
    }

    /// The capacity after so many more.
    pub fn less(self, offer: &ShareOffer, n: i64) -> Self {
        let memory = offer.memory.map_or(0, |memory| memory.saturating_add(CONTEXT_MIB));
        Self {
            memory: self.memory.saturating_sub(memory.saturating_mul(n)),
            compute: self.compute - n * i64::from(offer.compute.unwrap_or(0)),
            shares: self.shares - n,
        }
    }

    /// The capacity when shares have so many MiB more than their profile gives them.
    pub fn without(self, memory: i64) -> Self {
        Self { memory: self.memory.saturating_sub(memory), ..self }
    }

    /// Whether so many more fit.
    pub fn takes(self, offer: &ShareOffer, n: i64) -> bool {
        self.less(offer, n).is_enough()
    }

    /// Whether no more is given away than there is.
    pub fn is_enough(self) -> bool {
        let Self { memory, compute, shares } = self;
        memory >= 0 && compute >= 0 && shares >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> BoardGeometry {
        BoardGeometry { memory: 81_920, reserved: 1024, ..BoardGeometry::default() }
    }

    fn shape(mode: SharingMode, size: ShareSize) -> ShareShape {
        ShareShape {
            mode,
            interval: Interval::Default,
            resize: ResizePolicy::default(),
            compute_mode: ComputeMode::default(),
            size,
        }
    }

    #[test]
    fn shares_leave_the_reserved_memory_and_a_context_each() {
        let ten = board().share(&shape(SharingMode::Fraction, ShareSize::Part { memory: 10_240, compute: 5 })).unwrap();
        let capacity = ShareCapacity::of(&board(), SharingMode::Fraction);
        // 7 × (10,240 + 640) = 76,160 of 80,896 MiB
        assert!(capacity.takes(&ten, 7) && !capacity.takes(&ten, 8));
        let half = board().share(&shape(SharingMode::Fraction, ShareSize::Part { memory: 1024, compute: 40 })).unwrap();
        assert!(capacity.takes(&half, 2) && !capacity.takes(&half, 3), "compute adds up to 100 %");
    }

    #[test]
    fn equal_mps_shares_split_what_the_driver_leaves() {
        let four = board().share(&shape(SharingMode::Mps, ShareSize::Equal(4))).unwrap();
        assert_eq!((four.memory, four.compute), (Some(80_896 / 4 - 640), Some(25)));
        assert_eq!(
            board().share(&shape(SharingMode::Mps, ShareSize::Equal(49))),
            None,
            "more clients than a server has"
        );
    }

    #[test]
    fn time_slices_can_be_limited_while_each_part_is_larger_than_its_context() {
        let slices = |n| board().share(&shape(SharingMode::TimeSlice, ShareSize::Equal(n))).unwrap();
        // 80,896 MiB: 126 parts of 642 MiB
        assert!(board().can_limit(&slices(126)));
        let small = BoardGeometry { memory: 8192, ..BoardGeometry::default() };
        assert!(small.can_limit(&slices(12)) && !small.can_limit(&slices(13)));
    }

    #[test]
    fn share_that_does_not_fit_is_not_offered() {
        let large = shape(SharingMode::Fraction, ShareSize::Part { memory: 81_000, compute: 100 });
        assert_eq!(board().share(&large), None);
    }

    #[test]
    fn weight_is_the_larger_part_of_memory_and_compute() {
        let weight = |size| board().weight(&board().share(&shape(SharingMode::Fraction, size)).unwrap());
        assert_eq!(weight(ShareSize::Part { memory: 40_448, compute: 10 }), 420);
        assert_eq!(weight(ShareSize::Part { memory: 1024, compute: 25 }), 210);
        assert_eq!(board().weight(&board().share(&shape(SharingMode::TimeSlice, ShareSize::Equal(4))).unwrap()), 210);
    }
}
