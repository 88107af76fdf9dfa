//! Slices of devices of DRA drivers.

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

/// Projection of a `ResourceSlice`: driver and node, without devices.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = ResourceSlice)]
pub struct SlimSlice {
    /// Name.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// Driver and node.
    #[serde(default)]
    pub spec: SlimSliceSpec,
}

/// Spec of a slice.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimSliceSpec {
    /// Name of the driver.
    #[serde(default)]
    pub driver: String,
    /// The node; absent for devices of no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}
