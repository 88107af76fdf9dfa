//! What passes share, and what is remembered of each virtual cluster between them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use gputenancy_cluster::events::{EventType, Notice, Publisher};
use gputenancy_crds::{GpuTenant, VirtualClusterUpgrade, reasons::Reason};
use kube::{Client, Resource as _, ResourceExt as _};

use crate::{
    args::{Charts, Standard, Values},
    cluster::Cluster,
    decide::{Settled, conditions::Progress},
    inside::{
        connect::Admin,
        nodes::{self, Amounts, Requests},
        priorities::Unserved,
    },
    metrics::Metrics,
    render::objects::Object,
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
    pub cluster: Cluster,
    /// The program `helm`.
    pub helm: PathBuf,
    /// The program's metrics.
    pub metrics: Arc<Metrics>,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is known of one virtual cluster between passes; without it, as after a restart, all is found again.
#[derive(Clone, Default)]
pub struct Memory {
    /// The last rendering, by all that it depends on.
    pub rendered: Option<(String, Arc<Vec<Object>>)>,
    /// The objects of this rendering are all applied.
    pub complete: Option<String>,
    /// See [`Settled`].
    pub settled: Settled,
    /// A client of its API server, and the credentials that it was made with.
    pub inside: Option<(Admin, Client)>,
    /// What synced pods request, as last listed.
    pub requests: Requests,
    /// The catalog that was last found or written inside.
    pub catalog: Option<String>,
    /// Its API server does not serve the policy for `PriorityClasses`.
    pub unserved: Option<Unserved>,
    /// Input and time of the last pass. This program's own writes of the status start no other.
    pub last: Option<(Input, Instant)>,
    /// When the last event about `Ready` was published, and its reason.
    pub announced: Option<(Instant, Reason)>,
    /// The upgrade that is in progress or has failed, as last written into the status.
    pub upgrade: Option<VirtualClusterUpgrade>,
    /// Host pods without a pod inside, by UID, since when.
    pub orphans: BTreeMap<String, Instant>,
    /// UIDs of pods inside that have their event about waiting for a device.
    pub waiting: BTreeSet<String>,
    /// UIDs of suspicious host pods that an event has named.
    pub suspicious: BTreeSet<String>,
    /// Passes in succession in which something inside did not answer or refused.
    pub failures: u32,
    /// Generation, time and result of the last complete pass.
    pub full: Option<(Option<i64>, Instant, Progress)>,
}

/// What a pass depends on besides the API servers.
#[derive(Clone, PartialEq)]
pub struct Input {
    /// Generation of the tenant.
    pub generation: Option<i64>,
    /// Its deletion was requested.
    pub deleted: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Its budget by resource.
    pub budget: Amounts,
}

impl Input {
    /// Of a tenant.
    pub fn of(tenant: &GpuTenant) -> Self {
        Self {
            generation: tenant.metadata.generation,
            deleted: tenant.metadata.deletion_timestamp.is_some(),
            finalizers: tenant.finalizers().to_vec(),
            budget: nodes::budget(tenant),
        }
    }
}

impl Context {
    /// The state at the start.
    pub fn new(
        client: Client,
        publisher: Publisher,
        (charts, values): (Charts, Values),
        standard: Standard,
        helm: PathBuf,
        metrics: Arc<Metrics>,
    ) -> Self {
        let cluster = Cluster::new(client.clone());
        Self { client, publisher, charts, values, standard, cluster, helm, metrics, memory: Mutex::default() }
    }

    /// Forgets a virtual cluster that no longer exists.
    pub fn forget(&self, name: &str) {
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
