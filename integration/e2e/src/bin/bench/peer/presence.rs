//! Whether every tenant has all of its objects, as watches report it: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Instant,
};

/// What each tenant is to have one of.
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

/// What one watch has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The watch restarted: earlier events are void.
    Restarted,
    /// An object of this namespace and name is there.
    There(String, String),
    /// It is gone.
    Gone(String, String),
}

/// Which tenants have what.
#[derive(Debug)]
pub struct Presence {
    tenants: usize,
    /// Names of objects by kind and namespace; no namespace without one.
    here: BTreeMap<Kind, BTreeMap<String, BTreeSet<String>>>,
    deleted: usize,
    complete: Option<Instant>,
}

impl Presence {
    /// So many tenants are to come, with one namespace each.
    pub fn of(tenants: usize) -> Self {
        Self { tenants, here: BTreeMap::new(), deleted: 0, complete: None }
    }

    /// Takes note of what a watch has said at a time.
    pub fn note(&mut self, kind: Kind, seen: Seen, at: Instant) {
        let here = self.here.entry(kind).or_default();
        match seen {
            Seen::Restarted => here.clear(),
            Seen::There(namespace, name) => {
                here.entry(namespace).or_default().insert(name);
            }
            Seen::Gone(namespace, name) => {
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
        // it counts from the last time that something was missing: objects may be deleted and made again
        self.complete = complete.then(|| self.complete.unwrap_or(at));
    }

    /// Since when every tenant has one of each kind; none while something is missing.
    pub fn complete_since(&self) -> Option<Instant> {
        self.complete
    }

    /// How many objects were deleted on the way.
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

    fn there(name: &str) -> Seen {
        Seen::There("a".into(), name.into())
    }

    fn gone(name: &str) -> Seen {
        Seen::Gone("a".into(), name.into())
    }

    /// One tenant, complete at the second that is answered.
    fn complete() -> (Presence, Instant) {
        let (mut presence, start) = (Presence::of(1), Instant::now());
        for kind in Kind::ALL {
            assert_eq!(presence.complete_since(), None);
            presence.note(kind, there("x"), start);
        }
        (presence, start)
    }

    #[test]
    fn it_is_complete_when_each_tenant_has_one_of_each_kind() {
        let (presence, start) = complete();
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(start), 0));
    }

    #[test]
    fn changes_of_what_is_there_do_not_move_the_time() {
        let (mut presence, start) = complete();
        presence.note(Kind::Quota, there("x"), start + Duration::from_secs(1));
        presence.note(Kind::Quota, there("another"), start + Duration::from_secs(2));
        assert_eq!(presence.complete_since(), Some(start));
    }

    #[test]
    fn what_is_deleted_and_made_again_counts_from_then_on() {
        let (mut presence, start) = complete();
        let later = start + Duration::from_secs(3);
        presence.note(Kind::Quota, gone("x"), start + Duration::from_secs(1));
        assert_eq!(presence.complete_since(), None);
        presence.note(Kind::Quota, there("x"), later);
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(later), 1));
    }

    #[test]
    fn one_of_two_quotas_may_go() {
        let (mut presence, start) = complete();
        presence.note(Kind::Quota, there("y"), start);
        presence.note(Kind::Quota, gone("x"), start);
        assert_eq!((presence.complete_since(), presence.deleted()), (Some(start), 1));
    }

    #[test]
    fn a_watch_that_begins_anew_forgets_its_kind_and_deletes_nothing() {
        let (mut presence, start) = complete();
        presence.note(Kind::Policy, Seen::Restarted, start);
        assert_eq!((presence.complete_since(), presence.deleted()), (None, 0));
        assert_eq!(presence.to_string(), "of 1 tenants have: Namespace 1, Quota 1, Limits 1, Policy 0; 0 deleted");
    }
}
