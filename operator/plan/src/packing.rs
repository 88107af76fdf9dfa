//! Every way to place a pool's profiles on one board, and what each leaves over.
//!
//! A seven-slice board with two profiles has some hundred ways, with all seven of NVIDIA's some thousand; enumeration stops at
//! [`LIMIT`], after which only the first ways found are considered.

use std::collections::HashMap;

use super::board::{Board, Room};

/// Most ways that are considered for one kind of GPU.
pub(super) const LIMIT: usize = 30_000;
/// Most instances among which is chosen: a way is a set of bits.
pub(super) const MOST: usize = 128;

/// An instance that may be placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub start: i32,
    /// Index of the MIG profile on the board.
    pub mig: usize,
    pub resource: Option<String>,
}

/// A way to place instances: a bit for each item.
pub(super) type Packing = u128;

/// What an occupied board leaves over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leftover {
    /// Memory slices that no item can cover.
    pub memory: i32,
    /// Compute slices that no item can use then.
    pub compute: i32,
    /// Memory slices of the largest item that still fits.
    pub largest: i32,
}

/// All ways to place items, each once; the empty one is among them.
pub(super) fn packings(board: &Board, items: &[Item]) -> Vec<Packing> {
    let mut found = Vec::new();
    extend(items, 0, &board.room(), board.memory_slices, 0, &mut found);
    found
}

fn extend(items: &[Item], at: i32, room: &Room<'_>, axis: i32, chosen: Packing, found: &mut Vec<Packing>) {
    if found.len() >= LIMIT {
        return;
    }
    if at >= axis {
        found.push(chosen);
        return;
    }
    for (index, item) in items.iter().take(MOST).enumerate().filter(|(_, i)| i.start == at) {
        if !room.takes(item.mig, item.start) {
            continue;
        }
        let mut next = room.clone();
        if next.place(item.mig, item.start).is_ok() {
            extend(items, at + 1, &next, axis, chosen | 1 << index, found);
        }
    }
    extend(items, at + 1, room, axis, chosen, found);
}

/// Answers what is left over, remembering what it has computed.
#[derive(Debug)]
pub(super) struct Leftovers {
    memory_slices: i32,
    slices: i32,
    /// Start, size and compute slices of what may be placed.
    shapes: Vec<(i32, i32, i32)>,
    known: HashMap<(u32, i32), Leftover, Fast>,
    /// Most memory slices that can be covered from a slice on, and the compute slices used by that.
    covers: HashMap<(i32, u32, i32), (i32, i32), Fast>,
}

type Fast = foldhash::fast::FixedState;

impl Leftovers {
    /// For a board on which instances of these profiles may be placed, by index.
    pub fn of(board: &Board, profiles: impl IntoIterator<Item = usize>) -> Self {
        let profiles = profiles.into_iter().filter_map(|mig| board.profiles.get(mig)).filter(|p| p.size > 0);
        let mut shapes: Vec<_> =
            profiles.flat_map(|p| p.starts.iter().map(|start| (*start, p.size, p.slices))).collect();
        shapes.sort_unstable();
        shapes.dedup();
        Self {
            memory_slices: board.memory_slices,
            slices: board.slices,
            shapes,
            known: HashMap::default(),
            covers: HashMap::default(),
        }
    }

    /// What these instances leave over: start, memory slices, compute slices of each.
    pub fn after(&mut self, placed: impl IntoIterator<Item = (i32, i32, i32)>) -> Leftover {
        let (mut slots, mut slices) = (0_u32, 0);
        for (start, size, compute) in placed {
            slots |= bits(start, size);
            slices += compute;
        }
        if let Some(known) = self.known.get(&(slots, slices)) {
            return *known;
        }
        let free = self.memory_slices - slots.count_ones().cast_signed();
        let left = self.slices - slices;
        let (memory, compute) = self.best_cover(0, slots, left);
        let fits = |s: &&(i32, i32, i32)| slots & bits(s.0, s.1) == 0 && s.2 <= left;
        let largest = self.shapes.iter().filter(fits).map(|s| s.1).max().unwrap_or(0);
        let answer = Leftover { memory: free - memory, compute: (left - compute).max(0), largest };
        self.known.insert((slots, slices), answer);
        answer
    }

    /// Most memory slices that can still be covered from this one on, and the compute slices used by that.
    fn best_cover(&mut self, at: i32, slots: u32, left: i32) -> (i32, i32) {
        if at >= self.memory_slices {
            return (0, 0);
        }
        // what lies before makes no difference any more
        let key = (at, slots | bits(0, at), left);
        if let Some(known) = self.covers.get(&key) {
            return *known;
        }
        let mut best = self.best_cover(at + 1, slots, left);
        for index in 0..self.shapes.len() {
            let Some((start, size, slices)) = self.shapes.get(index).copied() else { continue };
            if start == at && slots & bits(start, size) == 0 && slices <= left {
                let (memory, compute) = self.best_cover(at + size, slots, left - slices);
                best = best.max((memory + size, compute + slices));
            }
        }
        self.covers.insert(key, best);
        best
    }
}

fn bits(start: i32, size: i32) -> u32 {
    let low = |n: i32| 1_u32.checked_shl(n.max(0).cast_unsigned()).map_or(u32::MAX, |bit| bit - 1);
    low(start + size) & !low(start)
}
