//! The status of profiles.

use gputenancy_crds::{
    GpuProfile, GpuProfileStatus,
    condition::{Overall, merge},
    reasons,
};
use kube::ResourceExt as _;

use super::{devices, status::Seen};
use crate::plan::{Problem, resource_name};

/// Status of one profile.
pub fn status(seen: &Seen<'_>, profile: &GpuProfile) -> GpuProfileStatus {
    let name = profile.name_any();
    let generation = profile.metadata.generation;
    let old = profile.status.clone().unwrap_or_default();
    let resource = resource_name(&name, &profile.spec);
    let overall = overall(seen, &name);
    // a profile without instances has no devices, even if another profile uses its resource name
    let refused = matches!(&overall, Overall::Stalled { reason, .. } if *reason != reasons::PROFILE_NOT_SUPPORTED);
    let capacity =
        if refused { gputenancy_crds::Capacity::default() } else { devices::sum(seen.views.devices(), &resource) };
    let tenants =
        seen.fleet.tenants.iter().filter(|t| t.spec.gpus.iter().any(|g| g.profile == name && g.count > 0)).count();
    GpuProfileStatus {
        observed_generation: generation,
        conditions: merge(&old.conditions, overall.updates(), generation, seen.now),
        resource_name: Some(resource),
        isolation: Some(profile.spec.device.isolation()),
        capacity: Some(capacity),
        tenants: Some(i32::try_from(tenants).unwrap_or(i32::MAX)),
    }
}

fn overall(seen: &Seen<'_>, name: &str) -> Overall {
    let offering = seen.fleet.pools.iter().filter(|p| p.spec.profiles.iter().any(|n| n == name)).count();
    let mine = || seen.problems.iter().filter(|p| p.concerns_profile(name));
    let cannot = mine().filter(|p| matches!(p, Problem::ProfileNotSupported { .. })).count();
    let fatal = mine().find(|p| match p {
        // one pool that can is enough
        Problem::ProfileNotSupported { .. } => cannot >= offering,
        _ => true,
    });
    let unreadable = || {
        let object = format!("GpuProfile {name}");
        seen.problems.iter().find(|p| matches!(p, Problem::InvalidSpec { object: o, .. } if *o == object))
    };
    match (fatal.or_else(unreadable), offering) {
        (Some(problem), _) => Overall::Stalled { reason: problem.reason(), message: problem.to_string() },
        (None, 0) => Overall::Ready { message: "no pool offers it: list it in spec.profiles of a GpuPool".into() },
        (None, n) => Overall::Ready { message: format!("offered by {n} {}", if n == 1 { "pool" } else { "pools" }) },
    }
}
