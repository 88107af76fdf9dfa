//! The writes about one object, and their deadline.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    sync::Arc,
};

use gputenancy_cluster::events::EventType;
use gputenancy_crds::{GpuProfile, GpuProfileStatus, ids::NodeName, names, reasons};
use gputenancy_decisions::{
    fleet::Fleet,
    partitioner::MigConfigs,
    pool::{decide::plugin_configs::ConfigsWrite, decision::FleetDecision},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{
    FleetWriter, Outcome, Written, failed,
    node::{GpuNodeWrite, NodeWrite},
    partition_request, plugin_configs,
    state::{EvictedPods, NodeContext, NodeState},
    status::{self, PoolWrite},
    within,
};
use crate::apply::has_finalizer;

/// An object that decisions write, in the order in which they are written: GPUs first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The `ConfigMap` of layouts.
    MigConfigs,
    /// The configs for NVIDIA's device plugin.
    PluginConfigs,
    /// A `GpuNode`, its GPUs and their pods.
    GpuNode(NodeName),
    /// A pool.
    Pool(String),
    /// A profile.
    Profile(String),
    /// Labels and taints of a Node.
    Node(NodeName),
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigConfigs => write!(f, "ConfigMap {}", names::MIG_CONFIG_MAP),
            Self::PluginConfigs => f.write_str("configs for NVIDIA's device plugin"),
            Self::Pool(name) => write!(f, "GpuPool {name}"),
            Self::Profile(name) => write!(f, "GpuProfile {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
            Self::GpuNode(name) => write!(f, "GpuNode {name}"),
        }
    }
}

impl Target {
    /// The name of the `GpuNode`.
    pub fn gpu_node(&self) -> Option<&NodeName> {
        if let Self::GpuNode(name) = self { Some(name) } else { None }
    }

    /// The name of the Node or `GpuNode`.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Node(name) | Self::GpuNode(name) => Some(name),
            Self::MigConfigs | Self::PluginConfigs | Self::Pool(_) | Self::Profile(_) => None,
        }
    }

    /// Name of the controller in metrics.
    pub fn controller(&self) -> &'static str {
        match self {
            Self::MigConfigs => "mig-configs",
            Self::PluginConfigs => "plugin-configs",
            Self::Pool(_) => "pool",
            Self::Profile(_) => "profile",
            Self::Node(_) => "node",
            Self::GpuNode(_) => "gpunode",
        }
    }

    fn reference(&self, fleet: &Fleet) -> Option<ObjectReference> {
        match self {
            Self::MigConfigs | Self::PluginConfigs => None,
            Self::Pool(name) => fleet.pools.iter().find(|p| p.name_any() == *name).map(|p| p.object_ref(&())),
            Self::Profile(name) => fleet.profiles.iter().find(|p| p.name_any() == *name).map(|p| p.object_ref(&())),
            Self::Node(name) | Self::GpuNode(name) => fleet.gpu_nodes.get(name.as_str()).map(|n| n.object_ref(&())),
        }
    }
}

/// What is written about an object.
pub enum ObjectWrite {
    /// The `ConfigMap` of layouts.
    MigConfigs(MigConfigs),
    /// The configs for NVIDIA's device plugin.
    PluginConfigs(ConfigsWrite),
    /// Finalizer and status of the pool of this name.
    Pool(String, Box<PoolWrite>),
    /// Status of the profile of this name.
    Profile(String, GpuProfileStatus),
    /// Labels and taints of the Node of this name.
    Node(NodeName, Box<NodeWrite>),
    /// Everything about the `GpuNode` of this name.
    GpuNode(NodeName, Box<GpuNodeWrite>),
}

/// The end of the writes about an object.
pub struct Finished {
    /// The object.
    pub target: Target,
    /// What came of it.
    pub outcome: Outcome,
    /// What is remembered of a node from now on.
    pub state: NodeState,
    /// Duration in seconds.
    pub seconds: f64,
}

impl ObjectWrite {
    /// Takes what is to be written out of a decision.
    pub fn of(fleet: &Fleet, decision: &mut FleetDecision) -> BTreeMap<Target, Self> {
        let nodes = NodeWrite::by_node(decision).into_iter();
        let mut writes: Vec<Self> = nodes.map(|(name, write)| Self::Node(name, Box::new(write))).collect();
        let gpu_nodes = GpuNodeWrite::by_node(fleet, decision).into_iter();
        writes.extend(gpu_nodes.map(|(name, write)| Self::GpuNode(name, Box::new(write))));
        writes.extend(decision.mig_configs.take().map(Self::MigConfigs));
        writes.extend(decision.plugin_configs.take().map(Self::PluginConfigs));
        writes.extend(std::mem::take(&mut decision.profiles).into_iter().map(|(name, s)| Self::Profile(name, s)));
        for pool in &fleet.pools {
            let name = pool.name_any();
            let (status, finished) = (decision.pools.remove(&name), decision.finished.contains(&name));
            let protect = pool.metadata.deletion_timestamp.is_none() && !has_finalizer(pool);
            if protect || finished || status.is_some() {
                writes.push(Self::Pool(name, Box::new(PoolWrite { protect, status, finished })));
            }
        }
        writes.into_iter().map(|write| (write.target(), write)).collect()
    }

    fn target(&self) -> Target {
        match self {
            Self::MigConfigs(_) => Target::MigConfigs,
            Self::PluginConfigs(_) => Target::PluginConfigs,
            Self::Pool(name, _) => Target::Pool(name.clone()),
            Self::Profile(name, _) => Target::Profile(name.clone()),
            Self::Node(name, _) => Target::Node(name.clone()),
            Self::GpuNode(name, _) => Target::GpuNode(name.clone()),
        }
    }

    /// Writes everything within the deadline. `decided`: when it was decided about `fleet`; `evicted`: the pods that the last decision evicts;
    /// `reported`: the failure that an event has reported already.
    pub async fn run(
        self,
        writer: Arc<FleetWriter>,
        (fleet, decided, evicted): (Arc<Fleet>, Instant, EvictedPods),
        mut state: NodeState,
        reported: Option<String>,
    ) -> Finished {
        let (begun, target) = (Instant::now(), self.target());
        let span = tracing::warn_span!("write", object = %target);
        let mut outcome = Outcome::default();
        let ended = within(self.steps((&writer, &fleet, decided, &evicted), &mut state, &mut outcome))
            .instrument(span.clone())
            .await;
        if let Err(error) = ended {
            span.in_scope(|| outcome.record(Err(error)));
        }
        if let Some(failure) = outcome.failure.clone().filter(|_| outcome.failure != reported)
            && let Some(regarding) = target.reference(&fleet)
        {
            let report = writer.report(regarding, EventType::Warning, reasons::WRITE_FAILED, "Write", failure);
            // an event that is lost does no harm
            drop(within(report).await);
        }
        Finished { target, outcome, state, seconds: begun.elapsed().as_secs_f64() }
    }

    async fn steps(
        self,
        (writer, fleet, decided, evicted): (&FleetWriter, &Fleet, Instant, &EvictedPods),
        state: &mut NodeState,
        outcome: &mut Outcome,
    ) {
        match self {
            Self::MigConfigs(configs) => {
                outcome.record(partition_request::publish(writer, &configs).await);
            }
            Self::PluginConfigs(configs) => outcome.record(plugin_configs::publish(writer, configs).await),
            Self::Pool(name, write) => {
                if let Some(pool) = fleet.pools.iter().find(|p| p.name_any() == name) {
                    outcome.record(status::write_pool(writer, pool, *write).await);
                }
            }
            Self::Profile(name, status) => {
                let written = writer.writer.apply_status::<GpuProfile>(&name, &status).await;
                outcome.record(written.map(|_| Written::Done).map_err(failed("writing the status")));
            }
            Self::Node(name, write) => {
                write.steps(NodeContext { writer, fleet, decided, evicted, name: &name }, state, outcome).await;
            }
            Self::GpuNode(name, write) => {
                write.steps(NodeContext { writer, fleet, decided, evicted, name: &name }, state, outcome).await;
            }
        }
    }
}
