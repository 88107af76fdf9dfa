//! MIG instances under the resource of whole GPUs: only in pools in which a pod that requests it can get nothing else.

use gputenancy_crds::names::WHOLE_GPU_RESOURCE as WHOLE;

use crate::{
    board::Shape,
    snapshot::{Pool, Profile},
};

/// Why a pool does not offer a profile under its resource, with what to write instead; `None`: it does.
pub(crate) fn refusal(pool: &Pool, profile: &Profile) -> Option<String> {
    let mig = matches!(profile.shape, Shape::Named(_) | Shape::AtLeast { .. });
    match (pool.single, mig, profile.resource == WHOLE) {
        (true, false, _) => Some(format!(
            "with spec.strategy: Single the pool has MIG instances as {WHOLE}, and this profile is none; list a profile with device.mig, or write strategy: Mixed"
        )),
        (true, true, false) => Some(format!(
            "with spec.strategy: Single its instances are {WHOLE} and not {}; write spec.resourceName: {WHOLE} in the profile, or strategy: Mixed in the pool",
            profile.resource
        )),
        (false, true, true) => Some(format!(
            "a MIG instance is {WHOLE} only where a pod cannot get a whole GPU instead; write spec.strategy: Single in the pool and list this profile alone, or leave spec.resourceName of the profile out"
        )),
        (true, true, true) | (false, false, _) | (false, true, false) => None,
    }
}
