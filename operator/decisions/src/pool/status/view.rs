//! What tenants need to know of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{FractionSize, GpuPool, GpuProfileSpec};
use gputenancy_plan::{Problem, resource_name, trust_needed};
use kube::ResourceExt;

use crate::{
    fleet_view::{Contract, FleetView, PoolView, ProfileView, TenantView},
    pool::{
        decide::decided::Decided,
        derive::{devices, flapping},
    },
    quota::device_weights,
};

/// Builds the view of this pass.
pub fn view(decided: &Decided<'_>) -> FleetView {
    let sums = decided.views.sums();
    let mut profiles = BTreeMap::new();
    let mut resources: BTreeSet<String> = FleetView::empty().resources;
    for profile in decided.fleet().profiles.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let name = profile.name_any();
        let resource = resource_name(&name, &profile.spec);
        resources.insert(resource.clone());
        let free = sums.capacity(&resource).free;
        let refused = refused(decided, &name);
        let contract = contract(decided, &name, &profile.spec);
        let (trust, sharing) = (trust_needed(&profile.spec), profile.spec.device.sharing_mode());
        profiles.insert(name, ProfileView { resource, trust, sharing, refused, free, contract });
    }
    resources.extend(decided.states.resources().cloned());
    let mut shortages: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for problem in &decided.plan.problems {
        if let Problem::Shortage { tenant, .. } = problem {
            shortages.entry(tenant.as_str()).or_default().push(problem.for_tenant());
        }
    }
    for (tenant, waits) in flapping::waiting(decided.demands, decided.now()) {
        shortages.entry(tenant).or_default().push(waits);
    }
    let tenants = decided.fleet().tenants.iter().map(|t| {
        let shortages = shortages.remove(t.metadata.name.as_deref().unwrap_or_default()).unwrap_or_default().into();
        (t.name_any().into(), TenantView { generation: t.metadata.generation, shortages })
    });
    FleetView {
        complete: true,
        profiles,
        resources,
        weights: device_weights(decided.plan.snapshot),
        tenants: tenants.collect(),
        held: sums.held().clone(),
        retained_devices: sums.left_over(decided.pods),
        waiting: devices::waiting(decided.pods),
        limits: sums.limits(),
        pools: decided.fleet().active_pools().map(|pool| (pool.name_any(), pool_view(decided, pool))).collect(),
    }
}

/// A pool with its verified devices.
fn pool_view(decided: &Decided<'_>, pool: &GpuPool) -> PoolView {
    let offered = decided.fleet().profiles.iter().filter(|p| pool.spec.profiles.contains(&p.name_any()));
    let resources: BTreeSet<String> = offered.map(|p| resource_name(&p.name_any(), &p.spec)).collect();
    let sums = decided.views.sums().of_pool(&pool.name_any());
    let devices = resources.iter().map(|resource| (resource.clone(), sums.map_or(0, |sums| sums.in_service(resource))));
    let (queueing, taint) = (pool.spec.queueing.clone(), pool.spec.taint.clone());
    PoolView { queueing, taint, devices: devices.collect(), resources }
}

/// What a user of the profile has to know.
fn contract(decided: &Decided<'_>, name: &str, spec: &GpuProfileSpec) -> Contract {
    let carries = decided.fleet().pools.iter().filter(|p| p.spec.profiles.iter().any(|has| has == name));
    Contract {
        max_per_pod: spec.max_per_pod.or(spec.device.sharing_mode().map(|_| 1)),
        pools: carries.map(ResourceExt::name_any).collect(),
        support: spec.support.clone(),
        price: spec.price.clone(),
        fraction: spec.device.fraction.as_ref().map(FractionSize::from),
    }
}

/// Why nobody gets a profile: its kind is not served yet, its resource is another's, or it cannot be read.
fn refused(decided: &Decided<'_>, name: &str) -> Option<(gputenancy_crds::reasons::Reason, String)> {
    let fatal = |p: &&Problem| matches!(p, Problem::ResourceNameConflict { .. });
    let problem = decided.plan.problems.iter().filter(|p| p.concerns_profile(name)).find(fatal);
    let unreadable = || {
        let message = format!("profile {name} cannot be read: see its conditions");
        (!decided.plan.snapshot.profiles.contains_key(name))
            .then_some((gputenancy_crds::reasons::INVALID_SPEC, message))
    };
    problem.map(|p| (p.reason(), p.to_string())).or_else(unreadable)
}
