//! What the planner answers: a target for every GPU, what it gives to whom, and what it cannot give.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{Layout, Stranded};
use litemap::LiteMap;

use super::{
    gpus::Gpus,
    name::{PodName, PoolName, ProfileName, TenantName},
    problem::Problem,
};

/// What the cluster should become.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Every GPU of every pool.
    pub gpus: Gpus,
    /// Devices by profile, before and after.
    pub profiles: BTreeMap<ProfileName, Supply>,
    /// What each tenant gets of what it is guaranteed.
    pub tenants: BTreeMap<TenantName, LiteMap<ProfileName, Served>>,
    /// Slices that no profile of the pool can use once the plan is carried out.
    pub stranded: BTreeMap<PoolName, Stranded>,
    /// What is wrong, each with its remedy.
    pub problems: Vec<Problem>,
    /// A part of the fleet was too large to try everything: a search found what is done there, and there may be better.
    pub searched: bool,
}

/// What one GPU should become.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuPlan {
    /// Its pool.
    pub pool: PoolName,
    /// NVML's index on its node.
    pub index: i32,
    /// The layout to reach or to keep; `None`: the GPU is left as it is, listed or not.
    pub target: Option<Arc<Layout>>,
    /// The target differs from what the GPU has or is on its way to.
    pub changed: bool,
    /// Order of changes: those of a lower rank are finished first, so that a pod that must move finds its new place ready.
    pub rank: u8,
    /// Pods that must go, with the device that each holds.
    pub evicts: Vec<Evicted>,
    /// The layout before; `None` where it is not listed, or where there is nothing to say.
    pub from: Option<Arc<Layout>>,
    /// Why; [`Plan::reason`] makes a sentence of it.
    pub why: Why,
}

/// Why a GPU becomes what it becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// It keeps its layout.
    #[default]
    Kept,
    /// It is no supply, for this reason.
    LeftAlone(&'static str),
    /// It keeps its layout and is carved anew all the same, for this reason.
    CarvedAlong(&'static str),
    /// More of these profiles is guaranteed than exists.
    Needed(Arc<[ProfileName]>),
    /// The pool's `spec.layout.fixed` has it so.
    Written,
    /// It is not listed yet, and nobody needs it now.
    Spare,
    /// The pool's way with what is there.
    Policy,
}

/// A pod that must move because its device goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evicted {
    /// The pod.
    pub pod: PodName,
    /// Start of its device.
    pub start: i32,
    /// NVIDIA's profile of the device, or `whole GPU`.
    pub device: String,
}

/// Devices of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Devices that tenants are guaranteed.
    pub guaranteed: u32,
    /// Devices now, or once changes under way are done.
    pub before: u32,
    /// Of these, devices that nobody holds beyond a guarantee.
    pub usable: u32,
    /// Devices after the plan.
    pub after: u32,
}

/// What a tenant gets of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Devices that it is guaranteed.
    pub guaranteed: u32,
    /// Devices that exist for it after the plan.
    pub satisfied: u32,
}

impl Served {
    /// Devices that are missing.
    pub fn missing(self) -> u32 {
        self.guaranteed.saturating_sub(self.satisfied)
    }
}
