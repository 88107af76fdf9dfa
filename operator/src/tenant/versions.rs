//! Versions of the last writes: a decision waits until the caches have them, or it would write the same again.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::{Duration, Instant},
};

use super::managed::Managed;

/// How long a decision waits for the cache. An object that was deleted meanwhile never appears in the version that was written.
const MAX_LAG: Duration = Duration::from_secs(5);

/// An object of a namespace or of a tenant whose written version is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Written {
    /// A managed object.
    Managed(Managed),
    /// The copy of an image pull secret, by name.
    PullSecret(String),
    /// The `ServiceAccount` of pods that name none.
    ServiceAccount,
    /// The `ClusterRole` by which owners and viewers read their tenant.
    TenantRole,
    /// The binding of that role.
    TenantBinding,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(kind) => kind.fmt(f),
            Self::PullSecret(name) => write!(f, "image pull secret {name}"),
            Self::ServiceAccount => f.write_str("ServiceAccount default"),
            Self::TenantRole => f.write_str("ClusterRole of the tenant"),
            Self::TenantBinding => f.write_str("ClusterRoleBinding of the tenant"),
        }
    }
}

/// Versions that the caches may not have yet, by namespace, or by name for cluster-scoped objects.
#[derive(Default)]
pub struct Versions(HashMap<String, BTreeMap<Written, (u64, Instant)>>);

impl Versions {
    /// Remembers the version that a write produced.
    pub fn wrote(&mut self, namespace: String, object: Written, version: u64) {
        self.0.entry(namespace).or_default().insert(object, (version, Instant::now()));
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
}
