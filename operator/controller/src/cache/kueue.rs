//! The kinds of Kueue that the operator writes or reads.

use gputenancy_cluster::watch::{Change, Store, Watch};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};

/// API group and version: served by Kueue 0.15 and later.
pub const API_VERSION: &str = "kueue.x-k8s.io/v1beta2";

/// A kind of Kueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Levels of nodes.
    Topology,
    /// The devices of a pool.
    ResourceFlavor,
    /// The controller that must agree before a job starts.
    AdmissionCheck,
    /// Queues that borrow from each other.
    Cohort,
    /// The limits of a team.
    ClusterQueue,
    /// The queue in a namespace.
    LocalQueue,
    /// A job as Kueue sees it.
    Workload,
}

impl Kind {
    /// Those that the operator writes, in the order in which they are created: each refers to earlier ones only.
    pub const WRITTEN: [Self; 6] = [
        Self::Topology,
        Self::ResourceFlavor,
        Self::AdmissionCheck,
        Self::Cohort,
        Self::ClusterQueue,
        Self::LocalQueue,
    ];

    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Topology => "Topology",
            Self::ResourceFlavor => "ResourceFlavor",
            Self::AdmissionCheck => "AdmissionCheck",
            Self::Cohort => "Cohort",
            Self::ClusterQueue => "ClusterQueue",
            Self::LocalQueue => "LocalQueue",
            Self::Workload => "Workload",
        }
    }

    /// Plural name in the API.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Topology => "topologies",
            Self::ResourceFlavor => "resourceflavors",
            Self::AdmissionCheck => "admissionchecks",
            Self::Cohort => "cohorts",
            Self::ClusterQueue => "clusterqueues",
            Self::LocalQueue => "localqueues",
            Self::Workload => "workloads",
        }
    }

    /// The type for dynamic requests.
    pub fn resource(self) -> ApiResource {
        let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.name()), self.plural())
    }
}

/// The objects of Kueue. Empty while the API server does not serve the kinds.
#[derive(Clone)]
pub struct KueueCaches {
    /// Objects of the kinds that the operator writes, with theirs of others.
    stores: [(Kind, Store<DynamicObject>); 6],
    /// Jobs as Kueue sees them.
    pub workloads: Store<DynamicObject>,
}

impl KueueCaches {
    /// Starts the watches.
    pub fn start<F: FnMut(Change<DynamicObject>) + Send + 'static>(client: &Client, changed: impl Fn() -> F) -> Self {
        let start = |kind: Kind| {
            let watch = Watch::new(kind.plural(), Api::all_with(client.clone(), &kind.resource()), keep);
            watch.start_while_served(client.clone(), API_VERSION, changed())
        };
        Self { stores: Kind::WRITTEN.map(|kind| (kind, start(kind))), workloads: start(Kind::Workload) }
    }

    /// The objects of a kind.
    pub fn of(&self, kind: Kind) -> Vec<std::sync::Arc<DynamicObject>> {
        self.stores.iter().filter(|(of, _)| *of == kind).flat_map(|(_, store)| store.state()).collect()
    }

    /// Waits until every store holds a first list.
    pub async fn ready(&self, waiting: &impl Fn(&'static str)) {
        for (_, store) in &self.stores {
            store.wait_until_ready(waiting).await;
        }
        self.workloads.wait_until_ready(waiting).await;
    }
}

/// Drops what is not compared.
#[expect(clippy::unnecessary_wraps, reason = "a watch may leave objects out")]
fn keep(mut object: DynamicObject) -> Option<DynamicObject> {
    object.managed_fields_mut().clear();
    if let Some(spec) = object.data.get_mut("spec").and_then(serde_json::Value::as_object_mut) {
        // of a job its pods, which nothing here needs
        spec.remove("podSets");
    }
    object.annotations_mut().remove("kubectl.kubernetes.io/last-applied-configuration");
    Some(object)
}
