//! The fleet as the caches have it at one moment: what the pass decides from.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, condition, names};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;

use crate::{
    cache::{Caches, SlimNode, SlimPod, valid},
    change::{Controller, PodFacts, Refusal},
    migmanager::Configs,
    plan::{Cluster, NodeFacts, PodName},
};

/// All objects that a pass looks at.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The catalog.
    pub profiles: Vec<GpuProfile>,
    /// The supply.
    pub pools: Vec<GpuPool>,
    /// The demand.
    pub tenants: Vec<GpuTenant>,
    /// The agreements, by node.
    pub gpu_nodes: BTreeMap<String, GpuNode>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<SlimNode>>,
    /// Pods that ask for devices, by name.
    pub pods: BTreeMap<PodName, Arc<SlimPod>>,
    /// Layouts that are published for NVIDIA's MIG manager.
    pub mig_configs: Configs,
}

impl Fleet {
    /// Reads the caches.
    pub fn read(caches: &Caches) -> Self {
        let pod = |p: Arc<SlimPod>| (PodName { namespace: p.namespace().unwrap_or_default(), name: p.name_any() }, p);
        Self {
            profiles: valid(&caches.profiles),
            pools: valid(&caches.pools),
            tenants: valid(&caches.tenants),
            gpu_nodes: valid(&caches.gpu_nodes).into_iter().map(|n| (n.name_any(), n)).collect(),
            nodes: caches.nodes.state().into_iter().map(|n| (n.name_any(), n)).collect(),
            pods: caches.pods.state().into_iter().map(pod).collect(),
            mig_configs: caches.mig_configs(),
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
            tenants: self.tenants.iter().filter(|t| t.metadata.deletion_timestamp.is_none()).collect(),
            nodes: self.nodes.iter().map(|(name, node)| self.facts(name, node, now)).collect(),
        }
    }

    fn facts<'a>(&'a self, name: &'a str, node: &'a SlimNode, now: Option<Timestamp>) -> NodeFacts<'a> {
        let ready = self.answers(name) || now.is_some_and(|now| self.forgiven_until(name).is_some_and(|end| now < end));
        NodeFacts { name, labels: node.labels(), ready, gpus: self.gpu_nodes.get(name) }
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

fn controller(pod: &SlimPod) -> Controller {
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true));
    match owner.map(|o| o.kind.as_str()) {
        None => Controller::None,
        Some("DaemonSet") => Controller::DaemonSet,
        Some("Node") => Controller::Static,
        Some(_) => Controller::Replaces,
    }
}
