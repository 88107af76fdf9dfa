//! The output of the planner: a target for every GPU, what tenants get, and what the fleet cannot give.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{Layout, Stranded, slice_of};

use crate::{problem::Problem, snapshot::InUse};
use gputenancy_crds::ids::{GpuKey, NodeName, PodName, PoolName, ProfileName, TenantName};

/// The target state of the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Every GPU of every pool.
    pub gpus: BTreeMap<GpuKey, GpuPlan>,
    /// Devices by profile, before and after.
    pub profiles: BTreeMap<ProfileName, Supply>,
    /// The devices that each tenant gets of its guarantees.
    pub tenants: BTreeMap<TenantName, BTreeMap<ProfileName, Served>>,
    /// Slices that no profile of the pool can use after the plan.
    pub stranded: BTreeMap<PoolName, Stranded>,
    /// Problems, each with its remedy.
    pub problems: Vec<Problem>,
    /// A part of the fleet was too large for the exact algorithm: a heuristic search decided, and a better plan may exist.
    pub searched: bool,
}

impl Plan {
    /// Nodes with a GPU whose plan is not the same in both.
    pub fn differing_nodes(&self, other: &Self) -> BTreeSet<NodeName> {
        let mut differing = BTreeSet::new();
        let (mut ours, mut theirs) = (self.gpus.iter().peekable(), other.gpus.iter().peekable());
        loop {
            let key = match (ours.peek(), theirs.peek()) {
                (Some(one), Some(two)) if one == two => {
                    ours.next();
                    theirs.next();
                    continue;
                }
                (Some((one, _)), Some((two, _))) => (*one).min(*two),
                (Some((key, _)), None) | (None, Some((key, _))) => *key,
                (None, None) => return differing,
            };
            differing.insert(key.node.clone());
            ours.next_if(|(one, _)| *one == key);
            theirs.next_if(|(two, _)| *two == key);
        }
    }
}

/// The target of one GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuPlan {
    /// Its pool.
    pub pool: PoolName,
    /// Index on its node, from NVML.
    pub index: i32,
    /// The layout to reach or to keep; `None`: the GPU stays unchanged, listed or not.
    pub target: Option<Arc<Layout>>,
    /// The target differs from the layout that the GPU has or is changing to.
    pub changed: bool,
    /// Order of changes: those of a lower rank finish first, so that an evicted pod finds its new device ready.
    pub rank: u8,
    /// Pods to evict, each with its device.
    pub evicts: Vec<Evicted>,
    /// The layout before; `None` where it is not listed, or where the GPU is kept.
    pub from: Option<Arc<Layout>>,
    /// Why; [`Plan::reason`] makes a sentence of it.
    pub why: Why,
}

/// Why a GPU has its target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// It keeps its layout.
    #[default]
    Kept,
    /// It is no supply, for this reason.
    LeftAlone(&'static str),
    /// It keeps its layout and is partitioned again all the same, for this reason.
    Repartitioned(&'static str),
    /// More of these profiles is guaranteed than exists.
    Needed(Arc<[ProfileName]>),
    /// The pool's `spec.layout.fixed` lists it.
    Fixed,
    /// It is not listed yet, and no guarantee needs it now.
    Spare,
    /// The pool's policy for spare capacity.
    Policy,
}

/// A pod to evict because its device is removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evicted {
    /// The pod.
    pub pod: PodName,
    /// Start of its device or of the MIG instance that it has a time-slice of; number of a share of a whole GPU.
    pub start: i32,
    /// NVIDIA's profile of the device, `whole GPU` or `share`.
    pub device: String,
}

impl Evicted {
    /// The pod of a device; `None`: no pod owns it.
    pub fn of(used: &InUse) -> Option<Self> {
        let (start, device) = match (used.share, used.profile.as_deref()) {
            (true, Some(profile)) => {
                let (start, slice) = slice_of(used.start);
                (start, format!("time-slice {slice} of {profile}"))
            }
            (true, None) => (used.start, "share".to_owned()),
            (false, profile) => (used.start, profile.unwrap_or("whole GPU").to_owned()),
        };
        Some(Self { pod: used.pod.clone()?, start, device })
    }
}

/// Devices of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Guaranteed devices.
    pub guaranteed: u32,
    /// Devices now, or once changes in progress are done.
    pub before: u32,
    /// Of these, devices that are not held beyond a guarantee.
    pub usable: u32,
    /// Devices after the plan.
    pub after: u32,
}

/// The devices of one profile that a tenant gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Guaranteed devices.
    pub guaranteed: u32,
    /// Of these, devices that exist after the plan.
    pub satisfied: u32,
}

impl Served {
    /// Devices that are missing.
    pub fn missing(self) -> u32 {
        self.guaranteed.saturating_sub(self.satisfied)
    }
}
