//! Queues of pools: fields of tenants that have no effect without one, and pools that offer the same devices with different systems.

use std::collections::BTreeSet;

use gputenancy_crds::{GpuPool, GpuTenant, Guarantee, QueueingSystem, words::are};
use gputenancy_plan::resource_name;
use kube::ResourceExt as _;

use crate::world::World;

/// A mistake in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
    /// JSON pointer of the field.
    pub pointer: String,
    /// What is wrong, and what to write.
    pub message: String,
}

/// Do jobs of this tenant wait for the resource in a queue? As for the operator, all pools that offer it must have the same system.
pub(super) fn waits(world: &World, tenant: &GpuTenant, resource: &str) -> bool {
    tenant.spec.virtual_cluster.is_none() && systems(world, resource).into_iter().eq([QueueingSystem::Kueue])
}

/// All mistakes about queues.
pub(super) fn mistakes(world: &World) -> Vec<Mistake> {
    let tenants = world.tenants.iter().flat_map(|tenant| of_tenant(world, tenant));
    tenants.chain(world.fleet.pools.iter().filter_map(|pool| of_pool(world, pool))).collect()
}

/// Profiles of a pool that exist, each with its resource.
fn offered<'a>(world: &'a World, pool: &'a GpuPool) -> impl Iterator<Item = (&'a str, String)> {
    let named = pool.spec.profiles.iter().filter_map(move |name| Some((name.as_str(), world.profile(name)?)));
    named.map(|(name, profile)| (name, resource_name(name, &profile.spec)))
}

/// The systems of the pools that offer a resource.
fn systems(world: &World, resource: &str) -> BTreeSet<QueueingSystem> {
    let offers = |pool: &&GpuPool| offered(world, pool).any(|(_, own)| own == resource);
    world.fleet.pools.iter().filter(offers).map(|pool| pool.spec.queueing.system).collect()
}

/// Fields of a tenant without an effect.
fn of_tenant(world: &World, tenant: &GpuTenant) -> Vec<Mistake> {
    let fields = tenant.spec.gpus.iter().enumerate().flat_map(|(at, guarantee)| {
        let fields = [("borrow", guarantee.borrow), ("lend", guarantee.lend)].into_iter();
        fields.filter(|(_, devices)| *devices > 0).map(move |(field, _)| (at, guarantee, field))
    });
    let mistake = |(at, guarantee, field): (usize, &Guarantee, &str)| {
        let message = without_effect(world, tenant, guarantee, field)?;
        Some(Mistake {
            kind: "GpuTenant",
            name: tenant.name_any(),
            pointer: format!("/spec/gpus/{at}/{field}"),
            message,
        })
    };
    fields.filter_map(mistake).collect()
}

/// Why the field has no effect; `None`: it has one, or the files do not determine it.
fn without_effect(world: &World, tenant: &GpuTenant, guarantee: &Guarantee, field: &str) -> Option<String> {
    if tenant.spec.virtual_cluster.is_some() {
        return Some(format!(
            "{field} has no effect, because a tenant with spec.virtualCluster has no queue: leave {field} out, or use a tenant without a \
             virtual cluster"
        ));
    }
    let profile = world.profile(&guarantee.profile).filter(|_| !world.fleet.pools.is_empty())?;
    let systems = systems(world, &resource_name(&guarantee.profile, &profile.spec));
    // pools with different systems, and guarantees that no pool offers, have findings of their own
    let is_found_elsewhere = systems.is_empty() && guarantee.count > 0;
    (!systems.contains(&QueueingSystem::Kueue) && !is_found_elsewhere).then(|| {
        format!(
            "{field} has no effect, because no GpuPool among the files offers profile {} with a queueing system: write \
             spec.queueing.system: Kueue in the pools that offer it, or leave {field} out",
            guarantee.profile
        )
    })
}

/// Profiles of a pool without queues that have the resource of a profile of a pool with queues.
fn of_pool(world: &World, pool: &GpuPool) -> Option<Mistake> {
    if pool.spec.queueing.system != QueueingSystem::None {
        return None;
    }
    let (mut profiles, mut pools) = (BTreeSet::new(), BTreeSet::new());
    for other in world.fleet.pools.iter().filter(|other| other.spec.queueing.system == QueueingSystem::Kueue) {
        let theirs: BTreeSet<String> = offered(world, other).map(|(_, resource)| resource).collect();
        for (profile, _) in offered(world, pool).filter(|(_, resource)| theirs.contains(resource)) {
            profiles.insert(profile.to_owned());
            pools.insert(other.name_any());
        }
    }
    let count = profiles.len();
    let listed = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    let (profiles, pools) = (listed(profiles), listed(pools));
    (count > 0).then(|| Mistake {
        kind: "GpuPool",
        name: pool.name_any(),
        pointer: "/spec/queueing/system".to_owned(),
        message: format!(
            "{profiles} {} also offered by pool {pools} with spec.queueing.system: Kueue, so that jobs for {profiles} have no queue: write \
             the same system in all of these pools, or profiles with a spec.resourceName of their own in one of them",
            are(&count)
        ),
    })
}
