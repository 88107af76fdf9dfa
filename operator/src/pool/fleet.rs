//! The fleet as the caches have it at one moment: what the pass decides from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, Partitioner, condition, names};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;

use super::managed;
use crate::{
    cache::{Caches, SlimNode, SlimPod, SlimSlice, Store},
    plan::{self, Cluster, ConflictingOwner, NodeFacts, PodName, TenantFacts},
};
use gputenancy_engine::{
    change::{PodController, PodFacts, Refusal},
    mig_manager::MigConfigs,
    ownership::{DRA_DRIVER, OwnershipSigns, conflicting_owner},
};

/// All objects that a pass looks at.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The catalog.
    pub profiles: Vec<GpuProfile>,
    /// The supply.
    pub pools: Vec<GpuPool>,
    /// The demand; shared with the cache, for there may be very many.
    pub tenants: Vec<Arc<GpuTenant>>,
    /// The agreements, by node.
    pub gpu_nodes: BTreeMap<String, GpuNode>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<SlimNode>>,
    /// Nodes for which NVIDIA's DRA driver publishes devices.
    pub dra: BTreeSet<String>,
    /// Pods that ask for devices, by name.
    pub pods: BTreeMap<PodName, Arc<SlimPod>>,
    /// Layouts that are published for NVIDIA's MIG manager.
    pub mig_configs: MigConfigs,
}

impl Fleet {
    /// Reads the caches.
    pub fn read(caches: &Caches) -> Self {
        let pod =
            |p: Arc<SlimPod>| (PodName { namespace: p.namespace().unwrap_or_default().into(), name: p.name_any() }, p);
        Self {
            profiles: objects(&caches.profiles),
            pools: objects(&caches.pools),
            tenants: caches.tenants.state(),
            gpu_nodes: objects(&caches.gpu_nodes).into_iter().map(|n| (n.name_any(), n)).collect(),
            nodes: caches.nodes.state().into_iter().map(|n| (n.name_any(), n)).collect(),
            dra: caches.slices.iter().flat_map(Store::state).filter_map(|s| dra_node(&s)).collect(),
            pods: caches.pods.state().into_iter().map(pod).collect(),
            mig_configs: mig_configs(&caches.mig_config),
        }
    }

    /// The planner's view. What is being deleted is neither supply nor demand any more.
    pub fn cluster(&self) -> Cluster<'_> {
        self.seen_by_planner(None)
    }

    /// The planner's view at `now`: a node that has been silent for a moment is still supply, so that a short pause of kubelet
    /// does not move anybody's devices.
    pub fn cluster_at(&self, now: Timestamp) -> Cluster<'_> {
        self.seen_by_planner(Some(now))
    }

    fn seen_by_planner(&self, now: Option<Timestamp>) -> Cluster<'_> {
        Cluster {
            profiles: self.profiles.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).collect(),
            pools: self.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).collect(),
            tenants: self
                .tenants
                .iter()
                .filter(|t| t.metadata.deletion_timestamp.is_none())
                .map(|t| facts(t))
                .collect(),
            nodes: self.nodes.iter().map(|(name, node)| self.facts(name, node, now)).collect(),
            priorities: self
                .pods
                .iter()
                .filter_map(|(name, pod)| {
                    Some(((&*name.namespace, &*name.name), pod.spec.priority.filter(|p| *p != 0)?))
                })
                .collect(),
        }
    }

    fn facts<'a>(&'a self, name: &'a str, node: &'a SlimNode, now: Option<Timestamp>) -> NodeFacts<'a> {
        let ready = self.answers(name) || now.is_some_and(|now| self.forgiven_until(name).is_some_and(|end| now < end));
        NodeFacts {
            name,
            labels: node.labels(),
            ready,
            foreign: self.foreign(name, node),
            gpus: self.gpu_nodes.get(name),
        }
    }

    /// Who owns the GPUs of a node beside us.
    fn foreign(&self, name: &str, node: &SlimNode) -> Option<ConflictingOwner> {
        let (labels, annotations) = (node.labels(), node.annotations());
        let signs =
            OwnershipSigns { labels, annotations, dra: self.dra.contains(name), partitioner: Partitioner::Agent };
        // which pool the node is in matters only where there is a sign at all
        conflicting_owner(signs)?;
        conflicting_owner(OwnershipSigns { partitioner: self.partitioner(name, node), ..signs })
    }

    /// Who carves on a node, by the word of its pool. A MIG manager that we have asked is no stranger before it has come to an end.
    fn partitioner(&self, name: &str, node: &SlimNode) -> Partitioner {
        if self.gpu_nodes.get(name).is_some_and(|agreement| managed::is_engaged(agreement, node.labels())) {
            return Partitioner::MigManager;
        }
        let pools: Vec<&GpuPool> = self.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).collect();
        let by = plan::membership(&pools, [(name, node.labels())]);
        let only = by.values().next().and_then(|pools| if let [one] = pools.as_slice() { Some(one) } else { None });
        let pool = only.and_then(|name| pools.iter().find(|p| p.name_any() == name.as_str()));
        pool.map_or_else(Partitioner::default, |p| p.spec.partitioner)
    }

    /// Until when a silent node counts as supply; `None`: it answers, or has never done so.
    fn forgiven_until(&self, name: &str) -> Option<Timestamp> {
        if self.answers(name) {
            return None;
        }
        let node = self.nodes.get(name)?;
        let status = self.gpu_nodes.get(name)?.status.as_ref()?;
        status.observed_generation.filter(|g| *g >= 0)?;
        let of_node = node.status.conditions.iter().find(|c| c.type_ == "Ready" && c.status != "True");
        let of_node = of_node.map(|c| c.last_transition_time.as_ref().map(|t| t.0));
        let of_agent = status.conditions.iter().find(|c| unknown(c)).map(|c| Some(c.last_transition_time.0));
        // the first of both to fall silent counts; a time that nobody has written is long ago
        let since = of_node.into_iter().chain(of_agent).min()??;
        since.checked_add(FORGIVENESS).ok()
    }

    /// When the next silent node stops being supply.
    pub fn forgiveness_ends(&self, now: Timestamp) -> Option<Timestamp> {
        self.nodes.keys().filter_map(|name| self.forgiven_until(name)).filter(|end| *end > now).min()
    }

    /// Is the node ready, and does its agent's last word allow to act on it?
    pub fn answers(&self, node: &str) -> bool {
        let ready = self.nodes.get(node).is_some_and(|n| is_ready(n));
        let status = self.gpu_nodes.get(node).and_then(|n| n.status.as_ref());
        // before its first report an agent has observed generation -1
        ready && status.is_some_and(|s| s.observed_generation.is_some_and(|g| g >= 0) && !is_unknown(&s.conditions))
    }

    /// `status.allocatable` of a node, for extended resources.
    pub fn allocatable(&self, node: &str) -> BTreeMap<String, i64> {
        let Some(node) = self.nodes.get(node) else { return BTreeMap::new() };
        node.status.allocatable.iter().filter_map(|(r, q)| Some((r.clone(), q.0.parse().ok()?))).collect()
    }

    /// Facts about the pods on a node. `deadline` is the one of the change at hand: a notice of another change does not count.
    pub fn pods_on(&self, node: &str, deadline: Option<Timestamp>, refusals: &Refusals) -> BTreeMap<PodName, PodFacts> {
        let here = self.pods.iter().filter(|(_, pod)| pod.spec.node_name.as_deref() == Some(node));
        here.map(|(name, pod)| {
            let uid = pod.uid().unwrap_or_default();
            let notice = pod.annotations().get(names::EVICTION_NOTICE);
            let facts = PodFacts {
                terminating: pod.metadata.deletion_timestamp.is_some(),
                controller: controller(pod),
                do_not_evict: pod.annotations().get(names::DO_NOT_EVICT).is_some_and(|v| v == "true"),
                noticed: notice.is_some_and(|n| deadline.is_none_or(|d| n.starts_with(&d.to_string()))),
                refused: refusals.get(&uid).cloned(),
                uid,
            };
            (name.clone(), facts)
        })
        .collect()
    }
}

fn objects<K: Clone>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|object| (**object).clone()).collect()
}

/// The layouts that are published for NVIDIA's MIG manager; unreadable ones are replaced.
fn mig_configs(store: &Store<ConfigMap>) -> MigConfigs {
    let objects = store.state();
    let text = objects.first().and_then(|c| c.data.as_ref()?.get(names::MIG_CONFIG_KEY));
    text.map(|t| MigConfigs::parse(t)).and_then(Result::ok).unwrap_or_default()
}

/// The part of a tenant that a plan is made from.
pub fn facts(tenant: &GpuTenant) -> TenantFacts<'_> {
    TenantFacts {
        name: tenant.metadata.name.as_deref().unwrap_or_default(),
        namespaces: &tenant.spec.namespaces,
        trust: tenant.spec.trust,
        priority: tenant.spec.priority,
        gpus: &tenant.spec.gpus,
    }
}

/// The node that a slice of NVIDIA's DRA driver speaks of.
pub fn dra_node(slice: &SlimSlice) -> Option<String> {
    slice.spec.node_name.clone().filter(|_| slice.spec.driver == DRA_DRIVER)
}

/// So long a node may be silent before its GPUs are no supply any more.
const FORGIVENESS: SignedDuration = SignedDuration::from_mins(1);

/// Evictions that were refused, by the pod's uid.
pub type Refusals = BTreeMap<String, Refusal>;

/// Text of a notice on a pod: when, why, and where else.
pub fn notice_text(deadline: Timestamp, reason: &str, elsewhere: &str) -> String {
    format!("{deadline}: {reason}; {elsewhere}")
}

fn is_ready(node: &SlimNode) -> bool {
    node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn is_unknown(conditions: &[Condition]) -> bool {
    conditions.iter().any(unknown)
}

fn unknown(ready: &Condition) -> bool {
    ready.type_ == condition::READY && ready.status == "Unknown"
}

fn controller(pod: &SlimPod) -> PodController {
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true));
    match owner.map(|o| o.kind.as_str()) {
        None => PodController::None,
        Some("DaemonSet") => PodController::DaemonSet,
        Some("Node") => PodController::Static,
        Some(_) => PodController::Replaces,
    }
}
