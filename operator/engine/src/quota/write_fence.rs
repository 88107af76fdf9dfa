//! Which quotas nobody can change unseen.
//!
//! Every write of a quota carries the version that it was decided on, and a stamp: the leader's term. A write that is still under
//! way, from us or from a leader before us, was decided on an older version than the one that we have stamped since, so the API
//! server refuses it. A quota without our stamp, or one whose last write of ours was not answered, proves nothing yet: it is written
//! once more before another quota is raised. And a namespace that was made a moment ago may not be seen yet: until it is, nobody
//! knows what its quota grants.

use std::collections::{BTreeSet, HashMap};

/// A stamp: the term of the leader that wrote, and the number of the write within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Grows from leader to leader.
    pub term: u64,
    /// Grows from write to write.
    pub sequence: u64,
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.sequence)
    }
}

impl Stamp {
    /// Reads a stamp; `None` when it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (term, sequence) = text.split_once('.')?;
        Some(Self { term: term.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

/// What this leader remembers of its own writes, by tenant and namespace.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    term: u64,
    sequence: u64,
    /// By tenant; most have one namespace, none has many.
    tenants: HashMap<Box<str>, Memories>,
}

/// By namespace; without room ahead, for there may be very many tenants.
type Memories = Box<[(Box<str>, Memory)]>;

#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Version that our last answered write produced.
    written: u64,
    /// A write decided on this version has not been answered.
    doubt: Option<u64>,
    /// The namespace has been seen since.
    seen: bool,
}

impl Fence {
    /// The fence of the leader of this term.
    pub fn new(term: u64) -> Self {
        Self { term, ..Self::default() }
    }

    /// A write begins, decided on this version (0: there was no quota); the stamp that it carries.
    pub fn begin(&mut self, tenant: &str, namespace: &str, version: u64) -> Stamp {
        self.remember(tenant, namespace, |memory| {
            memory.doubt = Some(memory.doubt.map_or(version, |older| older.max(version)));
        });
        self.sequence += 1;
        Stamp { term: self.term, sequence: self.sequence }
    }

    /// A write was answered with this version: every earlier one is void.
    pub fn done(&mut self, tenant: &str, namespace: &str, version: u64) {
        self.remember(tenant, namespace, |memory| (memory.written, memory.doubt) = (version, None));
    }

    fn remember(&mut self, tenant: &str, namespace: &str, change: impl FnOnce(&mut Memory)) {
        let memories = self.tenants.entry(tenant.into()).or_default();
        if let Some((_, memory)) = memories.iter_mut().find(|(name, _)| **name == *namespace) {
            return change(memory);
        }
        let mut memory = Memory::default();
        change(&mut memory);
        let older = std::mem::take(memories).into_vec();
        *memories = older.into_iter().chain([(namespace.into(), memory)]).collect();
    }

    /// Namespaces of a tenant whose quotas were written and that have not been seen since, while these are seen. What has been
    /// seen and is not any more has gone, and is forgotten.
    pub fn unseen(&mut self, tenant: &str, present: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let Some(memories) = self.tenants.get_mut(tenant) else { return BTreeSet::new() };
        let gone = |namespace: &str, memory: &Memory| memory.seen && !present(namespace);
        if memories.iter().any(|(namespace, memory)| gone(namespace, memory)) {
            let all = std::mem::take(memories).into_vec().into_iter();
            *memories = all.filter(|(namespace, memory)| !gone(namespace, memory)).collect();
        }
        for (namespace, memory) in memories.iter_mut() {
            memory.seen |= present(namespace);
        }
        memories.iter().filter(|(_, m)| !m.seen).map(|(namespace, _)| String::from(&**namespace)).collect()
    }

    /// May a decision rely on this version of the quota?
    pub fn is_firm(&self, tenant: &str, namespace: &str, version: u64, stamp: Option<Stamp>) -> bool {
        let memories = self.tenants.get(tenant).into_iter().flatten();
        let memory = memories.filter(|(name, _)| **name == *namespace).map(|(_, memory)| *memory).next();
        let memory = memory.unwrap_or_default();
        stamp.is_some_and(|s| s.term == self.term)
            && version >= memory.written
            && memory.doubt.is_none_or(|decided_on| version > decided_on)
    }

    /// Forgets a tenant that has gone.
    pub fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }

    /// Has a later leader written this version of a quota? A term is the version of a Lease, so what was written in it is of a
    /// later version than that; if not, the stamp comes from another cluster, by way of a backup, and means nothing here.
    pub fn is_outranked(&self, version: u64, stamp: Option<Stamp>) -> bool {
        stamp.is_some_and(|s| self.term < s.term && s.term < version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_firm_once_this_leader_has_written_it_and_seen_that() {
        let mut fence = Fence::new(7);
        let old = Some(Stamp { term: 6, sequence: 1 });
        assert!(!fence.is_firm("t", "a", 10, old) && !fence.is_firm("t", "a", 10, None));
        let stamp = Some(fence.begin("t", "a", 10));
        assert!(!fence.is_firm("t", "a", 10, old));
        fence.done("t", "a", 12);
        assert!(!fence.is_firm("t", "a", 11, stamp), "an older version than was written");
        assert!(fence.is_firm("t", "a", 12, stamp) && fence.is_firm("t", "a", 15, stamp));
    }

    #[test]
    fn a_write_without_an_answer_is_doubted_until_the_quota_has_moved_on() {
        let mut fence = Fence::new(7);
        let stamp = Some(fence.begin("t", "a", 10));
        fence.done("t", "a", 12);
        fence.begin("t", "a", 12);
        assert!(!fence.is_firm("t", "a", 12, stamp));
        assert!(fence.is_firm("t", "a", 13, stamp), "whatever moved it, the write is in it or void");
    }

    #[test]
    fn a_namespace_is_unseen_from_its_first_write_until_it_is_seen_and_forgotten_when_it_goes() {
        let mut fence = Fence::new(7);
        assert!(fence.unseen("t", |_| false).is_empty());
        fence.begin("t", "a", 0);
        assert_eq!(fence.unseen("t", |_| false), ["a".to_owned()].into());
        assert!(fence.unseen("t", |_| true).is_empty());
        assert!(fence.unseen("t", |_| false).is_empty(), "it has gone");
        fence.begin("t", "a", 0);
        assert_eq!(fence.unseen("t", |_| false).len(), 1, "and is made again");
    }

    #[test]
    fn later_leaders_are_recognised_by_their_stamps() {
        let fence = Fence::new(7);
        assert!(fence.is_outranked(9, Stamp::parse("8.1")) && !fence.is_outranked(9, Stamp::parse("7.9")));
        assert_eq!(Stamp::parse(&Stamp { term: 8, sequence: 3 }.to_string()), Some(Stamp { term: 8, sequence: 3 }));
        assert!(!fence.is_outranked(9, Stamp::parse("nonsense")));
    }

    #[test]
    fn a_stamp_of_another_cluster_outranks_nobody_and_makes_nothing_firm() {
        let fence = Fence::new(7);
        let restored = Stamp::parse("4711.3");
        assert!(!fence.is_outranked(12, restored), "no leader of version 4711 can have written version 12");
        assert!(!fence.is_firm("t", "a", 12, restored));
    }
}
