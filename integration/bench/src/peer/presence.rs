//! Tracks which tenants have all objects, from watch events; pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Instant,
};

/// The objects of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    Quota,
    Limits,
    Policy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Namespace, Self::Quota, Self::Limits, Self::Policy];
}

/// An event of one watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The watch restarted; earlier events are void.
    Restarted,
    /// An object of this namespace and name exists.
    Exists(String, String),
    /// It was deleted.
    Deleted(String, String),
}

/// Existing objects of all tenants.
#[derive(Debug)]
pub struct Presence {
    tenants: usize,
    /// Names of objects by kind and namespace; no empty entries.
    here: BTreeMap<Kind, BTreeMap<String, BTreeSet<String>>>,
    deleted: usize,
    complete: Option<Instant>,
}

impl Presence {
    /// For this many tenants, with one namespace each.
    pub fn of(tenants: usize) -> Self {
        Self { tenants, here: BTreeMap::new(), deleted: 0, complete: None }
    }

    /// Applies an event.
    pub fn apply(&mut self, kind: Kind, seen: Change, at: Instant) {
        let here = self.here.entry(kind).or_default();
        match seen {
            Change::Restarted => here.clear(),
            Change::Exists(namespace, name) => {
                here.entry(namespace).or_default().insert(name);
            }
            Change::Deleted(namespace, name) => {
                self.deleted += 1;
                if let Some(names) = here.get_mut(&namespace) {
                    names.remove(&name);
                    if names.is_empty() {
                        here.remove(&namespace);
                    }
                }
            }
        }
        let complete = Kind::ALL.iter().all(|kind| self.count(*kind) == self.tenants);
        // the time restarts when an object is missing: objects can be deleted and recreated
        self.complete = complete.then(|| self.complete.unwrap_or(at));
    }

    /// The time since which every tenant has one of each kind; `None` while one is missing.
    pub fn complete_since(&self) -> Option<Instant> {
        self.complete
    }

    /// Number of deleted objects.
    pub fn deleted(&self) -> usize {
        self.deleted
    }

    fn count(&self, kind: Kind) -> usize {
        self.here.get(&kind).map_or(0, BTreeMap::len)
    }
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = Kind::ALL.map(|kind| format!("{kind:?} {}", self.count(kind)));
        write!(f, "of {} tenants have: {}; {} deleted", self.tenants, counts.join(", "), self.deleted)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn exists(name: &str) -> Change {
        Change::Exists("a".into(), name.into())
    }

    fn deleted(name: &str) -> Change {
        Change::Deleted("a".into(), name.into())
    }

    /// One tenant, complete at the returned time.
    fn complete() -> (Presence, Instant) {
        let (mut presence, start) = (Presence::of(1), Instant::now());
        for kind in Kind::ALL {
            assert_eq!(presence.complete_since(), None);
            presence.apply(kind, exists("x"), start);
        }
        (presence, start)
    }

    #[test]
    fn presence_is_complete_with_one_object_of_each_kind_per_tenant() {
        let (presence, start) = complete();
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(start), 0));
    }

    #[test]
    fn presence_ignores_updates_of_existing_objects() {
        let (mut presence, start) = complete();
        presence.apply(Kind::Quota, exists("x"), start + Duration::from_secs(1));
        presence.apply(Kind::Quota, exists("another"), start + Duration::from_secs(2));
        assert_eq!(presence.complete_since(), Some(start));
    }

    #[test]
    fn presence_counts_a_recreated_object_from_its_recreation() {
        let (mut presence, start) = complete();
        let later = start + Duration::from_secs(3);
        presence.apply(Kind::Quota, deleted("x"), start + Duration::from_secs(1));
        assert_eq!(presence.complete_since(), None);
        presence.apply(Kind::Quota, exists("x"), later);
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(later), 1));
    }

    #[test]
    fn presence_stays_while_a_second_quota_exists() {
        let (mut presence, start) = complete();
        presence.apply(Kind::Quota, exists("y"), start);
        presence.apply(Kind::Quota, deleted("x"), start);
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(start), 1));
    }

    #[test]
    fn presence_survives_a_restarted_watch() {
        let (mut presence, start) = complete();
        presence.apply(Kind::Policy, Change::Restarted, start);
        assert_eq!((presence.complete_since(), presence.deleted()), (None, 0));
        assert_eq!(presence.to_string(), "of 1 tenants have: Namespace 1, Quota 1, Limits 1, Policy 0; 0 deleted");
    }
}
