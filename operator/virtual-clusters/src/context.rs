//! What reconciles share.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::channel::mpsc::UnboundedSender;
use gputenancy_cluster::events::{EventType, Notice, Publisher};
use gputenancy_crds::{GpuTenant, reasons::Reason};
use kube::{Client, Resource as _};

use crate::{
    args::{Charts, Standard, Values},
    host_api::HostApi,
    memory::Memory,
    metrics::Metrics,
    watches::{Scope, Watches},
};

/// What all virtual clusters share.
pub struct Context {
    /// Client of this cluster.
    pub client: Client,
    /// Publishes events.
    pub publisher: Publisher,
    /// The supported versions.
    pub charts: Charts,
    /// Values of the platform.
    pub values: Values,
    /// What every tenant has alike.
    pub standard: Standard,
    /// What is read of this cluster for all of them.
    pub host_api: HostApi,
    /// The program `helm`.
    pub helm: PathBuf,
    /// The program's metrics.
    pub metrics: Arc<Metrics>,
    memory: Mutex<HashMap<String, Memory>>,
    watches: Mutex<HashMap<String, Arc<Watches>>>,
    triggers: UnboundedSender<String>,
}

impl Context {
    /// The state at the start. `triggers` gets the name of each tenant in whose namespace something has changed.
    pub fn new(
        client: Client,
        publisher: Publisher,
        (charts, values): (Charts, Values),
        standard: Standard,
        helm: PathBuf,
        metrics: Arc<Metrics>,
        triggers: UnboundedSender<String>,
    ) -> Self {
        let host_api = HostApi::new(client.clone());
        Self {
            client,
            publisher,
            charts,
            values,
            standard,
            host_api,
            helm,
            metrics,
            memory: Mutex::default(),
            watches: Mutex::default(),
            triggers,
        }
    }

    /// The watches of a namespace, which are started if there are none.
    pub fn watch(&self, scope: Scope) -> Arc<Watches> {
        let mut watches = self.watches();
        if let Some(present) = watches.get(&scope.tenant).filter(|present| present.are_of(&scope)) {
            return present.clone();
        }
        let name = scope.tenant.clone();
        let started = Arc::new(Watches::start(&self.client, scope, &self.triggers));
        watches.insert(name, started.clone());
        started
    }

    /// Ends the watches of the tenant's namespace.
    pub fn unwatch(&self, name: &str) {
        self.watches().remove(name);
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<String, Arc<Watches>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a virtual cluster that no longer exists.
    pub fn forget(&self, name: &str) {
        self.unwatch(name);
        self.memory().remove(name);
        self.metrics.forget(name);
    }

    /// What is remembered, by tenant.
    pub fn memory(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event about the tenant.
    pub async fn publish(&self, tenant: &GpuTenant, event_type: EventType, reason: Reason, note: String) {
        let notice = Notice { regarding: tenant.object_ref(&()), event_type, reason, action: "Reconcile".into(), note };
        self.publisher.publish(notice).await;
    }
}
