//! The sum of all reservations in one word, with a number that changes with every operation: if the word is the same as when it was read, no operation
//! has happened in between.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bits of the number of operations.
const SERIAL_BITS: u32 = 24;
const SERIAL: u64 = (1 << SERIAL_BITS) - 1;
/// Most units: 256 TiB.
pub(crate) const MAX_UNITS: u64 = u64::MAX >> SERIAL_BITS;

/// Units of a word.
pub(crate) fn units(word: u64) -> u64 {
    word >> SERIAL_BITS
}

/// The word after one more operation.
fn next(word: u64, units: u64) -> u64 {
    units.min(MAX_UNITS) << SERIAL_BITS | (word.wrapping_add(1) & SERIAL)
}

/// Adds units if the sum then stays within the limit.
pub(crate) fn add(total: &AtomicU64, wanted: u64, limit: u64) -> bool {
    let sum = |word: u64| units(word).checked_add(wanted).filter(|sum| *sum <= limit.min(MAX_UNITS));
    total.fetch_update(SeqCst, SeqCst, |word| Some(next(word, sum(word)?))).is_ok()
}

/// Subtracts units.
pub(crate) fn subtract(total: &AtomicU64, returned: u64) {
    let less = |word: u64| Some(next(word, units(word).saturating_sub(returned)));
    // the closure returns a word in every case
    let _ = total.fetch_update(SeqCst, SeqCst, less);
}

/// Replaces the sum if no operation has happened since `word` was read.
pub(crate) fn replace(total: &AtomicU64, word: u64, units: u64) -> bool {
    total.compare_exchange(word, next(word, units), SeqCst, SeqCst).is_ok()
}
