//! Wakes controllers. A controller whose pods were refused retries after its own back-off, up to 1000 s, but reconciles at once when its object
//! changes. So once there is headroom, the operator writes a condition into its status. Off with `--wake-controllers=false`.

use std::fmt;

use gputenancy_crds::reasons;
use gputenancy_decisions::quota::Amounts;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        batch::v1::Job,
    },
    jiff::Timestamp,
};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::{
    apply::{Part, Writer},
    cache::ControllerRef,
    object_name::ObjectName,
    tenant::{TenantError, failed},
};

/// Type of the condition in a controller's status, and its reason.
const CONDITION: (&str, &str) = ("gputenancy.io/QuotaAvailable", reasons::QUOTA_AVAILABLE.as_str());

/// A controller of a type that can be woken: the types of Kubernetes that create pods of teams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeTarget {
    resource: ApiResource,
    name: ObjectName,
}

/// A controller to wake: there is headroom for the pod that it was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Namespace.
    pub namespace: String,
    /// Uid of the controller.
    pub uid: String,
    /// The controller.
    pub target: WakeTarget,
    /// What one pod requested, by quota key.
    pub amounts: Amounts,
}

impl WakeTarget {
    /// A controller; `None` for types that cannot be woken.
    pub fn of(controller: &ControllerRef) -> Option<Self> {
        let resources = [
            ApiResource::erase::<ReplicaSet>(&()),
            ApiResource::erase::<StatefulSet>(&()),
            ApiResource::erase::<Job>(&()),
        ];
        let found = |r: &ApiResource| r.kind == controller.kind && r.api_version == controller.api_version;
        let resource = resources.into_iter().find(found)?;
        Some(Self { resource, name: controller.name.clone() })
    }
}

impl fmt::Display for WakeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.kind, self.name)
    }
}

impl Wake {
    /// Fields to apply to the status; with the uid, so that another object of the same name is not changed.
    fn fields(&self, tenant: &str, now: Timestamp) -> Value {
        let amounts: Vec<String> = self.amounts.iter().map(|(key, n)| format!("{key}={}", n.quantity().0)).collect();
        let (type_, reason) = CONDITION;
        let condition = json!({
            "type": type_, "status": "True", "reason": reason,
            "message": format!("the budget of GpuTenant {tenant} has headroom here for a pod with {}", amounts.join(",")),
            // whole seconds, as in all conditions
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        json!({"metadata": {"name": self.target.name.as_str(), "uid": self.uid}, "status": {"conditions": [condition]}})
    }

    /// Writes the condition. A controller that was deleted, or whose status the API server refuses to change, is not an error.
    pub(in crate::tenant) async fn perform(
        &self,
        writer: &Writer,
        tenant: &str,
        now: Timestamp,
    ) -> Result<(), TenantError> {
        let Self { namespace, target, .. } = self;
        let fields = self.fields(tenant, now);
        match writer.apply_status_in(Part::Tenant, namespace, &target.resource, &target.name, fields).await {
            Ok(()) => tracing::debug!(controller = %target, namespace, "woke a controller"),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            // a retry would fail too, and must not block other writes of the tenant
            Err(kube::Error::Api(status)) if status.is_forbidden() || status.code == 422 => {
                tracing::warn!(controller = %target, namespace, error = %status, "cannot wake a controller");
            }
            // written; the answer has what its team wrote into it, such as a time that no parser reads
            Err(kube::Error::SerdeError(error)) => {
                tracing::debug!(controller = %target, namespace, %error, "answer not read");
            }
            Err(error) => return Err(failed(format!("waking {target} of namespace {namespace}"))(error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::Amount;

    fn target(api_version: &str, kind: &str) -> Option<WakeTarget> {
        let name = ObjectName::parse("train").unwrap();
        WakeTarget::of(&ControllerRef { api_version: api_version.into(), kind: kind.into(), name })
    }

    #[test]
    fn wake_writes_tenant_and_amounts_into_the_condition() {
        let amounts = [("requests.nvidia.com/gpu".to_owned(), Amount::units(2))].into();
        let target = target("batch/v1", "Job").unwrap();
        let wake = Wake { namespace: "a".into(), uid: "u".into(), target, amounts };
        assert_eq!(
            wake.fields("team", Timestamp::from_second(1_800_000_000).unwrap()),
            json!({"metadata": {"name": "train", "uid": "u"}, "status": {"conditions": [{
                "type": "gputenancy.io/QuotaAvailable", "status": "True", "reason": "QuotaAvailable",
                "message": "the budget of GpuTenant team has headroom here for a pod with requests.nvidia.com/gpu=2",
                "lastTransitionTime": "2027-01-15T08:00:00Z",
            }]}})
        );
        assert_eq!((wake.target.to_string().as_str(), wake.target.resource.plural.as_str()), ("Job train", "jobs"));
    }

    #[test]
    fn only_controllers_of_kubernetes_can_be_woken() {
        assert!(target("apps/v1", "ReplicaSet").is_some_and(|t| t.resource.plural == "replicasets"));
        assert!(target("apps/v1", "StatefulSet").is_some());
        for (version, kind) in [("batch/v1", "ReplicaSet"), ("batch.volcano.sh/v1alpha1", "Job"), ("", "")] {
            assert_eq!(target(version, kind), None, "{version} {kind}");
        }
    }
}
