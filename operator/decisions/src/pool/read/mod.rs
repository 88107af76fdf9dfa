//! The first stage: agents, GPUs and their nodes as the caches have them, and which nodes a decision has to visit.

pub mod agents;
pub mod dirty_nodes;
pub mod inventory;
pub mod tolerated;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt as _};

use crate::{adoption, demand::Demands, fleet::Fleet, partitioner};

use self::{
    dirty_nodes::{DirtyNodes, LastInput},
    inventory::Inventory,
};

/// The fleet that is decided about: as the caches have it, but for what agents retain and for guarantees that are not planned yet.
pub struct Read<'a> {
    cached: &'a Inventory<'a>,
    fleet: Cow<'a, Fleet>,
    /// Places of pools in the fleet's list, by name.
    pools: BTreeMap<String, usize>,
    /// Places of profiles.
    profiles: BTreeMap<String, usize>,
    /// Guarantees that have changed a short time ago.
    pub demands: &'a Demands,
    /// Nodes that are visited, as far as they do not follow from the plan.
    pub dirty: DirtyNodes,
}

impl<'a> Read<'a> {
    /// Reads the caches. `demands` and `last` have what is remembered of earlier decisions.
    pub fn of(cached: &'a Inventory<'a>, demands: &'a mut Demands, last: &mut LastInput) -> Self {
        let adopted = adopted(cached.fleet);
        let fleet = adopted.as_ref().unwrap_or(cached.fleet);
        demands.update(fleet, cached.now);
        let planned = demands.planned(fleet).map(|tenants| Fleet { tenants, ..fleet.clone() });
        let fleet = planned.or(adopted).map_or(Cow::Borrowed(cached.fleet), Cow::Owned);
        let dirty = last.dirty(&Inventory { fleet: &fleet, ..*cached });
        let (pools, profiles) = (places(&fleet.pools), places(&fleet.profiles));
        Self { cached, fleet, pools, profiles, demands, dirty }
    }

    /// What is decided from.
    pub fn inventory(&self) -> Inventory<'_> {
        Inventory { fleet: &self.fleet, ..*self.cached }
    }

    /// The fleet that is decided about.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Option<&GpuPool> {
        self.fleet.pools.get(*self.pools.get(name)?)
    }

    /// The profile of this name.
    pub fn profile(&self, name: &str) -> Option<&GpuProfile> {
        self.fleet.profiles.get(*self.profiles.get(name)?)
    }

    /// The fleet as the API server has it.
    pub fn cached(&self) -> &'a Fleet {
        self.cached.fleet
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.cached.now
    }
}

fn places(objects: &[impl Resource]) -> BTreeMap<String, usize> {
    objects.iter().enumerate().map(|(place, object)| (object.name_any(), place)).collect()
}

/// The fleet with the layouts that agents retain, and with placements as the components chose them that partition nodes as a whole; `None`: as
/// it is.
fn adopted(fleet: &Fleet) -> Option<Fleet> {
    let retained = adoption::adopted(fleet);
    let fleet = retained.as_ref().unwrap_or(fleet);
    let placed = |(name, node): (&String, &Arc<GpuNode>)| Some((name.clone(), partitioner::adopted(node)?.into()));
    let whole = fleet.gpu_nodes.iter().filter(|(_, node)| partitioner::is_whole(node));
    let placed: Vec<_> = whole.filter_map(placed).collect();
    if placed.is_empty() {
        return retained;
    }
    let mut fleet = fleet.clone();
    fleet.gpu_nodes.extend(placed);
    Some(fleet)
}
