//! Whether a tenant may use a profile.

use gputenancy_crds::{
    GpuTenant,
    reasons::{self, Reason},
};
use gputenancy_plan::Problem;
use kube::ResourceExt as _;

use crate::{fleet_view::FleetView, quota::unknown_weight_message};

/// A guarantee that cannot be granted at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of a condition.
    pub reason: Reason,
    /// State and remedy.
    pub message: String,
}

/// The resource of a profile that is granted to the tenant.
///
/// # Errors
/// Why it is not: the profile does not exist or is not served, the tenant's trust is too low, or an acknowledgement or a weight is missing.
pub fn granted(tenant: &GpuTenant, view: &FleetView, profile: &str) -> Result<String, Refusal> {
    let me = tenant.name_any();
    let Some(found) = view.profiles.get(profile) else {
        let message = format!("profile {profile} does not exist: create GpuProfile {profile} or correct spec.gpus");
        return Err(Refusal { reason: reasons::PROFILE_NOT_FOUND, message });
    };
    if let Some((reason, message)) = &found.refused {
        return Err(Refusal { reason: *reason, message: message.clone() });
    }
    let trust = tenant.spec.trust;
    if trust < found.trust {
        let message = format!(
            "tenant {me} (trust {trust:?}) may not use profile {profile} (trust {:?} or higher): raise spec.trust or choose a profile isolated by hardware",
            found.trust
        );
        return Err(Refusal { reason: reasons::TRUST_TOO_LOW, message });
    }
    if let Some(mode) = found.sharing.filter(|_| !tenant.spec.acknowledges_shares()) {
        let problem = Problem::SharingNotAcknowledged { tenant: me.into(), profile: profile.into(), mode };
        return Err(Refusal { reason: problem.reason(), message: problem.to_string() });
    }
    if tenant.spec.gpu_equivalents.is_some() && !view.weights.contains_key(&found.resource) {
        return Err(Refusal { reason: reasons::WEIGHT_UNKNOWN, message: unknown_weight_message(profile) });
    }
    Ok(found.resource.clone())
}
