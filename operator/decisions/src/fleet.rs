//! The objects of a cluster that a decision about the fleet depends on, and the planner's input from them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuNode, GpuPool, GpuPoolSpec, GpuProfile, GpuTenant, Partitioner, Vgpu, ids::PodName, names};
use gputenancy_plan::{Cluster, ConflictingOwner, NodeFacts, TenantFacts, membership};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::{
    change::{PodController, PodFacts, Refusal},
    duration::or_seconds,
    liveness::{AgentPod, GRACE_PERIOD, Liveness, liveness},
    maintenance::Maintenances,
    namespace_owners::NamespaceOwners,
    ownership::{DRA_DRIVER, OwnershipSigns, conflicting_owner},
    partitioner::{self, MigConfigs},
    plugin::PluginConfigs,
    queues::PoolQueue,
    verdict::{Verdict, is_suspect, verdict, withdrawn_gpus},
};
use gputenancy_crds::projection::{SlimNode, SlimPod, SlimSlice};

/// Evictions that were refused, by the pod's uid.
pub type Refusals = BTreeMap<String, Refusal>;

/// The objects of a cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The catalog.
    pub profiles: Vec<GpuProfile>,
    /// The supply.
    pub pools: Vec<GpuPool>,
    /// The demand; shared with the cache, because there may be very many.
    pub tenants: Vec<Arc<GpuTenant>>,
    /// `GpuNode`s by node.
    pub gpu_nodes: BTreeMap<String, Arc<GpuNode>>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<SlimNode>>,
    /// Nodes for which NVIDIA's DRA driver publishes devices.
    pub dra: BTreeSet<String>,
    /// Maintenance that is announced to NVSentinel.
    pub maintenance: Maintenances,
    /// Pods that request devices, by name.
    pub pods: BTreeMap<PodName, Arc<SlimPod>>,
    /// Layouts that are published for components that partition a node as a whole.
    pub mig_configs: MigConfigs,
    /// Configs that are published for NVIDIA's device plugin.
    pub plugin_configs: PluginConfigs,
    /// The agent's pods by node; `None`: they are not watched, and liveness follows from Node and `GpuNode` alone.
    pub agent_pods: Option<BTreeMap<String, AgentPod>>,
    /// The state of queues by pool; `None`: the operator writes none.
    pub queues: Option<BTreeMap<String, PoolQueue>>,
}

/// The state that follows from the objects of one node.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Liveness of its agent.
    pub liveness: Liveness,
    /// A conflicting owner of its GPUs.
    pub foreign: Option<ConflictingOwner>,
}

impl NodeState {
    /// Is the node supply for the planner: alive, or at `now` within the grace period?
    pub fn is_supply(&self, now: Option<Timestamp>) -> bool {
        let in_grace = || now.is_some_and(|now| !self.liveness.is_silent_for(GRACE_PERIOD, now));
        self.liveness.is_alive() || in_grace()
    }
}

/// Value of the priority class of a pod; `None`: 0, as for most.
pub fn priority(pod: &SlimPod) -> Option<i32> {
    pod.spec.priority.filter(|priority| *priority != 0)
}

/// Key of the taint that pods of tenants tolerate, as the operator has reported it: it is a setting of the operator.
fn reported_taint(pool: &GpuPool) -> Option<&str> {
    pool.status.as_ref()?.tolerated_taint.as_deref()
}

impl Fleet {
    /// The planner's input without grace period: silent nodes are not supply. Deleted objects are neither supply nor demand.
    pub fn cluster(&self) -> Cluster<'_> {
        self.planner_input(None)
    }

    /// The planner's input at `now`: a node that has been silent for less than its grace period is still supply, so that a short pause of
    /// kubelet moves no device.
    pub fn cluster_at(&self, now: Timestamp) -> Cluster<'_> {
        self.planner_input(Some(now))
    }

    fn planner_input(&self, now: Option<Timestamp>) -> Cluster<'_> {
        let nodes = self.nodes.iter().map(|(name, node)| {
            let state = self.node_state(name);
            NodeFacts {
                name,
                labels: node.labels(),
                ready: state.is_supply(now),
                foreign: state.foreign,
                // only whether there is a verdict matters here, and not when it turns into a fault
                marked: self.reported_mark(name, now.unwrap_or_default()).map(|verdict| Cow::Owned(verdict.why)),
                withdrawn: withdrawn_gpus(node).gpus.into_iter().map(|(uuid, why)| (uuid, Cow::Owned(why))).collect(),
                gpus: self.gpu_nodes.get(name),
            }
        });
        let priorities = self.pods.iter().filter_map(|(name, pod)| Some((name.as_pair(), priority(pod)?)));
        self.cluster_with(nodes.collect(), priorities.collect())
    }

    /// The planner's input with these facts about nodes, and the priorities of pods that have one.
    pub fn cluster_with<'a>(
        &'a self,
        nodes: Vec<NodeFacts<'a>>,
        priorities: BTreeMap<(&'a str, &'a str), i32>,
    ) -> Cluster<'a> {
        Cluster {
            profiles: self.profiles.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).collect(),
            pools: self.active_pools().collect(),
            tenants: self.demands().filter(|(t, _)| t.metadata.deletion_timestamp.is_none()).map(|(_, f)| f).collect(),
            nodes,
            priorities,
        }
    }

    /// Every tenant with the part of it that a plan depends on.
    pub fn demands(&self) -> impl Iterator<Item = (&GpuTenant, TenantFacts<'_>)> {
        let owners = NamespaceOwners::of(&self.tenants);
        self.tenants.iter().map(move |tenant| (&**tenant, tenant_facts(tenant, &owners)))
    }

    /// Pools that are not being deleted.
    pub fn active_pools(&self) -> impl Iterator<Item = &GpuPool> {
        self.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none())
    }

    /// Derives the state of one node from its objects and from pools.
    pub fn node_state(&self, name: &str) -> NodeState {
        let node = self.nodes.get(name);
        let foreign = node.and_then(|node| self.conflicting_owner(name, node, self.gpu_nodes.get(name).map(|n| &**n)));
        NodeState { liveness: self.liveness(name), foreign }
    }

    fn conflicting_owner(&self, name: &str, node: &SlimNode, gpu_node: Option<&GpuNode>) -> Option<ConflictingOwner> {
        let (labels, annotations) = (node.labels(), node.annotations());
        let boards = gpu_node.and_then(|n| n.status.as_ref()).map(|s| s.boards.as_slice());
        let vgpu_host = boards.unwrap_or_default().iter().any(|board| board.vgpu == Some(Vgpu::Host));
        let (dra, partitioner) = (self.dra.contains(name), Partitioner::Agent);
        let newer_release = gpu_node.is_some_and(|n| n.spec.is_of_newer_release());
        let signs = OwnershipSigns { labels, annotations, dra, vgpu_host, partitioner, newer_release };
        // the pool of the node matters only where there is a sign at all
        conflicting_owner(signs)?;
        conflicting_owner(OwnershipSigns { partitioner: self.partitioner(name, node), ..signs })
    }

    /// The partitioner of a node's pool. One with a request of ours in progress stays the partitioner until it has finished.
    fn partitioner(&self, name: &str, node: &SlimNode) -> Partitioner {
        if let Some(engaged) = self.gpu_nodes.get(name).filter(|n| partitioner::is_engaged(n, node.labels())) {
            return engaged.spec.partitioner;
        }
        self.only_pool(name, node).map_or_else(Partitioner::default, |p| p.spec.partitioner)
    }

    /// The pool that selects a node, if it is one alone.
    fn only_pool(&self, name: &str, node: &SlimNode) -> Option<&GpuPool> {
        let pools: Vec<&GpuPool> = self.active_pools().collect();
        let by = membership(&pools, [(name, node.labels())]);
        let only = by.values().next().and_then(|pools| if let [one] = pools.as_slice() { Some(one) } else { None })?;
        pools.into_iter().find(|p| p.name_any() == only.as_str())
    }

    /// The verdict of other products at `now` about a node of a pool, by its `spec.health`. `tolerated`: key of the taint that pods of tenants tolerate,
    /// besides the usual one and the pool's.
    pub fn marked(&self, name: &str, tolerated: Option<&str>, now: Timestamp) -> Option<Verdict> {
        self.judged(name, |_| tolerated, now)
    }

    /// The same, with the key that the operator has reported in the status of the node's pool.
    pub fn reported_mark(&self, name: &str, now: Timestamp) -> Option<Verdict> {
        self.judged(name, reported_taint, now)
    }

    /// The same, with the key for the node's pool.
    fn judged<'a>(
        &'a self,
        name: &str,
        tolerated: impl FnOnce(&'a GpuPool) -> Option<&'a str>,
        now: Timestamp,
    ) -> Option<Verdict> {
        let maintenance = self.maintenance.get(name).map(Vec::as_slice).unwrap_or_default();
        let node = self.nodes.get(name).filter(|node| is_suspect(node) || !maintenance.is_empty())?;
        let pool = self.only_pool(name, node)?;
        let GpuPoolSpec { health, taint, .. } = &pool.spec;
        let keys = taint.iter().map(|taint| taint.key.as_str()).chain(tolerated(pool));
        verdict(node, maintenance, health, &keys.collect(), now)
    }

    /// How long a verdict on a node outlives its marks: `spec.health.clearAfter` of its pool.
    pub fn clear_after(&self, name: &str) -> SignedDuration {
        let pool = self.nodes.get(name).and_then(|node| self.only_pool(name, node));
        pool.map_or(SignedDuration::ZERO, |pool| or_seconds(&pool.spec.health.clear_after, 120))
    }

    /// Is this a namespace of a tenant?
    fn is_of_tenant(&self, namespace: &str) -> bool {
        self.tenants.iter().any(|tenant| tenant.spec.namespaces.iter().any(|own| own.name == namespace))
    }

    /// Liveness of a node's agent.
    pub fn liveness(&self, node: &str) -> Liveness {
        let status = self.gpu_nodes.get(node).and_then(|n| n.status.as_ref());
        liveness(self.nodes.get(node).map(|n| &**n), self.agent_pod(node), status)
    }

    fn agent_pod(&self, node: &str) -> Option<AgentPod> {
        let absent = AgentPod::Absent { since: None };
        self.agent_pods.as_ref().map(|pods| pods.get(node).copied().unwrap_or(absent))
    }

    /// Is the node ready, and is the status of its agent current?
    pub fn answers(&self, node: &str) -> bool {
        self.liveness(node).is_alive()
    }

    /// `status.allocatable` of a node, for extended resources.
    pub fn allocatable(&self, node: &str) -> BTreeMap<String, i64> {
        let Some(node) = self.nodes.get(node) else { return BTreeMap::new() };
        node.status.allocatable.iter().filter_map(|(r, q)| Some((r.clone(), q.0.parse().ok()?))).collect()
    }
}

/// Facts about pods of one node. `deadline`: of the change in progress; a notice of another change does not count.
pub fn pod_facts(
    fleet: &Fleet,
    pods: &[(&PodName, &SlimPod)],
    deadline: Option<Timestamp>,
    refusals: &Refusals,
) -> BTreeMap<PodName, PodFacts> {
    let facts = |pod: &SlimPod| {
        let uid = pod.uid().unwrap_or_default();
        let notice = pod.annotations().get(names::EVICTION_NOTICE);
        PodFacts {
            terminating: pod.metadata.deletion_timestamp.is_some(),
            controller: controller(fleet, pod),
            do_not_evict: pod.annotations().get(names::DO_NOT_EVICT).is_some_and(|v| v == "true"),
            created: pod.metadata.creation_timestamp.as_ref().map(|at| at.0),
            started: pod.status.start_time.as_ref().map(|at| at.0),
            noticed: notice.is_some_and(|n| deadline.is_none_or(|d| n.starts_with(&d.to_string()))),
            refused: refusals.get(&uid).cloned(),
            uid,
        }
    };
    pods.iter().map(|(name, pod)| ((*name).clone(), facts(pod))).collect()
}

/// The part of a tenant that a plan depends on.
fn tenant_facts<'a>(tenant: &'a GpuTenant, owners: &NamespaceOwners<'a>) -> TenantFacts<'a> {
    TenantFacts {
        name: tenant.metadata.name.as_deref().unwrap_or_default(),
        namespaces: &tenant.spec.namespaces,
        refused: owners.refused(tenant),
        trust: tenant.spec.trust,
        acknowledged: tenant.spec.acknowledges_shares(),
        priority: tenant.spec.priority,
        gpus: &tenant.spec.gpus,
        equivalents: tenant.spec.gpu_equivalents.as_deref(),
    }
}

/// The node of a `ResourceSlice`, if NVIDIA's DRA driver published it.
pub fn dra_node(slice: &SlimSlice) -> Option<String> {
    slice.spec.node_name.clone().filter(|_| slice.spec.driver == DRA_DRIVER)
}

/// Text of the eviction notice on a pod. It starts with the deadline, by which [`pod_facts`] recognises the notice of a change.
pub fn notice_text(deadline: Timestamp, reason: &str, elsewhere: &str) -> String {
    format!("{deadline}: {reason}; {elsewhere}")
}

/// A team can write any owner into its pods, and must not keep them from evictions by that: in its namespaces policies refuse
/// a `DaemonSet` that asks for a GPU, and it writes no manifest on a node.
fn controller(fleet: &Fleet, pod: &SlimPod) -> PodController {
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true));
    let by_platform = || !fleet.is_of_tenant(pod.metadata.namespace.as_deref().unwrap_or_default());
    match owner.map(|o| o.kind.as_str()) {
        Some("DaemonSet") if by_platform() => PodController::DaemonSet,
        Some("Node") if by_platform() => PodController::Static,
        None | Some("DaemonSet" | "Node") => PodController::None,
        Some(_) => PodController::Replaces,
    }
}
