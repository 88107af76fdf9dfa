//! Every set of instances that fits on one board.
//!
//! A seven-slice board with two profiles has some hundred sets, with all seven of NVIDIA's some thousand; enumeration stops at
//! [`LIMIT`].

use super::geometry::{BoardGeometry, Occupancy};

/// Most sets that are considered for one kind of GPU.
const LIMIT: usize = 30_000;
/// Most items: a set has one bit for each.
pub(crate) const MAX_ITEMS: usize = 128;

/// An instance that may be placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Item {
    pub start: i32,
    /// Index of the MIG profile on the board.
    pub mig: usize,
    /// Resource, where it is not NVIDIA's for the profile.
    pub resource: Option<String>,
    /// Time-slices, where it is shared.
    pub replicas: Option<i32>,
}

impl Item {
    /// Devices of it: one, or its time-slices.
    pub fn devices(&self) -> u32 {
        self.replicas.and_then(|n| n.try_into().ok()).unwrap_or(1)
    }
}

/// A set of items: a bit for each.
pub(crate) type Packing = u128;

/// All sets of items that fit, each once; the empty one is among them.
pub(crate) fn packings(board: &BoardGeometry, items: &[Item]) -> Vec<Packing> {
    let mut found = Vec::new();
    extend(items, 0, &board.empty(), board.memory_slices, 0, &mut found);
    found
}

fn extend(items: &[Item], at: i32, gpu: &Occupancy<'_>, axis: i32, set: Packing, found: &mut Vec<Packing>) {
    if found.len() >= LIMIT {
        return;
    }
    if at >= axis {
        found.push(set);
        return;
    }
    for (index, item) in items.iter().take(MAX_ITEMS).enumerate().filter(|(_, i)| i.start == at) {
        if gpu.takes(item.mig, item.start) {
            let mut next = gpu.clone();
            next.place(item.mig, item.start);
            extend(items, at + 1, &next, axis, set | 1 << index, found);
        }
    }
    extend(items, at + 1, gpu, axis, set, found);
}

/// The items of a set.
pub(crate) fn chosen<T>(packing: Packing, items: &[T]) -> impl Iterator<Item = &T> {
    items.iter().enumerate().filter(move |(bit, _)| packing & (1 << bit) != 0).map(|(_, item)| item)
}
