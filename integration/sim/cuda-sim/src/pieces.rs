//! The memory of a pool: chunks that it has reserved, and allocations in them. An allocation needs free memory in one piece, so that a pool can grow
//! although it keeps enough unused; a chunk can be given back when nothing is in it.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes by which a pool grows.
pub const CHUNK: u64 = 32 << 20;
/// Offsets of allocations are multiples of this.
const ALIGNMENT: u64 = 512;

/// Chunks and allocations, by their offset in the pool's range of addresses.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// Indexes of chunks.
    chunks: BTreeSet<u64>,
    /// Sizes of allocations in bytes.
    allocated: BTreeMap<u64, u64>,
    used: u64,
}

impl Pieces {
    /// Bytes that the pool has of its device.
    pub fn reserved(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK
    }

    /// Bytes of the allocations.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes by which the pool grows for an allocation.
    pub fn growth(&self, bytes: u64) -> u64 {
        if self.free_piece(bytes).is_some() { 0 } else { bytes.next_multiple_of(CHUNK) }
    }

    /// Allocates, and grows as needed; returns the offset.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let offset = self.free_piece(bytes).unwrap_or_else(|| {
            let count = bytes.div_ceil(CHUNK);
            let fits = |first: &u64| self.chunks.range(*first..*first + count).next().is_none();
            let after = self.chunks.iter().map(|chunk| chunk + 1);
            let first = [0].into_iter().chain(after).find(fits).unwrap_or(0);
            self.chunks.extend(first..first + count);
            first * CHUNK
        });
        self.allocated.insert(offset, bytes);
        self.used += bytes;
        offset
    }

    /// The first free piece of this size.
    fn free_piece(&self, bytes: u64) -> Option<u64> {
        let mut chunks = self.chunks.iter().copied().peekable();
        while let Some(first) = chunks.next() {
            let mut end = first + 1;
            while chunks.next_if_eq(&end).is_some() {
                end += 1;
            }
            let mut at = first * CHUNK;
            for (offset, size) in self.allocated.range(at..end * CHUNK) {
                if offset - at >= bytes {
                    return Some(at);
                }
                at = (offset + size).next_multiple_of(ALIGNMENT);
            }
            if (end * CHUNK).saturating_sub(at) >= bytes {
                return Some(at);
            }
        }
        None
    }

    /// Frees an allocation; the pool keeps its memory.
    pub fn free(&mut self, offset: u64) {
        self.used -= self.allocated.remove(&offset).unwrap_or(0);
    }

    /// Gives back chunks with nothing in them, as long as so many bytes stay; returns the bytes.
    pub fn trim(&mut self, keep: u64) -> u64 {
        let before = self.reserved();
        let in_use: BTreeSet<u64> =
            self.allocated.iter().flat_map(|(offset, size)| offset / CHUNK..(offset + size).div_ceil(CHUNK)).collect();
        let unused: Vec<u64> = self.chunks.difference(&in_use).copied().collect();
        for chunk in unused.into_iter().rev() {
            if self.reserved() - CHUNK < keep {
                break;
            }
            self.chunks.remove(&chunk);
        }
        before - self.reserved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = CHUNK / 4;

    #[test]
    fn pool_grows_although_it_keeps_enough_in_pieces() {
        let mut pieces = Pieces::default();
        let offsets: Vec<u64> = (0..8).map(|_| pieces.allocate(PIECE)).collect();
        assert_eq!((pieces.reserved(), pieces.used()), (2 * CHUNK, 2 * CHUNK));
        for offset in offsets.iter().step_by(2) {
            pieces.free(*offset);
        }
        assert_eq!((pieces.growth(PIECE), pieces.growth(2 * PIECE), pieces.trim(0)), (0, CHUNK, 0));
        offsets.iter().skip(1).step_by(2).take(2).for_each(|offset| pieces.free(*offset));
        assert_eq!(pieces.growth(CHUNK), 0);
        assert_eq!((pieces.trim(2 * CHUNK), pieces.trim(0), pieces.reserved()), (0, CHUNK, CHUNK));
        // the place of the chunk that was given back
        assert_eq!((pieces.allocate(CHUNK), pieces.allocate(2 * CHUNK)), (0, 2 * CHUNK));
    }
}
