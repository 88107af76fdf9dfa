//! Fencing of quota writes: which quotas no write in flight can change.
//!
//! Every write of a quota carries the resource version that it was decided on, and a fencing token: the leader's term and a sequence number.
//! A write in flight, of this leader or an earlier one, was decided on an older version than the one that this leader has written since, so
//! the API server refuses it. A quota without a token of this term, or with an unanswered write, is not fenced: it is written once more
//! before another quota is raised. A namespace that was created a moment ago may be missing in the cache: until it is there, what its quota
//! grants is unknown.

use std::collections::{BTreeSet, HashMap};

/// Identifies a write: the term of the leader, and the number of the write within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken {
    /// Increases with each leader.
    pub term: u64,
    /// Increases with each write.
    pub sequence: u64,
}

impl std::fmt::Display for FencingToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.sequence)
    }
}

impl FencingToken {
    /// Parses a token; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (term, sequence) = text.split_once('.')?;
        Some(Self { term: term.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

/// The writes of this leader, by tenant and namespace.
#[derive(Clone, Debug, Default)]
pub struct WriteFence {
    term: u64,
    sequence: u64,
    /// By tenant; most have one namespace, none has many.
    tenants: HashMap<Box<str>, NamespaceWrites>,
}

/// By namespace; without spare capacity, because there may be very many tenants.
type NamespaceWrites = Box<[(Box<str>, LastWrite)]>;

#[derive(Clone, Copy, Debug, Default)]
struct LastWrite {
    /// Version that the last answered write produced.
    written: u64,
    /// A write decided on this version has not been answered.
    unanswered: Option<u64>,
    /// The cache has shown the namespace since.
    seen: bool,
}

impl WriteFence {
    /// For the leader of this term.
    pub fn new(term: u64) -> Self {
        Self { term, ..Self::default() }
    }

    /// Begins a write that was decided on this version (0: there was no quota); returns its token.
    pub fn begin(&mut self, tenant: &str, namespace: &str, version: u64) -> FencingToken {
        self.update(tenant, namespace, |write| {
            write.unanswered = Some(write.unanswered.map_or(version, |older| older.max(version)));
        });
        self.sequence += 1;
        FencingToken { term: self.term, sequence: self.sequence }
    }

    /// A write was answered with this version: all earlier ones will be refused.
    pub fn done(&mut self, tenant: &str, namespace: &str, version: u64) {
        self.update(tenant, namespace, |write| (write.written, write.unanswered) = (version, None));
    }

    fn update(&mut self, tenant: &str, namespace: &str, change: impl FnOnce(&mut LastWrite)) {
        let writes = self.tenants.entry(tenant.into()).or_default();
        if let Some((_, write)) = writes.iter_mut().find(|(name, _)| **name == *namespace) {
            return change(write);
        }
        let mut write = LastWrite::default();
        change(&mut write);
        let older = std::mem::take(writes).into_vec();
        *writes = older.into_iter().chain([(namespace.into(), write)]).collect();
    }

    /// Namespaces of a tenant whose quotas were written and that the cache has not shown since. `present`: is the namespace in the cache? A
    /// namespace that was there and is not any more was deleted, and is removed.
    pub fn unseen(&mut self, tenant: &str, present: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let Some(writes) = self.tenants.get_mut(tenant) else { return BTreeSet::new() };
        let deleted = |namespace: &str, write: &LastWrite| write.seen && !present(namespace);
        if writes.iter().any(|(namespace, write)| deleted(namespace, write)) {
            let all = std::mem::take(writes).into_vec().into_iter();
            *writes = all.filter(|(namespace, write)| !deleted(namespace, write)).collect();
        }
        for (namespace, write) in writes.iter_mut() {
            write.seen |= present(namespace);
        }
        writes.iter().filter(|(_, write)| !write.seen).map(|(namespace, _)| String::from(&**namespace)).collect()
    }

    /// Is this version of the quota fenced, so that a decision can rely on it?
    pub fn is_fenced(&self, tenant: &str, namespace: &str, version: u64, token: Option<FencingToken>) -> bool {
        let writes = self.tenants.get(tenant).into_iter().flatten();
        let write = writes.filter(|(name, _)| **name == *namespace).map(|(_, write)| *write).next().unwrap_or_default();
        token.is_some_and(|t| t.term == self.term)
            && version >= write.written
            && write.unanswered.is_none_or(|decided_on| version > decided_on)
    }

    /// Removes a deleted tenant.
    pub fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }

    /// Has a later leader written this version of a quota? A term is the resource version of a Lease, so writes of the term produce higher
    /// versions. A token with a higher term than the quota's version was restored from another cluster's backup, and is ignored.
    pub fn is_superseded(&self, version: u64, token: Option<FencingToken>) -> bool {
        token.is_some_and(|t| self.term < t.term && t.term < version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_is_fenced_once_this_leader_has_written_it_and_the_cache_shows_it() {
        let mut fence = WriteFence::new(7);
        let old = Some(FencingToken { term: 6, sequence: 1 });
        assert!(!fence.is_fenced("t", "a", 10, old) && !fence.is_fenced("t", "a", 10, None));
        let token = Some(fence.begin("t", "a", 10));
        assert!(!fence.is_fenced("t", "a", 10, old));
        fence.done("t", "a", 12);
        assert!(!fence.is_fenced("t", "a", 11, token), "an older version than was written");
        assert!(fence.is_fenced("t", "a", 12, token) && fence.is_fenced("t", "a", 15, token));
    }

    #[test]
    fn unanswered_write_unfences_the_quota_until_its_version_changes() {
        let mut fence = WriteFence::new(7);
        let token = Some(fence.begin("t", "a", 10));
        fence.done("t", "a", 12);
        fence.begin("t", "a", 12);
        assert!(!fence.is_fenced("t", "a", 12, token));
        assert!(fence.is_fenced("t", "a", 13, token), "the write is in it or will be refused");
    }

    #[test]
    fn namespace_is_unseen_from_its_first_write_until_the_cache_shows_it_and_removed_when_deleted() {
        let mut fence = WriteFence::new(7);
        assert!(fence.unseen("t", |_| false).is_empty());
        fence.begin("t", "a", 0);
        assert_eq!(fence.unseen("t", |_| false), ["a".to_owned()].into());
        assert!(fence.unseen("t", |_| true).is_empty());
        assert!(fence.unseen("t", |_| false).is_empty(), "it was deleted");
        fence.begin("t", "a", 0);
        assert_eq!(fence.unseen("t", |_| false).len(), 1, "it was created again");
    }

    #[test]
    fn later_leaders_are_recognised_by_their_tokens() {
        let fence = WriteFence::new(7);
        assert!(
            fence.is_superseded(9, FencingToken::parse("8.1")) && !fence.is_superseded(9, FencingToken::parse("7.9"))
        );
        assert_eq!(
            FencingToken::parse(&FencingToken { term: 8, sequence: 3 }.to_string()),
            Some(FencingToken { term: 8, sequence: 3 })
        );
        assert!(!fence.is_superseded(9, FencingToken::parse("nonsense")));
    }

    #[test]
    fn token_of_another_cluster_neither_supersedes_nor_fences() {
        let fence = WriteFence::new(7);
        let restored = FencingToken::parse("4711.3");
        assert!(!fence.is_superseded(12, restored), "no leader of term 4711 can have written version 12");
        assert!(!fence.is_fenced("t", "a", 12, restored));
    }
}
