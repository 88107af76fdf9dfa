//! The first stage: agents, GPUs and their nodes as the caches have them, and which nodes a decision has to visit.

pub mod agents;
pub mod dirty_nodes;
pub mod inventory;
pub mod tolerated;

use std::{borrow::Cow, sync::Arc};

use gputenancy_crds::GpuNode;
use k8s_openapi::jiff::Timestamp;

use crate::{adoption, demand::Demands, fleet::Fleet, partitioner};

use self::{
    dirty_nodes::{DirtyNodes, LastInput},
    inventory::Inventory,
};

/// The fleet that is decided about: as the caches have it, but for what agents retain and for guarantees that are not planned yet.
pub struct Read<'a> {
    cached: &'a Inventory<'a>,
    fleet: Cow<'a, Fleet>,
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
        Self { cached, fleet, demands, dirty }
    }

    /// What is decided from.
    pub fn inventory(&self) -> Inventory<'_> {
        Inventory { fleet: &self.fleet, ..*self.cached }
    }

    /// The fleet that is decided about.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
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
