//! Which objects of a store belong together, so that nobody who asks for a few goes through all.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Names by what they belong to: namespaces by tenant, pods by namespace. An object is named before its store has it and until after it
/// has gone, and may be another's by now: whoever asks looks again.
#[derive(Clone, Debug, Default)]
pub struct Index(Arc<Mutex<HashMap<String, BTreeSet<String>>>>);

impl Index {
    /// `name` belongs to `whole`, or no longer.
    pub fn note(&self, whole: &str, name: &str, there: bool) {
        let mut names = self.names();
        if there {
            names.entry(whole.to_owned()).or_default().insert(name.to_owned());
        } else if let Some(of) = names.get_mut(whole) {
            of.remove(name);
            if of.is_empty() {
                names.remove(whole);
            }
        }
    }

    /// What belongs to `whole`.
    pub fn of(&self, whole: &str) -> BTreeSet<String> {
        self.names().get(whole).cloned().unwrap_or_default()
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_belongs_together_and_forgets_what_has_gone() {
        let index = Index::default();
        for (whole, name) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a1")] {
            index.note(whole, name, true);
        }
        assert_eq!(index.of("a"), ["a1", "a2"].map(String::from).into());
        index.note("a", "a1", false);
        index.note("b", "b1", false);
        index.note("c", "never", false);
        assert_eq!((index.of("a").len(), index.of("b").len()), (1, 0));
        assert_eq!(index.names().len(), 1, "what has nothing takes no room");
    }
}
