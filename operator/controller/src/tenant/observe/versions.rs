//! Versions of the last writes: a decision waits until the caches have them, or it would write the same again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::managed::Managed;

/// How long a decision waits for the cache. An object that was deleted meanwhile never appears in the version that was written.
const MAX_LAG: Duration = Duration::from_secs(5);

/// An object of a tenant whose written version is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Written {
    /// A managed object.
    Managed(Managed),
    /// The copy of an image pull secret, by name.
    PullSecret(String),
    /// The `ServiceAccount` of pods that name none.
    ServiceAccount,
}

impl Written {
    /// Type, name and namespace, for messages.
    pub fn describe(&self, tenant: &str, namespace: &str) -> String {
        match self {
            Self::Managed(kind) => kind.describe(tenant, namespace),
            Self::PullSecret(name) => format!("image pull secret {name} of namespace {namespace}"),
            Self::ServiceAccount => format!("ServiceAccount default of namespace {namespace}"),
        }
    }
}

/// Versions that the caches may not have yet, by namespace.
#[derive(Default)]
pub struct Versions(BTreeMap<String, BTreeMap<Written, (u64, Instant)>>);

impl Versions {
    /// Have the caches all versions?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Remembers the version that a write produced.
    pub fn wrote(&mut self, namespace: String, object: Written, version: u64) {
        self.0.entry(namespace).or_default().insert(object, (version, Instant::now()));
    }

    /// Forgets what was written into other namespaces. A namespace that was just created may be missing in the cache.
    pub fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        let recent =
            |objects: &BTreeMap<Written, (u64, Instant)>| objects.values().any(|(_, since)| since.elapsed() < MAX_LAG);
        self.0.retain(|namespace, objects| is_known(namespace) || recent(objects));
    }

    /// An object of this namespace whose written version the caches do not have yet; `cached`: the version that they have.
    pub fn lagging(&mut self, namespace: &str, cached: impl Fn(&Written) -> Option<u64>) -> Option<Written> {
        let objects = self.0.get_mut(namespace)?;
        objects.retain(|object, (version, since)| {
            since.elapsed() < MAX_LAG && cached(object).is_none_or(|cached| cached < *version)
        });
        let lagging = objects.keys().next().cloned();
        if lagging.is_none() {
            self.0.remove(namespace);
        }
        lagging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_lag_until_the_cache_has_the_written_version() {
        let (mut versions, quota) = (Versions::default(), Written::Managed(Managed::Quota));
        versions.wrote("a".into(), quota.clone(), 7);
        assert_eq!(versions.lagging("b", |_| None), None);
        for cached in [None, Some(6)] {
            assert_eq!(versions.lagging("a", |_| cached), Some(quota.clone()));
        }
        assert_eq!(versions.lagging("a", |_| Some(8)), None);
        assert!(versions.0.is_empty(), "a confirmed version is not kept");
    }

    #[test]
    fn versions_of_a_deleted_namespace_are_forgotten_and_of_a_new_one_kept() {
        let Some(long_ago) = Instant::now().checked_sub(MAX_LAG) else { return };
        let written = |since| BTreeMap::from([(Written::ServiceAccount, (7, since))]);
        let all = [("deleted", long_ago), ("known", long_ago), ("new", Instant::now())];
        let mut versions = Versions(all.map(|(name, since)| (name.to_owned(), written(since))).into());
        versions.retain(|name| name == "known");
        assert_eq!(versions.0.into_keys().collect::<Vec<_>>(), ["known", "new"]);
    }
}
