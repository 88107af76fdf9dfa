//! What the planner looks at: a small picture of the cluster, validated, in maps whose order does not depend on the input's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{Layout, Trust};
use litemap::LiteMap;

use super::{
    board::Board,
    name::{GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName, Text},
    outcome::Evicted,
};

/// All that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The products.
    pub profiles: BTreeMap<ProfileName, Profile>,
    /// The supply.
    pub pools: BTreeMap<PoolName, Pool>,
    /// The demand.
    pub tenants: BTreeMap<TenantName, Tenant>,
    /// The nodes that belong to exactly one pool and have a `GpuNode`.
    pub nodes: BTreeMap<NodeName, Node>,
}

/// A product, as far as placement is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What it is on the hardware.
    pub shape: Shape,
    /// Boards that it may be carved from; empty: any that can.
    pub products: BTreeSet<String>,
    /// Extended resource under which its devices are advertised.
    pub resource: String,
    /// Least trusted tenant that may use it.
    pub trust: Trust,
}

/// What a profile is on the hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A whole GPU without MIG.
    Whole,
    /// A MIG instance, by NVIDIA's name.
    Named(String),
    /// The smallest MIG instance with at least so many compute slices and MiB of memory.
    AtLeast {
        /// Compute slices.
        slices: i32,
        /// MiB.
        memory: i64,
    },
    /// A share of a GPU, which this release does not carve; the word names the kind.
    Shared(&'static str),
}

/// A pool's rules of layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Profiles that may be carved here.
    pub profiles: BTreeSet<ProfileName>,
    /// What decides the layout.
    pub mode: Mode,
    /// What happens to what nobody needs.
    pub spare: Spare,
    /// Nobody carves here: the pool is read, never changed.
    pub read_only: bool,
    /// NVIDIA's device plugin offers the devices: each under the resource that NVIDIA gives it.
    pub by_plugin: bool,
    /// The last GPU of a profile may go although the profile is in use.
    pub allow_outage: bool,
}

/// What decides the layout of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The tenants' guarantees.
    #[default]
    Demand,
    /// The list, first match first.
    Fixed(Vec<Fixed>),
}

/// A layout written by hand for some GPUs of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The expression as written, for messages.
    pub text: String,
    /// GPU indices; `None`: all.
    pub indices: Option<BTreeSet<i32>>,
    /// Devices on each of these GPUs.
    pub counts: BTreeMap<ProfileName, u32>,
}

/// What happens to what no guarantee needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Spare {
    /// Leave instances that exist.
    #[default]
    Keep,
    /// Merge idle GPUs back into whole ones.
    Whole,
    /// Carve leftovers into one profile.
    Fill(ProfileName),
}

/// A team's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its namespaces, sorted.
    pub namespaces: Box<[Text]>,
    /// How far it is trusted.
    pub trust: Trust,
    /// Rank of its guarantees, from -5 to 5: higher ones are served first.
    pub priority: i32,
    /// Devices that it is guaranteed, by profile.
    pub guarantees: LiteMap<ProfileName, u32>,
}

/// A node of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The one pool that it belongs to.
    pub pool: PoolName,
    /// Kinds of board on it; nodes that are alike share them.
    pub boards: Vec<Arc<Board>>,
    /// Its GPUs.
    pub gpus: BTreeMap<GpuUuid, Gpu>,
}

/// One GPU as it is and as it is meant to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// NVML's index on the node.
    pub index: i32,
    /// Index into the node's boards.
    pub board: usize,
    /// The layout it has, or is already on its way to; `None`: it is not listed and not carved. GPUs that are
    /// alike share it.
    pub base: Option<Arc<Layout>>,
    /// Whether and how it may be changed.
    pub standing: Standing,
    /// A change towards `base` is under way: what that costs was decided when it began.
    pub moving: bool,
    /// Devices in use: sorted by start, no start twice.
    pub used: Vec<InUse>,
}

/// Whether a GPU is supply, and whether it may be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Supply, and free to change.
    #[default]
    Free,
    /// Supply as it is; a change is being carried out or cannot go on.
    Frozen,
    /// Supply; this layout was tried and failed.
    Failed(Arc<Layout>),
    /// No supply: lost, unhealthy, or its node is not ready. Left alone.
    Away(&'static str),
}

/// A device in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// First memory slice of the instance; 0 for a whole GPU.
    pub start: i32,
    /// NVIDIA's profile of the instance; `None`: the whole GPU.
    pub profile: Option<Text>,
    /// Resource under which its pod got it.
    pub resource: Text,
    /// The pod; `None`: nobody has told yet which.
    pub pod: Option<PodName>,
    /// A process has it that no pod explains: the device is lost to everybody. One whose pod has only not been told yet counts as there,
    /// or else another would be made for whoever has just got it.
    pub stranger: bool,
    /// Value of the pod's priority class: pods of more weight are evicted less readily.
    pub priority: i32,
}

impl InUse {
    /// Its pod as one that must go; `None`: no pod has it.
    pub fn evicted(&self) -> Option<Evicted> {
        let device = self.profile.as_ref().map_or_else(|| "whole GPU".to_owned(), ToString::to_string);
        Some(Evicted { pod: self.pod.clone()?, start: self.start, device })
    }
}
