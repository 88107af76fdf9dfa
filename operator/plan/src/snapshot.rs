//! The input of the planner: a validated snapshot of the cluster, in maps whose order does not depend on the input's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{Isolation, Layout, SharingMode, Trust};

use crate::board::{BoardGeometry, Shape};
use gputenancy_crds::ids::{GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName};

/// All that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The products.
    pub profiles: BTreeMap<ProfileName, Profile>,
    /// Profiles that no pool offers, because another one has their resource.
    pub refused: BTreeSet<ProfileName>,
    /// The supply.
    pub pools: BTreeMap<PoolName, Pool>,
    /// The demand.
    pub tenants: BTreeMap<TenantName, Tenant>,
    /// The nodes that belong to exactly one pool and have a `GpuNode`.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Nodes that belong to no pool because several select them, each with these pools, sorted.
    pub overlaps: BTreeMap<NodeName, Vec<PoolName>>,
}

/// A product, as far as placement is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its device on the hardware.
    pub shape: Shape,
    /// Boards that may offer it; empty: any that can.
    pub products: BTreeSet<String>,
    /// Extended resource of its devices.
    pub resource: String,
    /// Least trusted tenant that may use it.
    pub trust: Trust,
}

/// A pool's rules of layout.
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Profiles that the pool offers.
    pub profiles: BTreeSet<ProfileName>,
    /// The mode that decides the layout.
    pub mode: Mode,
    /// Treatment of spare capacity.
    pub spare: Spare,
    /// The pool has no partitioner: its layouts are observed, never changed.
    pub read_only: bool,
    /// NVIDIA's device plugin advertises the devices, each under NVIDIA's resource.
    pub by_plugin: bool,
    /// All devices are of one MIG profile, under the resource of whole GPUs.
    pub single: bool,
    /// The program that serves shares of its GPUs.
    pub shares: SharesBy,
    /// The last GPU of a profile may be changed although the profile is in use.
    pub allow_outage: bool,
    /// Weakest means that may limit the memory of shares.
    pub minimum: Isolation,
}

/// The program that serves shares of a pool's GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharesBy {
    /// Nothing: the agent does not partition the GPUs.
    #[default]
    Nothing,
    /// The agent: each GPU has shares of its own.
    Agent,
    /// NVIDIA's device plugin: all GPUs of a node without MIG have the same number of time-slices, or none.
    NvidiaDevicePlugin,
}

/// The mode that decides the layout of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The tenants' guarantees.
    #[default]
    Demand,
    /// The list, first match first.
    Fixed(Vec<Fixed>),
}

/// A fixed layout for some GPUs of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The expression as written, for messages.
    pub text: String,
    /// GPU indices; `None`: all.
    pub indices: Option<BTreeSet<i32>>,
    /// Devices on each of these GPUs.
    pub counts: BTreeMap<ProfileName, u32>,
}

/// Treatment of capacity that no guarantee needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Spare {
    /// Keep instances that exist.
    #[default]
    Keep,
    /// Merge idle GPUs back into whole ones.
    Whole,
    /// Fill leftovers with one profile.
    Fill(ProfileName),
    /// As `Fill`, and idle GPUs have no other devices.
    Only(ProfileName),
}

/// A team's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its namespaces, sorted.
    pub namespaces: Vec<Arc<str>>,
    /// How far it is trusted.
    pub trust: Trust,
    /// It accepts what shares of a GPU do not isolate.
    pub acknowledged: bool,
    /// Rank of its guarantees, from -5 to 5: higher ones are served first.
    pub priority: i32,
    /// Guaranteed devices by profile.
    pub guarantees: BTreeMap<ProfileName, u32>,
    /// Devices above that which it may borrow, by profile; only of pools with queues. The owners get them back, so that they are supply for others.
    pub borrows: BTreeMap<ProfileName, u32>,
    /// Most that its devices may weigh together, in 840ths of a GPU.
    pub cap: Option<i64>,
}

/// A node of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The one pool that it belongs to.
    pub pool: PoolName,
    /// Its kinds of board; nodes with equal boards share them.
    pub boards: Vec<Arc<BoardGeometry>>,
    /// Its GPUs.
    pub gpus: BTreeMap<GpuUuid, Gpu>,
    /// Shares that it cannot limit as its pool demands.
    pub unlimited: Unlimited,
}

/// The means that limits time-slices of a MIG instance at best: the driver limits whole GPUs only.
pub(crate) const SLICES: Isolation = Isolation::Software;

/// Shares that a node cannot limit as its pool demands: they are not offered there, and idle ones that exist are no supply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unlimited {
    /// The means that limits them, by kind of share.
    pub modes: BTreeMap<SharingMode, Isolation>,
    /// Why it is not stronger, and what to do about it; may be empty.
    pub why: String,
}

/// One GPU as it is and as it is meant to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Index on the node, from NVML.
    pub index: i32,
    /// Index into the node's boards.
    pub board: usize,
    /// The layout that it has or is changing to; `None`: not listed and not partitioned. GPUs with equal layouts share it.
    pub base: Option<Arc<Layout>>,
    /// Whether it is supply, and whether it may be changed.
    pub availability: Availability,
    /// A change to `base` is in progress; its evictions are decided already.
    pub changing: bool,
    /// Devices in use: sorted by start, no start twice, except an instance and its first time-slice.
    pub used: Vec<InUse>,
}

/// Whether a GPU is supply, and whether it may be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// Supply, and free to change.
    #[default]
    Free,
    /// Supply as it is: a change is past its point of no return or cannot go on.
    Frozen,
    /// Devices in use are supply until their pods end, others are none: so others say about its node. The plan leaves it unchanged.
    Marked(Arc<str>),
    /// Supply; a change to this layout failed.
    Failed(Arc<Layout>),
    /// Of its present layout, which cannot be restored, only devices in use are supply; it may get another one. A change to this layout failed.
    Broken(Arc<Layout>),
    /// No supply, for this reason: the plan leaves it unchanged.
    Unavailable(&'static str),
}

/// A device in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// First memory slice of the instance; 0 for a whole GPU; the number of a share or time-slice.
    pub start: i32,
    /// It is a share of the GPU, or a time-slice of an instance.
    pub share: bool,
    /// NVIDIA's profile of the instance; `None`: the whole GPU or a share of it.
    pub profile: Option<Arc<str>>,
    /// Resource under which it was allocated.
    pub resource: Arc<str>,
    /// The pod that owns it; `None`: not known, or not known yet.
    pub pod: Option<PodName>,
    /// An unattributed process uses it: no tenant can have the device. A device whose pod is only not known yet is supply, or else
    /// the plan would create a second one for that pod.
    pub unattributed: bool,
    /// Value of the pod's priority class: pods of higher priority are evicted last.
    pub priority: i32,
    /// MiB that programs on a fraction may allocate now, as its agent reports them.
    pub memory: Option<i64>,
}

impl Gpu {
    /// Are only its devices in use supply?
    pub(crate) fn is_marked(&self) -> bool {
        matches!(self.availability, Availability::Marked(_))
    }

    /// Does its present layout not exist?
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.availability, Availability::Broken(_))
    }

    /// The layout of a change that failed.
    pub(crate) fn failed(&self) -> Option<&Arc<Layout>> {
        match &self.availability {
            Availability::Failed(layout) | Availability::Broken(layout) => Some(layout),
            _ => None,
        }
    }

    /// MiB that a fraction in use has beyond those of the layout that is planned for it. Its pod keeps the memory of its present layout, and
    /// what its agent reports, until the agent reports less.
    pub(crate) fn retained(&self, used: &InUse, planned: Option<i64>) -> i64 {
        let sharing = self.base.as_ref().and_then(|base| base.sharing.as_ref());
        let group =
            sharing.filter(|s| used.share && s.mode == SharingMode::Fraction).and_then(|s| s.group_of(used.start));
        let Some(group) = group else { return 0 };
        let of_layout = || group.memory.as_ref().and_then(|memory| memory.mib().ok());
        let present = used.memory.or_else(of_layout);
        present.zip(planned).map_or(0, |(present, planned)| present.saturating_sub(planned).max(0))
    }
}
