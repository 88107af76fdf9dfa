//! Slices of an occupied board that no profile of the pool can use.

use std::collections::HashMap;

use super::geometry::{BoardGeometry, bits};

/// The slices of an occupied board that no profile can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// Memory slices that no instance can cover.
    pub memory: i32,
    /// Compute slices that no instance can use then.
    pub compute: i32,
    /// Memory slices of the largest instance that still fits.
    pub largest: i32,
}

/// Leftovers of one board, each computed once.
#[derive(Debug)]
pub(crate) struct Leftovers {
    memory_slices: i32,
    slices: i32,
    /// Start, size and compute slices of what may be placed.
    shapes: Vec<(i32, i32, i32)>,
    known: HashMap<(u32, i32), Leftover>,
    /// Most memory slices that can be covered from a slice on, and the compute slices used by that.
    covers: HashMap<(i32, u32, i32), (i32, i32)>,
}

impl Leftovers {
    /// For a board on which instances of these profiles, by index, may be placed.
    pub fn of(board: &BoardGeometry, profiles: impl IntoIterator<Item = usize>) -> Self {
        let profiles = profiles.into_iter().filter_map(|mig| board.profiles.get(mig));
        let mut shapes: Vec<_> =
            profiles.flat_map(|p| p.starts.iter().map(|start| (*start, p.size, p.slices))).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let (memory_slices, slices) = (board.memory_slices, board.slices);
        Self { memory_slices, slices, shapes, known: HashMap::new(), covers: HashMap::new() }
    }

    /// The slices that these instances leave over: start, memory slices, compute slices of each.
    pub fn after(&mut self, placed: impl IntoIterator<Item = (i32, i32, i32)>) -> Leftover {
        let (mut used, mut slices) = (0_u32, 0);
        for (start, size, compute) in placed {
            used |= bits(start, size);
            slices += compute;
        }
        if let Some(known) = self.known.get(&(used, slices)) {
            return *known;
        }
        let free = self.memory_slices - used.count_ones().cast_signed();
        let left = self.slices - slices;
        let (memory, compute) = self.best_cover(0, used, left);
        let fits = |s: &&(i32, i32, i32)| used & bits(s.0, s.1) == 0 && s.2 <= left;
        let largest = self.shapes.iter().filter(fits).map(|s| s.1).max().unwrap_or(0);
        let answer = Leftover { memory: free - memory, compute: (left - compute).max(0), largest };
        self.known.insert((used, slices), answer);
        answer
    }

    /// Most memory slices that can still be covered from this one on, and the compute slices used by that.
    fn best_cover(&mut self, at: i32, used: u32, left: i32) -> (i32, i32) {
        if at >= self.memory_slices {
            return (0, 0);
        }
        // slices before this one make no difference any more
        let key = (at, used | bits(0, at), left);
        if let Some(known) = self.covers.get(&key) {
            return *known;
        }
        let mut best = self.best_cover(at + 1, used, left);
        for index in 0..self.shapes.len() {
            let Some((start, size, slices)) = self.shapes.get(index).copied() else { continue };
            if start == at && used & bits(start, size) == 0 && slices <= left {
                let (memory, compute) = self.best_cover(at + size, used, left - slices);
                best = best.max((memory + size, compute + slices));
            }
        }
        self.covers.insert(key, best);
        best
    }
}
