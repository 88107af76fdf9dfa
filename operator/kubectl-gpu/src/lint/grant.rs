//! The `GpuGrant` that the operator would write for a tenant of these files.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{FractionSize, GpuGrantSpec, GpuProfile, GpuTenant, GrantedProfile};
use gputenancy_plan::{resource_name, trust_needed};
use kube::ResourceExt;

use super::queues;
use crate::world::World;

/// The grant of a tenant's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    pub spec: GpuGrantSpec,
    /// Fields of the spec that the files do not determine.
    pub unknown: BTreeSet<String>,
}

/// The grant, as far as the files determine it.
pub(super) fn of(world: &World, tenant: &GpuTenant) -> Grant {
    let mut resources: BTreeMap<String, i32> = BTreeMap::new();
    let mut profiles = Vec::new();
    let (mut names, mut shares, mut unknown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut queued = BTreeSet::new();
    for guarantee in tenant.spec.gpus.iter().filter(|g| g.count > 0 || g.borrow > 0) {
        let Some(profile) = world.profile(&guarantee.profile) else {
            unknown.extend(["resources", "shares", "profiles", "pools"].map(str::to_owned));
            continue;
        };
        let share = profile.spec.device.sharing_mode().is_some();
        if tenant.spec.trust < trust_needed(&profile.spec) || (share && !tenant.spec.acknowledges_shares()) {
            continue;
        }
        let resource = resource_name(&profile.name_any(), &profile.spec);
        let waits = queues::waits(world, tenant, &resource);
        let borrow = if waits { guarantee.borrow } else { 0 };
        if guarantee.count + borrow == 0 {
            continue;
        }
        names.insert(profile.name_any());
        if waits {
            queued.insert(resource.clone());
        }
        let most = most_in_a_pod(profile).min(guarantee.count.saturating_add(borrow));
        if share {
            shares.insert(resource.clone());
        }
        profiles.push(GrantedProfile {
            name: profile.name_any(),
            resource_name: resource.clone(),
            budget: guarantee.count,
            fraction: profile.spec.device.fraction.as_ref().map(FractionSize::from),
            expected: profile.spec.support.expected.clone(),
            incident: profile.spec.support.incident.clone(),
        });
        let granted = resources.entry(resource).or_default();
        *granted = most.max(*granted);
    }
    let pools = &world.fleet.pools;
    if pools.is_empty() {
        unknown.insert("pools".to_owned());
    }
    let offers = |profiles: &[String]| profiles.iter().any(|p| names.contains(p));
    let pools = pools.iter().filter(|p| offers(&p.spec.profiles)).map(ResourceExt::name_any);
    let spec = GpuGrantSpec {
        tenant: tenant.name_any(),
        resources,
        shares: shares.into_iter().collect(),
        profiles,
        pools: pools.collect(),
        max_grace_period_seconds: tenant.spec.max_grace_period.seconds().ok(),
        priority_classes: tenant.spec.priority_classes.clone(),
        image_registries: tenant.spec.image_registries.clone(),
        ingress_hosts: tenant.spec.ingress_hosts.clone(),
        virtual_cluster: tenant.spec.virtual_cluster.is_some(),
        queued: queued.into_iter().collect(),
        queues: tenant.spec.queues.clone(),
    };
    Grant { spec, unknown }
}

fn most_in_a_pod(profile: &GpuProfile) -> i32 {
    let exclusive = profile.spec.device.sharing_mode().is_none();
    profile.spec.max_per_pod.unwrap_or(if exclusive { i32::MAX } else { 1 })
}
