//! The status of profiles.

use gputenancy_crds::{
    Capacity, GpuNode, GpuProfile, GpuProfileStatus, Interval, RefusedResize, ShareState,
    condition::{ConditionUpdate, Overall, merge},
    reasons,
    words::counted,
};
use gputenancy_plan::{Problem, resource_name};
use kube::ResourceExt as _;

use crate::pool::decide::decided::Decided;

/// Status of one profile.
pub fn status(decided: &Decided<'_>, profile: &GpuProfile) -> GpuProfileStatus {
    let name = profile.name_any();
    let generation = profile.metadata.generation;
    let old = profile.status.clone().unwrap_or_default();
    let resource = resource_name(&name, &profile.spec);
    let overall = overall(decided, &name);
    // a profile without instances has no devices, even if another profile uses its resource name
    let refused = matches!(&overall, Overall::Stalled { reason, .. } if *reason != reasons::PROFILE_NOT_SUPPORTED);
    let capacity = if refused { Capacity::default() } else { decided.views.sums().capacity(&resource) };
    let nodes = decided.views.resize_refused();
    let updates = overall.updates().into_iter().chain(interval(profile)).chain(resized(nodes, &resource)).collect();
    let tenants =
        decided.fleet().tenants.iter().filter(|t| t.spec.gpus.iter().any(|g| g.profile == name && g.count > 0)).count();
    GpuProfileStatus {
        observed_generation: generation,
        conditions: merge(&old.conditions, updates, generation, decided.now()),
        resource_name: Some(resource),
        isolation: Some(profile.spec.device.isolation()),
        capacity: Some(capacity),
        tenants: Some(i32::try_from(tenants).unwrap_or(i32::MAX)),
        pools: Some(i32::try_from(offering(decided, &name)).unwrap_or(i32::MAX)),
    }
}

/// The driver has no public call for the length of time-slices: the NVML of release 550 exports none.
fn interval(profile: &GpuProfile) -> Option<ConditionUpdate> {
    let interval = profile.spec.device.time_slice.as_ref()?.interval;
    (interval != Interval::Default).then(|| {
        let message = format!(
            "spec.device.timeSlice.interval: {interval:?} is not applied, because NVML has no call for it; the driver's default is used: \
             run `nvidia-smi compute-policy --set-timeslice` on the nodes, or leave the field out"
        );
        ConditionUpdate::no("IntervalApplied", reasons::INTERVAL_NOT_APPLIED, message)
    })
}

/// So many pods are named in a message.
const MOST_PODS: usize = 3;

/// Pods that keep more memory than the profile has, because they hold it; `None` without such pods.
fn resized<'a>(nodes: impl Iterator<Item = (&'a str, &'a GpuNode)>, resource: &str) -> Option<ConditionUpdate> {
    let shares = |node: &'a GpuNode| node.status.iter().flat_map(|status| &status.gpus).flat_map(|gpu| &gpu.shares);
    let listed = |(name, node): (&'a str, &'a GpuNode)| shares(node).map(move |share| (name, node, share));
    let mine = |node: &GpuNode, share: &ShareState| {
        let listed = node.spec.gpus.iter().any(|gpu| gpu.share_resource(share.number).as_deref() == Some(resource));
        share.device.resource.as_deref().map_or(listed, |advertised| advertised == resource)
    };
    let refused = |(_, _, share): &(_, _, &ShareState)| share.refused_resize.is_some();
    let found = nodes.flat_map(listed).filter(refused).filter(|(_, node, share)| mine(node, share));
    let refused = found.filter_map(|(node, _, share)| {
        let (owner, RefusedResize { used, .. }) = (share.device.owner.as_ref()?, share.refused_resize.as_ref()?);
        let limit = share.memory.as_ref().map_or_else(String::new, |memory| format!(" of {memory}"));
        Some(format!("{}/{} on {node} holds {used}{limit}", owner.namespace, owner.pod))
    });
    let refused: Vec<String> = refused.collect();
    let more = refused.len().checked_sub(MOST_PODS).filter(|more| *more > 0);
    let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
    let named = refused.iter().take(MOST_PODS).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!refused.is_empty()).then(|| {
        let message = format!(
            "more memory than device.fraction.memory is held by {}, under the former limit: {named}{more}; free memory, restart the pods, or set device.fraction.resize: Force",
            counted(refused.len(), "pod"),
        );
        ConditionUpdate::no("Resized", reasons::MEMORY_IN_USE, message)
    })
}

/// Number of pools that list a profile.
fn offering(decided: &Decided<'_>, name: &str) -> usize {
    decided.fleet().pools.iter().filter(|p| p.spec.profiles.iter().any(|n| n == name)).count()
}

fn overall(decided: &Decided<'_>, name: &str) -> Overall {
    let offering = offering(decided, name);
    let mine = || decided.plan.problems.iter().filter(|p| p.concerns_profile(name));
    let unsupported =
        |p: &Problem| matches!(p, Problem::ProfileNotSupported { .. } | Problem::ShareNotSupported { .. });
    let cannot = mine().filter(|p| unsupported(p)).count();
    // one pool that can is enough
    let fatal = mine().find(|p| !unsupported(p) || cannot >= offering);
    let unreadable = || {
        let object = format!("GpuProfile {name}");
        decided.plan.problems.iter().find(|p| matches!(p, Problem::InvalidSpec { object: o, .. } if *o == object))
    };
    match (fatal.or_else(unreadable), offering) {
        (Some(problem), _) => Overall::Stalled { reason: problem.reason(), message: problem.to_string() },
        (None, 0) => Overall::Ready { message: "no pool offers it: list it in spec.profiles of a GpuPool".into() },
        (None, n) => Overall::Ready { message: format!("offered by {n} {}", if n == 1 { "pool" } else { "pools" }) },
    }
}
