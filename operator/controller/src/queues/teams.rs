//! Who queues for what. Pure.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuTenant, QueueingSystem};
use gputenancy_decisions::{
    entitlement::granted,
    fleet_view::FleetView,
    queues::{Entitlement, Team},
};
use kube::ResourceExt as _;

/// A tenant with a queue, and where its jobs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTenant {
    /// What it may use.
    pub team: Team,
    /// Its group.
    pub group: String,
    /// Its weight among borrowers.
    pub weight: i32,
    /// New jobs wait: `spec.suspend`.
    pub suspended: bool,
    /// Namespaces of the team; true: listed in its spec, so that jobs may be admitted there.
    pub namespaces: BTreeMap<String, bool>,
}

/// The tenant's queue; `None`: it queues for nothing. A profile whose pools have different systems has no queue, and is in the second part.
pub fn queued(
    tenant: &GpuTenant,
    view: &FleetView,
    namespaces: BTreeMap<String, bool>,
) -> (Option<QueuedTenant>, Vec<String>) {
    let mut gpus: BTreeMap<String, Entitlement> = BTreeMap::new();
    let mut conflicts = Vec::new();
    for guarantee in tenant.spec.gpus.iter().filter(|g| g.count > 0 || g.borrow > 0) {
        let Ok(resource) = granted(tenant, view, &guarantee.profile) else { continue };
        match view.queueing_of(&resource) {
            Some(QueueingSystem::Kueue) => {
                let sum = gpus.entry(resource).or_default();
                sum.count += i64::from(guarantee.count);
                sum.borrow += i64::from(guarantee.borrow);
                sum.lend += i64::from(guarantee.lend.min(guarantee.count));
            }
            Some(QueueingSystem::None) => {}
            None => conflicts.push(guarantee.profile.clone()),
        }
    }
    // pods of a virtual cluster are made by its syncer, and belong to no job here
    let virtual_cluster = tenant.spec.virtual_cluster.is_some();
    if gpus.is_empty() || virtual_cluster || tenant.metadata.deletion_timestamp.is_some() {
        return (None, conflicts);
    }
    let team = Team { name: tenant.name_any(), rank: tenant.spec.priority, gpus };
    let queued = QueuedTenant {
        team,
        group: tenant.spec.sharing_group().to_owned(),
        weight: tenant.spec.sharing_weight(),
        suspended: tenant.spec.suspend,
        namespaces,
    };
    (Some(queued), conflicts)
}
