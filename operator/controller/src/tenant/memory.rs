//! What the controller remembers of a tenant between two reconciles. A new leader begins without any of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    decide::budget::Enforced,
    observe::{foreign_access::Access, managed::Managed, refused_controllers::RefusedControllers, versions::Versions},
};

/// Of one tenant.
#[derive(Default)]
pub struct TenantMemory {
    /// Written versions that the caches may not have yet.
    pub versions: Versions,
    /// Begin of a transient state that the status does not report yet.
    pub transient_since: Option<Instant>,
    /// Failed reconciles in a row.
    pub failures: u32,
    /// Controllers whose pods were refused.
    pub refused: RefusedControllers,
    /// Its namespaces.
    pub namespaces: BTreeMap<String, NamespaceMemory>,
}

/// Of one of its namespaces.
#[derive(Default)]
pub struct NamespaceMemory {
    /// Limits that the quota enforced when it was last observed, and when one of them was lowered last.
    pub enforced: Option<(Enforced, Instant)>,
    /// Access of others to an adopted namespace.
    pub foreign_access: Option<ForeignAccess>,
}

/// Role bindings and network policies of others in an adopted namespace.
#[derive(Clone)]
pub struct ForeignAccess {
    /// As they were last read; `None` before the first answer.
    pub found: Option<Vec<Access>>,
    /// When they were last asked for.
    pub tried: Instant,
}

impl TenantMemory {
    /// Is there nothing to remember?
    pub fn is_empty(&self) -> bool {
        let Self { versions, transient_since, failures, refused, namespaces } = self;
        versions.is_empty()
            && transient_since.is_none()
            && *failures == 0
            && refused.is_empty()
            && namespaces.values().all(NamespaceMemory::is_empty)
    }

    /// Forgets namespaces that are none of the tenant's any more.
    pub fn retain<V>(&mut self, namespaces: &BTreeMap<String, V>) {
        self.namespaces.retain(|name, _| namespaces.contains_key(name));
        self.versions.retain(|name| name == Managed::NO_NAMESPACE || namespaces.contains_key(name));
    }

    /// Counts a failed reconcile, or ends the row; returns how many have failed in a row.
    pub fn failed(&mut self, failed: bool) -> u32 {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        self.failures
    }

    /// Time for which the tenant has been in a transient state.
    pub fn transient_for(&mut self) -> Duration {
        self.transient_since.get_or_insert_with(Instant::now).elapsed()
    }
}

impl NamespaceMemory {
    fn is_empty(&self) -> bool {
        let Self { enforced, foreign_access } = self;
        enforced.is_none() && foreign_access.is_none()
    }
}
