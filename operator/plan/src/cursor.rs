//! Looking up names in ascending order: in the maps of a large fleet one walk costs a fraction of as many searches.

use std::{borrow::Borrow, cmp::Ordering, collections::btree_map, iter::Peekable};

/// A place in a map by name. It only moves forward.
#[derive(Clone, Debug)]
pub struct Cursor<'a, K, V>(Peekable<btree_map::Iter<'a, K, V>>);

impl<'a, K: Borrow<str>, V> Cursor<'a, K, V> {
    /// The beginning of a map.
    pub fn of(map: &'a btree_map::BTreeMap<K, V>) -> Self {
        Self(map.iter().peekable())
    }

    /// The entry of a name. Names have to be asked for in ascending order: one before the last is not found.
    pub fn entry(&mut self, name: &str) -> Option<(&'a K, &'a V)> {
        while let Some((key, value)) = self.0.peek().copied() {
            match Borrow::<str>::borrow(key).cmp(name) {
                Ordering::Less => drop(self.0.next()),
                Ordering::Equal => return Some((key, value)),
                Ordering::Greater => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursor_finds_what_a_search_finds(
            map in proptest::collection::btree_map("[a-c]{0,2}", any::<u8>(), 0..8),
            mut names in proptest::collection::vec("[a-c]{0,2}", 0..8),
        ) {
            let map: BTreeMap<String, u8> = map;
            names.sort();
            let mut cursor = Cursor::of(&map);
            for name in &names {
                prop_assert_eq!(cursor.entry(name), map.get_key_value(name));
            }
        }
    }
}
