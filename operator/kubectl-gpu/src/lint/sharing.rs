//! Shares of GPUs: the profile that fits a decimal, and workloads on whole GPUs where the pools offer shares only.

use std::collections::BTreeSet;

use gputenancy_crds::{Device, Fraction, GpuProfile, GpuTenant, Mps, TimeSlice, names};
use gputenancy_plan::{resource_name, trust_needed};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use crate::world::World;

/// The part of a GPU that one share is, in thousandths; `None`: the profile is no share.
fn part(device: &Device) -> Option<i32> {
    let equal = |replicas: i32| 1000_i32.checked_div(replicas);
    match device {
        // the part of the GPU that an instance has depends on the board
        Device { time_slice: Some(TimeSlice { of: Some(_), .. }), .. } => None,
        Device { time_slice: Some(TimeSlice { replicas, .. }), .. }
        | Device { mps: Some(Mps { replicas: Some(replicas), .. }), .. } => equal(*replicas),
        Device { mps: Some(Mps { threads: Some(percent), .. }), .. }
        | Device { fraction: Some(Fraction { compute: percent, .. }), .. } => percent.checked_mul(10),
        _ => None,
    }
}

/// What to write instead of a decimal of a whole GPU, in thousandths: the smallest share that is not smaller, of the tenant's profiles
/// if one fits, else of the catalog.
pub(super) fn instead_of_decimal(world: &World, tenant: Option<&GpuTenant>, milli: i128) -> Option<String> {
    let smallest = |usable: &dyn Fn(&GpuProfile) -> bool| {
        let shares = world.fleet.profiles.iter().filter(|p| usable(p));
        let fits = shares.filter_map(|p| Some((part(&p.spec.device)?, p.name_any(), p)));
        fits.filter(|(part, ..)| i128::from(*part) >= milli).min_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)))
    };
    let in_budget = |profile: &GpuProfile| {
        tenant.is_some_and(|t| {
            t.spec.trust >= trust_needed(&profile.spec)
                && t.spec.gpus.iter().any(|g| g.count > 0 && g.profile == profile.name_any())
        })
    };
    if !(1..1000).contains(&milli) {
        return None;
    }
    let own = smallest(&in_budget);
    let missing =
        tenant.filter(|_| own.is_none()).map(|t| format!("; list it in spec.gpus of GpuTenant {} first", t.name_any()));
    let (part, name, profile) = own.or_else(|| smallest(&|_| true))?;
    Some(format!(
        "write {}: 1, the share of GpuProfile {name} ({}.{} % of a GPU){}",
        resource_name(&name, &profile.spec),
        part / 10,
        part % 10,
        missing.unwrap_or_default()
    ))
}

/// Is it the resource of whole GPUs?
pub(super) fn is_whole(world: &World, resource: &str) -> bool {
    let whole = |p: &&GpuProfile| p.spec.device.whole.is_some();
    let named = world.fleet.profiles.iter().filter(whole).any(|p| resource_name(&p.name_any(), &p.spec) == resource);
    named || resource == names::WHOLE_GPU_RESOURCE
}

/// Why a workload on whole GPUs would be left with shares: no pool of the files offers the resource, and one offers shares.
pub(super) fn only_shares(world: &World, resource: &str) -> Option<String> {
    let listed = |p: &&GpuProfile| world.fleet.pools.iter().any(|pool| pool.spec.profiles.contains(&p.name_any()));
    let offered: Vec<&GpuProfile> = world.fleet.profiles.iter().filter(listed).collect();
    let resource_of = |p: &GpuProfile| resource_name(&p.name_any(), &p.spec);
    if !is_whole(world, resource) || offered.iter().any(|p| resource_of(p) == resource) {
        return None;
    }
    let shares = offered.iter().filter(|p| p.spec.device.sharing_mode().is_some());
    let shares: BTreeSet<String> = shares.map(|p| format!("{} (profile {})", resource_of(p), p.name_any())).collect();
    (!shares.is_empty()).then(|| {
        format!(
            "requests {resource}, which no GpuPool among the files offers; instead of it the pools offer shares, which isolate less: {}. \
             Nothing turns a whole GPU into a share by itself: list a profile of whole GPUs in spec.profiles of a pool, or write another \
             resource in the workload first",
            shares.into_iter().collect::<Vec<_>>().join(", ")
        )
    })
}

/// Workloads of tenants in a snapshot that [`only_shares`] concerns, as their name and the reason: controllers, or pods without one.
pub(super) fn left_with_shares(world: &World) -> BTreeSet<(String, String)> {
    let concerned =
        |(name, pod): (&gputenancy_crds::ids::PodName, &std::sync::Arc<gputenancy_crds::projection::SlimPod>)| {
            world.tenant_of(&name.namespace)?;
            let why = pod.resources().iter().filter(|_| !pod.is_over()).find_map(|r| only_shares(world, r))?;
            let controller = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
            let of = |o: &OwnerReference| format!("{} {}/{}", o.kind, name.namespace, o.name);
            Some((controller.map_or_else(|| format!("Pod {}/{}", name.namespace, name.name), of), why))
        };
    world.fleet.pods.iter().filter_map(concerned).collect()
}
