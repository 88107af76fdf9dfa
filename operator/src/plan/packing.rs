//! Every way to place a pool's profiles on one board, and what each leaves over.
//!
//! A seven-slice board with two profiles has some hundred ways, with all seven of NVIDIA's some thousand; enumeration stops at
//! [`LIMIT`], after which only the first ways found are considered.

use std::collections::BTreeMap;

use super::board::{Board, Room};

/// Most ways that are considered for one kind of GPU.
pub(super) const LIMIT: usize = 30_000;

/// An instance that may be placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub start: i32,
    /// Index of the MIG profile on the board.
    pub mig: usize,
    pub resource: Option<String>,
}

/// A way to place instances: indices of items, by start.
pub(super) type Packing = Vec<u16>;

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
    let mut chosen = Vec::new();
    extend(items, 0, &board.room(), board.memory_slices, &mut chosen, &mut found);
    found
}

fn extend(items: &[Item], at: i32, room: &Room<'_>, axis: i32, chosen: &mut Packing, found: &mut Vec<Packing>) {
    if found.len() >= LIMIT {
        return;
    }
    if at >= axis {
        found.push(chosen.clone());
        return;
    }
    for (index, item) in (0_u16..).zip(items).filter(|(_, i)| i.start == at) {
        let mut next = room.clone();
        if next.place(item.mig, item.start).is_ok() {
            chosen.push(index);
            extend(items, at + 1, &next, axis, chosen, found);
            chosen.pop();
        }
    }
    extend(items, at + 1, room, axis, chosen, found);
}

/// Answers what is left over, remembering what it has computed.
pub(super) struct Leftovers<'a> {
    board: &'a Board,
    /// Start, size and compute slices of what may be placed.
    shapes: Vec<(i32, i32, i32)>,
    known: BTreeMap<(u32, i32), Leftover>,
}

impl<'a> Leftovers<'a> {
    pub fn of(board: &'a Board, items: &[Item]) -> Self {
        let shape = |i: &Item| board.profiles.get(i.mig).map(|p| (i.start, p.size, p.slices));
        let mut shapes: Vec<_> = items.iter().filter_map(shape).collect();
        shapes.sort_unstable();
        shapes.dedup();
        Self { board, shapes, known: BTreeMap::new() }
    }

    /// What this packing leaves over.
    pub fn after(&mut self, items: &[Item], packing: &[u16]) -> Leftover {
        let placed = packing.iter().filter_map(|i| items.get(usize::from(*i)));
        let profiles = placed.filter_map(|i| Some((i.start, self.board.profiles.get(i.mig)?)));
        let (mut slots, mut slices) = (0_u32, 0);
        for (start, profile) in profiles {
            slots |= bits(start, profile.size);
            slices += profile.slices;
        }
        if let Some(known) = self.known.get(&(slots, slices)) {
            return *known;
        }
        let free = self.board.memory_slices - slots.count_ones().cast_signed();
        let left = self.board.slices - slices;
        let (memory, compute) = self.best_cover(0, slots, left);
        let fits = |s: &&(i32, i32, i32)| slots & bits(s.0, s.1) == 0 && s.2 <= left;
        let largest = self.shapes.iter().filter(fits).map(|s| s.1).max().unwrap_or(0);
        let answer = Leftover { memory: free - memory, compute: (left - compute).max(0), largest };
        self.known.insert((slots, slices), answer);
        answer
    }

    /// Most memory slices that can still be covered, and the compute slices used by that.
    fn best_cover(&self, from: usize, slots: u32, left: i32) -> (i32, i32) {
        let mut best = (0, 0);
        for (index, (start, size, slices)) in self.shapes.iter().enumerate().skip(from) {
            if slots & bits(*start, *size) == 0 && *slices <= left {
                let (memory, compute) = self.best_cover(index + 1, slots | bits(*start, *size), left - slices);
                best = best.max((memory + size, compute + slices));
            }
        }
        best
    }
}

fn bits(start: i32, size: i32) -> u32 {
    (start..start + size)
        .filter_map(|s| u32::try_from(s).ok())
        .fold(0, |all, s| all | 1_u32.checked_shl(s).unwrap_or(0))
}
