//! Calling controllers. One whose pods were refused for a while comes back only after its own pause, which doubles with each refusal: up
//! to 1000 s. It looks at once when its object changes, so where room was made its status says so.

use std::fmt;

use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        batch::v1::Job,
    },
    jiff::Timestamp,
};
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::split::Amounts;

/// Type of the condition in a controller's status.
const ROOM_MADE: &str = "gputenancy.io/RoomMade";

/// Kinds of controllers that can be called: those of Kubernetes itself that make pods of teams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReplicaSet,
    StatefulSet,
    Job,
}

/// A controller that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    kind: Kind,
    name: String,
}

/// A controller that is to be called, for there is room for what it was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// The controller.
    pub controller: Controller,
    /// What a pod of it was refused for, by quota key.
    pub amounts: Amounts,
}

impl Kind {
    fn resource(self) -> ApiResource {
        match self {
            Self::ReplicaSet => ApiResource::erase::<ReplicaSet>(&()),
            Self::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            Self::Job => ApiResource::erase::<Job>(&()),
        }
    }
}

impl Controller {
    /// The object that an event is about; `None` for kinds that are not called.
    pub fn of(api_version: &str, kind: &str, name: &str) -> Option<Self> {
        let kinds = [Kind::ReplicaSet, Kind::StatefulSet, Kind::Job];
        let kind = kinds.into_iter().find(|known| {
            let resource = known.resource();
            resource.kind == kind && resource.api_version == api_version
        })?;
        Some(Self { kind, name: name.to_owned() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is kept.
    pub fn resource(&self) -> ApiResource {
        self.kind.resource()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

impl Call {
    /// What is applied to its status, if it is still the object that was refused.
    pub fn fields(&self, tenant: &str, now: Timestamp) -> Value {
        let amounts: Vec<String> = self.amounts.iter().map(|(key, n)| format!("{key}={}", n.quantity().0)).collect();
        let message = format!("the budget of GpuTenant {tenant} has room here for a pod with {}", amounts.join(","));
        let condition = json!({
            "type": ROOM_MADE, "status": "True", "reason": "RoomMade", "message": message,
            // whole seconds, as in all conditions
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        json!({"metadata": {"name": self.controller.name, "uid": self.uid}, "status": {"conditions": [condition]}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputenancy_crds::quantity::Amount;

    #[test]
    fn a_call_says_whose_budget_has_room_for_what() {
        let controller = Controller::of("batch/v1", "Job", "train").unwrap();
        let amounts = [("requests.nvidia.com/gpu".to_owned(), Amount::units(2))].into();
        let call = Call { namespace: "a".into(), uid: "u".into(), controller, amounts };
        let fields = call.fields("team", Timestamp::from_second(1_800_000_000).unwrap());
        assert_eq!(
            fields,
            json!({"metadata": {"name": "train", "uid": "u"}, "status": {"conditions": [{
                "type": "gputenancy.io/RoomMade", "status": "True", "reason": "RoomMade",
                "message": "the budget of GpuTenant team has room here for a pod with requests.nvidia.com/gpu=2",
                "lastTransitionTime": "2027-01-15T08:00:00Z",
            }]}})
        );
        assert_eq!(
            (call.controller.to_string().as_str(), call.controller.resource().plural.as_str()),
            ("Job train", "jobs")
        );
    }

    #[test]
    fn only_kubernetes_own_kinds_are_called() {
        assert!(Controller::of("apps/v1", "ReplicaSet", "x").is_some_and(|c| c.resource().plural == "replicasets"));
        assert!(Controller::of("apps/v1", "StatefulSet", "x").is_some());
        for (version, kind) in [("batch/v1", "ReplicaSet"), ("batch.volcano.sh/v1alpha1", "Job"), ("", "")] {
            assert!(Controller::of(version, kind, "x").is_none(), "{version} {kind}");
        }
    }
}
