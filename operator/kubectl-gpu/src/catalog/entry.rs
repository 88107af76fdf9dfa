//! From a profile to its entry.

use gputenancy_crds::{
    Capacity, ComputeMode, Device, Fraction, GpuPool, GpuProfile, GpuProfileSpec, Mig, Mps, SharingEvidence,
    SlicedDevice, TimeSlice, quota::resource_key, words::counted,
};
use gputenancy_plan::{resource_name, trust_needed};
use kube::ResourceExt as _;

use super::{
    isolation,
    model::{CatalogEntry, PriceOfDevice},
    template,
};
use crate::{
    status::{DeviceCounts, count_of},
    world::World,
};

/// The entry of one profile.
pub(super) fn of(world: &World, profile: &GpuProfile, pools_visible: bool) -> CatalogEntry {
    let (name, spec) = (profile.name_any(), &profile.spec);
    let resource = resource_name(&name, spec);
    let offers = |p: &&GpuPool| p.metadata.deletion_timestamp.is_none() && p.spec.profiles.contains(&name);
    let mut pools: Vec<&GpuPool> = world.fleet.pools.iter().filter(offers).collect();
    pools.sort_by_cached_key(|p| p.name_any());
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let shared = isolation::is_shared(&spec.device);
    CatalogEntry {
        device: in_words(&spec.device),
        mode: isolation::mode(&spec.device).to_owned(),
        isolation: format!("{:?}", spec.device.isolation()),
        isolated: owned(isolation::isolated(&spec.device)),
        not_isolated: owned(isolation::not_isolated(&spec.device)),
        trust: format!("{:?}", trust_needed(spec)),
        needs_acknowledgement: shared,
        expected: spec.support.expected.clone(),
        incident: spec.support.incident.clone(),
        price: spec
            .price
            .as_ref()
            .map(|p| PriceOfDevice { per_hour: p.per_hour.clone(), currency: p.currency.clone() }),
        max_per_pod: spec.max_per_pod.or(shared.then_some(1)),
        products: spec.products.clone(),
        pools: pools_visible.then(|| pools.iter().map(|p| p.name_any()).collect()),
        devices: devices(world, profile, &resource),
        maturity: maturity(spec),
        pod_template: template::pod(&name, &resource, &pools),
        pending: pending(&name, &resource),
        resource_name: resource,
        profile: name,
    }
}

/// What one device is.
fn in_words(device: &Device) -> String {
    match device {
        Device { mig: Some(mig), .. } => instance(mig),
        Device { time_slice: Some(TimeSlice { replicas, of: Some(SlicedDevice { mig }), .. }), .. } => {
            format!("one of {replicas} time-slices of {}", instance(mig))
        }
        Device { time_slice: Some(TimeSlice { replicas, .. }), .. } => {
            format!("one of {replicas} time-slices of a GPU")
        }
        Device { mps: Some(Mps { replicas: Some(replicas), .. }), .. } => {
            format!("one of {replicas} equal parts of a GPU, by MPS")
        }
        Device { mps: Some(Mps { memory: Some(memory), threads: Some(threads), .. }), .. } => {
            format!("{memory} of memory and {threads} % of the threads of a GPU, by MPS")
        }
        Device { fraction: Some(Fraction { memory, compute, compute_mode: ComputeMode::Burst, .. }), .. } => {
            format!("{memory} of memory and {compute} % of the compute of a GPU, more while its other pods are idle")
        }
        Device { fraction: Some(Fraction { memory, compute, .. }), .. } => {
            format!("{memory} of memory and {compute} % of the compute of a GPU")
        }
        _ => "a whole GPU".to_owned(),
    }
}

fn instance(Mig { profile, slices, memory }: &Mig) -> String {
    if let Some(profile) = profile {
        return format!("a MIG instance {profile}");
    }
    let slices = slices.map(|n| format!("{n} compute slices"));
    let least = slices.into_iter().chain(memory.as_ref().map(ToString::to_string)).collect::<Vec<_>>();
    format!("the smallest MIG instance with at least {}", least.join(" and "))
}

/// How far the platform team has tried the profile with pods that share a GPU, in one sentence; `None`: its devices are not shared.
fn maturity(spec: &GpuProfileSpec) -> Option<String> {
    spec.device.sharing_mode()?;
    let sharing = spec.sharing.as_ref();
    let Some(evidence) = sharing.and_then(|s| s.evidence.as_ref()) else {
        return Some("trial: no measurement is recorded".to_owned());
    };
    let SharingEvidence {
        p99_milliseconds,
        memory_headroom_percent,
        latencies,
        throughput_percent,
        failure,
        measured_at,
    } = evidence;
    let stage = if sharing.is_some_and(|s| s.production) { "production" } else { "trial" };
    let mut facts =
        vec![format!("p99 {p99_milliseconds} ms"), format!("{memory_headroom_percent} % of the memory free")];
    facts.extend(latencies.iter().map(|l| format!("p99 with {} {} ms", counted(l.pods, "pod"), l.p99_milliseconds)));
    facts.extend(throughput_percent.map(|p| format!("{p} % of the throughput of one pod alone")));
    let failure = failure.as_ref().map(|f| format!("; when a program failed: {f}")).unwrap_or_default();
    Some(format!("{stage}, measured on {measured_at}: {}{failure}", facts.join(", ")))
}

/// As the operator has counted them, or else as the GPU nodes show.
fn devices(world: &World, profile: &GpuProfile, resource: &str) -> Option<DeviceCounts> {
    let number = |n: i32| usize::try_from(n).unwrap_or(0);
    let reported = profile.status.as_ref().and_then(|s| s.capacity);
    let reported = reported.map(|Capacity { total, allocated, free, unschedulable }| DeviceCounts {
        total: number(total),
        used: number(allocated),
        free: number(free),
        withdrawn: number(unschedulable),
    });
    reported.or_else(|| (!world.fleet.gpu_nodes.is_empty()).then(|| count_of(world, resource)))
}

/// How to read a workload that does not start.
fn pending(profile: &str, resource: &str) -> Vec<String> {
    vec![
        format!(
            "The pod is Pending with `Insufficient {resource}`: the quota admits it, and no node has a free device. It starts when a \
             device is free; `kubectl gpu tenant TEAM` shows how many exist."
        ),
        format!(
            "There is no pod, and `kubectl apply` or the event of a controller says `exceeded quota … {}`: the team's budget is used up. \
             Delete a pod, or ask for a higher count of {profile} in spec.gpus of the GpuTenant.",
            resource_key(resource)
        ),
    ]
}
