//! What this process has allocated: size by pointer or handle. Sixty-four tables, so that threads seldom meet; each grows by mapping memory,
//! not by the program's allocator.

use std::ptr::NonNull;

use crate::{anonymous::map, lock::Lock};

/// Number of tables.
const TABLES: usize = 64;
/// Entries of a table at first: one page of memory.
const FIRST: usize = 256;

/// Which function gave the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleKind {
    /// A pointer of a plain, pitched or managed allocation.
    Pointer,
    /// An array.
    Array,
    /// The context of an array, instead of its size.
    ContextOfArray,
}

/// Remembers a size; returns the size that was known for the number before: that allocation is gone without being freed. Without memory for the table
/// the size is forgotten, and stays counted until the process ends.
pub fn remember(kind: HandleKind, number: u64, bytes: u64) -> Option<u64> {
    let key = key(kind, number)?;
    table(key).with(|table| table.insert(key, bytes))
}

/// Removes a size.
pub fn take(kind: HandleKind, number: u64) -> Option<u64> {
    let key = key(kind, number)?;
    table(key).with(|table| table.remove(key))
}

/// Removes the size of a pointer if this is true. It is called under the lock of the table: a thread that gets the same address again remembers it
/// before or after, and not in between.
pub fn take_pointer_if(pointer: u64, gone: impl FnOnce(u64) -> bool) -> Taken {
    let Some(key) = key(HandleKind::Pointer, pointer) else { return Taken::Unknown };
    table(key).with(|table| match table.get(key) {
        None => Taken::Unknown,
        Some(_) if !gone(pointer) => Taken::Stays,
        Some(bytes) => {
            table.remove(key);
            Taken::Gone(bytes)
        }
    })
}

/// What is known of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing.
    Unknown,
    /// It is still allocated.
    Stays,
    /// It was removed, with its size in bytes.
    Gone(u64),
}

/// Removes the pointers for which this is true, and returns the sum of their sizes. It is called under the lock of a table, as above.
pub fn take_pointers(gone: impl Fn(u64) -> bool) -> u64 {
    let take = |table: &mut Table| {
        table.remove_all(|key, _| key & TAG == POINTER && gone(key >> TAG_BITS), |_, _, bytes| bytes)
    };
    HELD.iter().fold(0, |sum, table| sum.saturating_add(table.with(take)))
}

/// Removes the arrays of a context that is gone, and returns the sum of their sizes.
pub fn take_arrays(context: u64) -> u64 {
    let take = |table: &mut Table| {
        let of_context = |key: u64, value: u64| key & TAG == CONTEXT_OF_ARRAY && value == context;
        // the size is in the same table, because the kind does not choose it
        table.remove_all(of_context, |table, key, _| table.remove(key & !TAG | ARRAY).unwrap_or(0))
    };
    HELD.iter().fold(0, |sum, table| sum.saturating_add(table.with(take)))
}

/// Forgets everything, in a child process after `fork`: it has none of the parent's allocations.
pub fn forget() {
    for table in &HELD {
        table.reset(Table::EMPTY);
    }
}

/// Lower bits of a key.
const TAG_BITS: u32 = 2;
const TAG: u64 = 3;
const POINTER: u64 = 1;
const ARRAY: u64 = 2;
const CONTEXT_OF_ARRAY: u64 = 3;

/// The number with its kind; pointers are below 2^57, and the address of an object, too.
fn key(kind: HandleKind, number: u64) -> Option<u64> {
    let tag = match kind {
        HandleKind::Pointer => POINTER,
        HandleKind::Array => ARRAY,
        HandleKind::ContextOfArray => CONTEXT_OF_ARRAY,
    };
    Some(number.checked_shl(TAG_BITS)? | tag).filter(|_| number != 0 && number.leading_zeros() >= TAG_BITS)
}

static HELD: [Lock<Table>; TABLES] = [const { Lock::new(Table::EMPTY) }; TABLES];

fn table(key: u64) -> &'static Lock<Table> {
    let at = usize::try_from(mix(key & !TAG) >> 58).unwrap_or(0);
    let [first, ..] = &HELD;
    HELD.get(at).unwrap_or(first)
}

/// A hash with good upper bits: keys are addresses with equal lower bits.
fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Open addressing; key 0 is an empty place. At most three quarters are used.
struct Table {
    entries: NonNull<(u64, u64)>,
    capacity: usize,
    used: usize,
}

// SAFETY: it is the only owner of its memory.
unsafe impl Send for Table {}

impl Table {
    const EMPTY: Self = Self { entries: NonNull::dangling(), capacity: 0, used: 0 };

    fn entries(&mut self) -> &mut [(u64, u64)] {
        // SAFETY: `capacity` entries that were mapped, of which any bytes are a value; none for the empty table.
        unsafe { std::slice::from_raw_parts_mut(self.entries.as_ptr(), self.capacity) }
    }

    /// Index of the place where a key is, or would be.
    fn place(&mut self, key: u64) -> Option<usize> {
        let mask = self.capacity.checked_sub(1)?;
        let mut at = usize::try_from(mix(key)).unwrap_or(0) & mask;
        loop {
            match self.entries().get(at)? {
                (0, _) => return Some(at),
                (found, _) if *found == key => return Some(at),
                _ => at = at.wrapping_add(1) & mask,
            }
        }
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let at = self.place(key)?;
        self.entries().get(at).filter(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    /// Removes the entries for which this is true, and returns the sum of their sizes as `bytes` finds them, which may remove more. An entry that
    /// moves to the place of one that was removed is examined there, or in the next pass.
    fn remove_all(&mut self, which: impl Fn(u64, u64) -> bool, bytes: impl Fn(&mut Self, u64, u64) -> u64) -> u64 {
        let mut sum = 0_u64;
        loop {
            let (before, mut at) = (self.used, 0_usize);
            while let Some((key, value)) = self.entries().get(at).copied() {
                if key == 0 || !which(key, value) {
                    at = at.saturating_add(1);
                    continue;
                }
                self.remove(key);
                sum = sum.saturating_add(bytes(self, key, value));
            }
            if self.used == before {
                return sum;
            }
        }
    }

    fn insert(&mut self, key: u64, bytes: u64) -> Option<u64> {
        if self.used.saturating_mul(4) >= self.capacity.saturating_mul(3) && !self.grow() {
            return None;
        }
        let at = self.place(key)?;
        let entry = self.entries().get_mut(at)?;
        let (before, old) = std::mem::replace(entry, (key, bytes));
        if before == key {
            return Some(old);
        }
        self.used = self.used.saturating_add(1);
        None
    }

    /// Removes a key, and moves up the entries after it that would not be found otherwise.
    fn remove(&mut self, key: u64) -> Option<u64> {
        let at = self.place(key)?;
        let (found, bytes) = *self.entries().get(at)?;
        if found != key {
            return None;
        }
        let mask = self.capacity.checked_sub(1)?;
        let (mut hole, mut next) = (at, at);
        loop {
            next = next.wrapping_add(1) & mask;
            let (key, bytes) = *self.entries().get(next)?;
            if key == 0 {
                break;
            }
            let preferred = usize::try_from(mix(key)).unwrap_or(0) & mask;
            // an entry may fill the hole if its first place is not between the hole and itself
            if next.wrapping_sub(preferred) & mask >= next.wrapping_sub(hole) & mask {
                *self.entries().get_mut(hole)? = (key, bytes);
                hole = next;
            }
        }
        *self.entries().get_mut(hole)? = (0, 0);
        self.used = self.used.saturating_sub(1);
        Some(bytes)
    }

    fn grow(&mut self) -> bool {
        let capacity = if self.capacity == 0 { FIRST } else { self.capacity.saturating_mul(2) };
        let Some(entries) = map(capacity) else { return false };
        let mut larger = Self { entries, capacity, used: 0 };
        for (key, bytes) in self.entries().iter().copied().filter(|(key, _)| *key != 0) {
            larger.insert(key, bytes);
        }
        let old = std::mem::replace(self, larger);
        if old.capacity > 0 {
            // SAFETY: mapped with this size, and not used any more.
            unsafe { libc::munmap(old.entries.as_ptr().cast(), old.capacity.saturating_mul(size_of::<(u64, u64)>())) };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn table_agrees_with_a_map_over_many_inserts_and_removals() {
        let (mut table, mut expected) = (Table::EMPTY, BTreeMap::new());
        let mut random = 1_u64;
        for step in 0..200_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // few different keys, so that many are removed and inserted again
            let key = ((random >> 40) % 3000 + 1) << 8 | 1;
            if random >> 20 & 1 == 0 {
                assert_eq!(table.insert(key, step), expected.insert(key, step));
            } else {
                assert_eq!(table.remove(key), expected.remove(&key), "step {step}");
            }
            assert_eq!(table.used, expected.len());
        }
        for (key, bytes) in expected {
            assert_eq!(table.remove(key), Some(bytes));
        }
    }

    #[test]
    fn pointers_and_arrays_with_the_same_number_are_different() {
        assert_eq!((remember(HandleKind::Pointer, 0x7f00, 1), remember(HandleKind::Array, 0x7f00, 2)), (None, None));
        assert_eq!((take(HandleKind::Array, 0x7f00), take(HandleKind::Array, 0x7f00)), (Some(2), None));
        assert_eq!(take(HandleKind::Pointer, 0x7f00), Some(1));
        assert_eq!(take(HandleKind::Pointer, 0), None);
    }

    #[test]
    fn arrays_end_with_their_context_and_a_pointer_goes_only_if_the_driver_does_not_know_it() {
        for number in 0x100..0x900_u64 {
            remember(HandleKind::Array, number << 30, 1);
            remember(HandleKind::ContextOfArray, number << 30, number % 2);
        }
        assert_eq!((take_arrays(1), take_arrays(1), take_arrays(0)), (0x400, 0, 0x400));
        assert_eq!(take(HandleKind::Array, 0x100 << 30), None);
        remember(HandleKind::Pointer, 0x77 << 40, 5);
        assert_eq!(take_pointer_if(0x77 << 40, |_| false), Taken::Stays);
        assert_eq!(take_pointer_if(0x77 << 40, |_| true), Taken::Gone(5));
        assert_eq!(take_pointer_if(0x77 << 40, |_| true), Taken::Unknown);
    }

    #[test]
    fn pointers_that_are_gone_are_taken_and_the_others_stay() {
        for number in 0x10..0x20_u64 {
            remember(HandleKind::Pointer, number << 32, number);
        }
        remember(HandleKind::Array, 0x10 << 32, 7);
        assert_eq!(take_pointers(|pointer| pointer >> 32 < 0x12), 0x10 + 0x11);
        assert_eq!(take(HandleKind::Pointer, 0x10 << 32), None);
        assert_eq!(take(HandleKind::Pointer, 0x12 << 32), Some(0x12));
        assert_eq!(take(HandleKind::Array, 0x10 << 32), Some(7));
        assert_eq!(remember(HandleKind::Pointer, 0x13 << 32, 1), Some(0x13), "an address that the driver gives again");
    }
}
