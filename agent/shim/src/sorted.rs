//! A map that is sorted by its key and grows by mapping memory, not by the program's allocator, which may be in the middle of a call of its own.
//! For tens of thousands of entries: an insert moves those behind it.

use std::ptr::NonNull;

use crate::anonymous::map;

/// Entries at first: one page of memory with small values.
const FIRST: usize = 128;

/// Values by key.
pub struct Sorted<V: Copy> {
    entries: NonNull<(u64, V)>,
    capacity: usize,
    used: usize,
}

// SAFETY: it is the only owner of its memory.
unsafe impl<V: Copy + Send> Send for Sorted<V> {}

impl<V: Copy> Sorted<V> {
    /// No entries.
    pub const EMPTY: Self = Self { entries: NonNull::dangling(), capacity: 0, used: 0 };

    fn entries(&self) -> &[(u64, V)] {
        // SAFETY: the first `used` entries have been written; none of the empty map.
        unsafe { std::slice::from_raw_parts(self.entries.as_ptr(), self.used) }
    }

    fn entries_mut(&mut self) -> &mut [(u64, V)] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.entries.as_ptr(), self.used) }
    }

    /// The value of a key.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let at = self.entries().binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.entries_mut().get_mut(at).map(|(_, value)| value)
    }

    /// All values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries_mut().iter_mut().map(|(_, value)| value)
    }

    /// Sets the value of a key; false without memory for it.
    pub fn insert(&mut self, key: u64, value: V) -> bool {
        let at = match self.entries().binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => {
                if let Some(entry) = self.entries_mut().get_mut(at) {
                    entry.1 = value;
                }
                return true;
            }
            Err(at) => at,
        };
        if self.used == self.capacity && !self.grow() {
            return false;
        }
        // SAFETY: `at` is at most `used`, which is less than `capacity`: the entries behind it move by one place within the mapped memory.
        unsafe {
            let place = self.entries.as_ptr().add(at);
            place.copy_to(place.add(1), self.used.saturating_sub(at));
            place.write((key, value));
        }
        self.used = self.used.saturating_add(1);
        true
    }

    /// Removes a key.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let at = self.entries().binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.remove_at(at).map(|(_, value)| value)
    }

    /// Removes the first entry with a key in this range.
    pub fn take_first(&mut self, keys: std::ops::Range<u64>) -> Option<(u64, V)> {
        let at = self.entries().partition_point(|(key, _)| *key < keys.start);
        self.entries().get(at).filter(|(key, _)| *key < keys.end)?;
        self.remove_at(at)
    }

    fn remove_at(&mut self, at: usize) -> Option<(u64, V)> {
        let entry = *self.entries().get(at)?;
        self.entries_mut().get_mut(at..)?.rotate_left(1);
        self.used = self.used.saturating_sub(1);
        Some(entry)
    }

    fn grow(&mut self) -> bool {
        let capacity = if self.capacity == 0 { FIRST } else { self.capacity.saturating_mul(2) };
        let Some(entries) = map::<(u64, V)>(capacity) else { return false };
        // SAFETY: `used` entries of memory that is larger than the old one, and apart from it.
        unsafe { self.entries.as_ptr().copy_to_nonoverlapping(entries.as_ptr(), self.used) };
        let old = std::mem::replace(self, Self { entries, capacity, used: self.used });
        if old.capacity > 0 {
            // SAFETY: mapped with this size, and not used any more.
            unsafe { libc::munmap(old.entries.as_ptr().cast(), old.capacity.saturating_mul(size_of::<(u64, V)>())) };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn map_agrees_with_one_of_the_standard_library_over_many_changes() {
        let (mut sorted, mut expected) = (Sorted::EMPTY, BTreeMap::new());
        let mut random = 1_u64;
        for step in 0..100_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (random >> 40) % 1000;
            match random >> 20 & 7 {
                0..4 => {
                    assert!(sorted.insert(key, step));
                    expected.insert(key, step);
                }
                4 | 5 => assert_eq!(sorted.remove(key), expected.remove(&key), "step {step}"),
                6 => assert_eq!(sorted.get_mut(key), expected.get_mut(&key), "step {step}"),
                _ => {
                    let first = expected.range(key..key + 50).next().map(|(key, value)| (*key, *value));
                    if let Some((key, _)) = first {
                        expected.remove(&key);
                    }
                    assert_eq!(sorted.take_first(key..key + 50), first, "step {step}");
                }
            }
        }
        assert!(expected.len() > FIRST, "it has grown");
        assert!(sorted.values_mut().map(|value| *value).eq(expected.into_values()));
        while sorted.take_first(0..u64::MAX).is_some() {}
        assert_eq!(sorted.used, 0);
    }
}
