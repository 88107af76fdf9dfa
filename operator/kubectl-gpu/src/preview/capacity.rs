//! Devices before and after, by profile, tenant and pool.

use std::collections::BTreeSet;

use gputenancy_crds::{
    GpuPool,
    ids::{ProfileName, TenantName},
};
use gputenancy_plan::{resource_name, snapshot::InUse};
use k8s_openapi::{apimachinery::pkg::util::intstr::IntOrString, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{
    model::{BeforeAfter, PoolPreview, ProfileCapacity, TenantCapacity, WindowPreview},
    planned::PlannedWorld,
    window,
};

/// By profile, in order of names.
pub(super) fn profiles(old: &PlannedWorld<'_>, new: &PlannedWorld<'_>) -> Vec<ProfileCapacity> {
    let names: BTreeSet<&ProfileName> = old.plan.profiles.keys().chain(new.plan.profiles.keys()).collect();
    let capacity = |name: &ProfileName| {
        let [was, will] = [old, new].map(|planned| planned.plan.profiles.get(name).copied());
        let resource = resource(old, new, name);
        ProfileCapacity {
            profile: name.to_string(),
            guaranteed: before_after([was, will], |supply| supply.unwrap_or_default().guaranteed),
            // a new profile may name existing devices
            devices: BeforeAfter {
                before: was.or(will).unwrap_or_default().before,
                after: will.unwrap_or_default().after,
            },
            held: in_use([old, new], |d| d.pod.is_some() && *d.resource == *resource),
            resource,
        }
    };
    names.into_iter().map(capacity).collect()
}

fn resource(old: &PlannedWorld<'_>, new: &PlannedWorld<'_>, profile: &ProfileName) -> String {
    let found = new.world.profile(profile.as_str()).or_else(|| old.world.profile(profile.as_str()));
    found.map(|p| resource_name(profile.as_str(), &p.spec)).unwrap_or_default()
}

/// By tenant and profile, in order of names.
pub(super) fn tenants(old: &PlannedWorld<'_>, new: &PlannedWorld<'_>) -> Vec<TenantCapacity> {
    let tenants = old.plan.tenants.iter().chain(&new.plan.tenants);
    let names: BTreeSet<(&TenantName, &ProfileName)> =
        tenants.flat_map(|(tenant, served)| served.keys().map(move |profile| (tenant, profile))).collect();
    let capacity = |(tenant, profile): (&TenantName, &ProfileName)| {
        let served = [old, new]
            .map(|planned| planned.plan.tenants.get(tenant).and_then(|t| t.get(profile)).copied().unwrap_or_default());
        let resource = resource(old, new, profile);
        let holds = |namespace: &str| {
            let owner = new.world.tenant_of(namespace).or_else(|| old.world.tenant_of(namespace));
            owner.as_deref() == Some(tenant.as_str())
        };
        let is_held = |d: &InUse| *d.resource == *resource && d.pod.as_ref().is_some_and(|p| holds(&p.namespace));
        TenantCapacity {
            tenant: tenant.to_string(),
            profile: profile.to_string(),
            guaranteed: before_after(served, |served| served.guaranteed),
            served: before_after(served, |served| served.satisfied),
            held: in_use([old, new], is_held),
        }
    };
    names.into_iter().map(capacity).collect()
}

/// Devices in use now. A plan that deletes a pool has none of its nodes, and one that adds a pool has more.
fn in_use(plans: [&PlannedWorld<'_>; 2], is_held: impl Fn(&InUse) -> bool) -> u32 {
    plans.map(|planned| count(planned.used().filter(|device| is_held(device)))).into_iter().max().unwrap_or_default()
}

/// Every pool that is not being deleted, in order of names.
pub(super) fn pools(old: &PlannedWorld<'_>, new: &PlannedWorld<'_>) -> Vec<PoolPreview> {
    let preview = |pool: &GpuPool| {
        let name = pool.name_any();
        let stranded = [old, new].map(|planned| planned.plan.stranded.get(name.as_str()).copied().unwrap_or_default());
        let slices = |n: i32| u32::try_from(n).unwrap_or(0);
        let rules = &pool.spec.disruption;
        let window = window::of(pool, new.world.taken_at);
        let times =
            |(start, end): (Timestamp, Timestamp)| WindowPreview { start: start.to_string(), end: end.to_string() };
        PoolPreview {
            max_unavailable: match &rules.max_unavailable {
                IntOrString::Int(n) => n.to_string(),
                IntOrString::String(text) => text.clone(),
            },
            node_by_node: new.whole(&name).is_some(),
            notice: rules.notice.to_string(),
            window: window.words,
            window_open: window.open,
            next_window: window.next.map(times),
            stranded_memory: before_after(stranded, |stranded| slices(stranded.memory)),
            stranded_compute: before_after(stranded, |stranded| slices(stranded.compute)),
            pool: name,
        }
    };
    let pools = new.world.fleet.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none());
    let mut pools: Vec<PoolPreview> = pools.map(preview).collect();
    pools.sort_by(|a, b| a.pool.cmp(&b.pool));
    pools
}

fn before_after<T>(both: [T; 2], number: impl Fn(T) -> u32) -> BeforeAfter {
    let [before, after] = both.map(number);
    BeforeAfter { before, after }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
