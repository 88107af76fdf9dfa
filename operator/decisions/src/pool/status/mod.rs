//! The last stage: statuses of pools and profiles, and what the controller of tenants sees of the fleet.

pub mod pools;
pub mod profiles;
mod queue;
pub mod view;

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuPoolStatus, GpuProfileStatus};
use kube::ResourceExt as _;

use super::decide::decided::Decided;
use crate::fleet_view::FleetView;

/// What is reported of a decision.
pub struct Statuses {
    /// What tenants need to know.
    pub view: FleetView,
    /// Status of pools that differs.
    pub pools: BTreeMap<String, GpuPoolStatus>,
    /// Status of profiles that differs.
    pub profiles: BTreeMap<String, GpuProfileStatus>,
    /// Deleted pools that have no GPU any more.
    pub finished: BTreeSet<String>,
}

impl Statuses {
    /// Those of a decision.
    pub fn of(decided: &Decided<'_>) -> Self {
        let fleet = decided.fleet();
        let pools = fleet.pools.iter().map(|p| (p, pools::pool(decided, p)));
        let profiles = fleet.profiles.iter().map(|p| (p, profiles::status(decided, p)));
        Self {
            view: view::view(decided),
            pools: pools.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
            profiles: profiles.filter(|(p, s)| p.status.as_ref() != Some(s)).map(|(p, s)| (p.name_any(), s)).collect(),
            finished: pools::finished(decided),
        }
    }
}
