//! Which objects of a store belong together, so that nobody who asks for a few goes through all.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Names by what they belong to: namespaces by tenant, pods by namespace. An object is named before its store has it and until after it
/// has gone, and may be another's by now: whoever asks looks again.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<Mutex<Names>>);

/// Sorted lists without room ahead: there may be very many of them, most with one name.
type Names = HashMap<Box<str>, Vec<Box<str>>>;

impl Index {
    /// `name` belongs to `whole`, or no longer.
    pub fn note(&self, whole: &str, name: &str, there: bool) {
        let mut names = self.names();
        if there {
            let of = names.entry(whole.into()).or_default();
            if let Err(at) = of.binary_search_by(|other| (**other).cmp(name)) {
                // a list that grows far grows by half
                if of.len() == of.capacity() {
                    of.reserve_exact(1 + of.len() / 2);
                }
                of.insert(at, name.into());
            }
        } else if let Some(of) = names.get_mut(whole) {
            if let Ok(at) = of.binary_search_by(|other| (**other).cmp(name)) {
                of.remove(at);
            }
            if of.is_empty() {
                names.remove(whole);
            }
        }
    }

    /// What belongs to `whole`.
    pub fn of(&self, whole: &str) -> BTreeSet<String> {
        self.names().get(whole).into_iter().flatten().map(|name| String::from(&**name)).collect()
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_belongs_together_and_forgets_what_has_gone() {
        let index = Index::default();
        for (whole, name) in [("a", "a1"), ("b", "b1"), ("a", "a3"), ("a", "a2"), ("a", "a1"), ("a", "a0")] {
            index.note(whole, name, true);
        }
        assert_eq!(index.of("a"), ["a0", "a1", "a2", "a3"].map(String::from).into());
        index.note("a", "a1", false);
        index.note("b", "b1", false);
        index.note("c", "never", false);
        assert_eq!((index.of("a").len(), index.of("b").len()), (3, 0));
        assert_eq!(index.names().len(), 1, "what has nothing takes no room");
    }
}
