//! What a tenant's pods may ask for, as the operator would grant it from these files.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuProfile, GpuTenant};
use gputenancy_operator::plan::{resource_name, trust_needed};
use kube::ResourceExt;

use crate::world::World;

/// The grant of a tenant's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    /// The tenant.
    pub tenant: String,
    /// Resources, and how many of each one pod may have.
    pub resources: BTreeMap<String, i128>,
    /// Pools that may be selected; `None`: the files have no pool.
    pub pools: Option<BTreeSet<String>>,
    /// Priority classes that may be named; `None`: all but the cluster's own.
    pub priority_classes: Option<Vec<String>>,
    /// Queues that may be joined.
    pub queues: Vec<String>,
}

/// The grant; `None` where a profile of its budget is not among the files, so that nobody knows all of it.
pub(super) fn of(world: &World, tenant: &GpuTenant) -> Option<Grant> {
    let (priority_classes, queues) = (tenant.spec.priority_classes.clone(), tenant.spec.queues.clone());
    let mut grant = Grant { tenant: tenant.name_any(), priority_classes, queues, ..Grant::default() };
    let mut names = BTreeSet::new();
    for guarantee in tenant.spec.gpus.iter().filter(|g| g.count > 0) {
        let profile = world.profile(&guarantee.profile)?;
        if tenant.spec.trust < trust_needed(&profile.spec) {
            continue;
        }
        names.insert(profile.name_any());
        let most = i128::from(most_in_a_pod(profile).min(guarantee.count));
        let granted = grant.resources.entry(resource_name(&profile.name_any(), &profile.spec)).or_default();
        *granted = most.max(*granted);
    }
    let pools = &world.fleet.pools;
    let offers = |profiles: &[String]| profiles.iter().any(|p| names.contains(p));
    grant.pools = (!pools.is_empty())
        .then(|| pools.iter().filter(|p| offers(&p.spec.profiles)).map(ResourceExt::name_any).collect());
    Some(grant)
}

fn most_in_a_pod(profile: &GpuProfile) -> i32 {
    let exclusive = profile.spec.device.whole.is_some() || profile.spec.device.mig.is_some();
    profile.spec.max_per_pod.unwrap_or(if exclusive { i32::MAX } else { 1 })
}
