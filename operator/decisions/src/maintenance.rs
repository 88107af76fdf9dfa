//! Projection of NVSentinel's `MaintenanceRequest`, which announces maintenance of a node to NVSentinel for as long as the object
//! exists. Its API group may be served or not, at any time.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{Resource, core::ClusterResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maintenance of nodes, by node and in the order of their names.
pub type Maintenances = BTreeMap<String, Vec<Maintenance>>;

/// Maintenance of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Name of the `MaintenanceRequest`.
    pub name: String,
    /// When it begins; `None`: it has begun.
    pub starts: Option<Timestamp>,
}

impl Maintenance {
    /// When it begins, if that is later than `now`.
    pub fn begins_after(&self, now: Timestamp) -> Option<Timestamp> {
        self.starts.filter(|starts| *starts > now)
    }
}

/// A `MaintenanceRequest` of `nvsentinel.dgxc.nvidia.com/v1`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct MaintenanceRequest {
    /// Name.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// `healthEvent.nodeName` and `startTime`; of another product, so that nothing in it is relied on.
    #[serde(default)]
    spec: Value,
}

impl MaintenanceRequest {
    /// API group and version.
    pub const API_VERSION: &str = "nvsentinel.dgxc.nvidia.com/v1";
    /// Plural name.
    pub const PLURAL: &str = "maintenancerequests";

    /// The part that is kept; `None`: it names no node.
    pub fn projected(mut self) -> Option<Self> {
        let node = self.node()?;
        let starts = self.spec.get("startTime").cloned().unwrap_or_default();
        self.spec = serde_json::json!({"healthEvent": {"nodeName": node}, "startTime": starts});
        gputenancy_crds::projection::projected(self)
    }

    fn node(&self) -> Option<&str> {
        self.spec.pointer("/healthEvent/nodeName")?.as_str().filter(|node| !node.is_empty())
    }
}

/// The maintenance that these objects announce, by node.
pub fn by_node(objects: &[Arc<MaintenanceRequest>]) -> Maintenances {
    let mut nodes = Maintenances::new();
    for object in objects {
        let Some(node) = object.node() else { continue };
        let starts = object.spec.get("startTime").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let name = object.metadata.name.clone().unwrap_or_default();
        nodes.entry(node.to_owned()).or_default().push(Maintenance { name, starts });
    }
    nodes
}

impl Resource for MaintenanceRequest {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "MaintenanceRequest".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "nvsentinel.dgxc.nvidia.com".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        Self::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(spec: &Value) -> Option<MaintenanceRequest> {
        let object = json!({"metadata": {"name": "m", "finalizers": ["x"]}, "spec": spec, "status": {"conditions": 1}});
        serde_json::from_value::<MaintenanceRequest>(object).unwrap().projected()
    }

    #[test]
    fn node_and_start_are_read_and_all_else_may_be_anything() {
        let event =
            json!({"version": 1, "nodeName": "gpu-1", "isHealthy": false, "recommendedAction": "NONE", "later": []});
        let kept = |start: Value| kept(&json!({"healthEvent": event, "startTime": start, "other": {}})).unwrap();
        let objects = [kept(json!("2026-12-01T00:00:00Z")), kept(json!("soon")), kept(json!(7)), kept(Value::Null)];
        let found = by_node(&objects.map(Arc::new));
        let starts: Vec<Option<Timestamp>> = found["gpu-1"].iter().map(|m| m.starts).collect();
        assert_eq!(starts, ["2026-12-01T00:00:00Z".parse().ok(), None, None, None]);
    }

    #[test]
    fn object_that_names_no_node_is_left_out() {
        for spec in
            [json!({}), json!(null), json!("x"), json!({"healthEvent": 1}), json!({"healthEvent": {"nodeName": ""}})]
        {
            assert_eq!(kept(&spec), None, "{spec}");
        }
    }
}
