//! Devices before and after, by profile, tenant and pool.

use std::collections::BTreeSet;

use gputenancy_crds::Stranded;
use gputenancy_operator::plan::{ProfileName, Served, Supply, TenantName, resource_name};
use kube::ResourceExt as _;

use super::{
    model::{BeforeAfter, PoolPreview, ProfileCapacity, TenantCapacity, WindowPreview},
    side::Side,
    window,
};

/// By profile, in order of names.
pub(super) fn profiles(old: &Side<'_>, new: &Side<'_>) -> Vec<ProfileCapacity> {
    let names: BTreeSet<&ProfileName> = old.plan.profiles.keys().chain(new.plan.profiles.keys()).collect();
    let of = |side: &Side<'_>, name: &ProfileName| side.plan.profiles.get(name).copied();
    let capacity = |name: &ProfileName| {
        let (was, will) = (of(old, name), of(new, name));
        let guaranteed = |s: Option<Supply>| s.unwrap_or_default().guaranteed;
        let resource = resource(new, name).or_else(|| resource(old, name)).unwrap_or_default();
        ProfileCapacity {
            profile: name.to_string(),
            guaranteed: BeforeAfter { before: guaranteed(was), after: guaranteed(will) },
            // a new profile may name existing devices
            devices: BeforeAfter {
                before: was.or(will).unwrap_or_default().before,
                after: will.unwrap_or_default().after,
            },
            held: count(new.used().filter(|d| d.pod.is_some() && *d.resource == *resource).count()),
            resource,
        }
    };
    names.into_iter().map(capacity).collect()
}

fn resource(side: &Side<'_>, profile: &ProfileName) -> Option<String> {
    side.world.profile(profile.as_str()).map(|p| resource_name(profile.as_str(), &p.spec))
}

/// By tenant and profile, in order of names.
pub(super) fn tenants(old: &Side<'_>, new: &Side<'_>) -> Vec<TenantCapacity> {
    let keys = |side: &Side<'_>| {
        let tenants = side.plan.tenants.iter();
        tenants.flat_map(|(t, served)| served.keys().map(|p| (t.clone(), p.clone())).collect::<Vec<_>>()).collect()
    };
    let mut all: BTreeSet<_> = keys(old);
    all.extend::<BTreeSet<_>>(keys(new));
    let capacity = |(tenant, profile): (TenantName, ProfileName)| {
        let of = |side: &Side<'_>| -> Served {
            side.plan.tenants.get(&tenant).and_then(|t| t.get(&profile)).copied().unwrap_or_default()
        };
        let (was, will) = (of(old), of(new));
        let resource = resource(new, &profile).or_else(|| resource(old, &profile)).unwrap_or_default();
        let holds = |namespace: &str| {
            let owner = new.world.tenant_of(namespace).or_else(|| old.world.tenant_of(namespace));
            owner.as_deref() == Some(tenant.as_str())
        };
        let held =
            new.used().filter(|d| *d.resource == *resource && d.pod.as_ref().is_some_and(|p| holds(&p.namespace)));
        TenantCapacity {
            tenant: tenant.to_string(),
            profile: profile.to_string(),
            guaranteed: BeforeAfter { before: was.guaranteed, after: will.guaranteed },
            served: BeforeAfter { before: was.satisfied, after: will.satisfied },
            held: count(held.count()),
        }
    };
    all.into_iter().map(capacity).collect()
}

/// Every pool that is not being deleted, in order of names.
pub(super) fn pools(old: &Side<'_>, new: &Side<'_>) -> Vec<PoolPreview> {
    let stranded =
        |side: &Side<'_>, pool: &str| -> Stranded { side.plan.stranded.get(pool).copied().unwrap_or_default() };
    let slices = |n: i32| u32::try_from(n).unwrap_or(0);
    let preview = |pool: &&gputenancy_crds::GpuPool| {
        let name = pool.name_any();
        let (was, will) = (stranded(old, &name), stranded(new, &name));
        let rules = &pool.spec.disruption;
        let window = window::of(pool, new.world.taken_at);
        PoolPreview {
            max_unavailable: match &rules.max_unavailable {
                k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(n) => n.to_string(),
                k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(text) => text.clone(),
            },
            node_by_node: pool.spec.partitioner == gputenancy_crds::Partitioner::MigManager,
            notice: rules.notice.to_string(),
            window: window.words,
            window_open: window.open,
            next_window: window
                .next
                .map(|(start, end)| WindowPreview { start: start.to_string(), end: end.to_string() }),
            stranded_memory: BeforeAfter { before: slices(was.memory), after: slices(will.memory) },
            stranded_compute: BeforeAfter { before: slices(was.compute), after: slices(will.compute) },
            pool: name,
        }
    };
    let mut pools: Vec<PoolPreview> =
        new.world.fleet.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).map(|p| preview(&p)).collect();
    pools.sort_by(|a, b| a.pool.cmp(&b.pool));
    pools
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
