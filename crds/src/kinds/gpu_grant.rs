//! `GpuGrant`: what a team may use. One per namespace of a tenant, read by people and by the admission policies.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Fraction, MemoryText};

/// The resources that pods of one namespace may request. Written by the operator only.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "gputenancy.io",
    version = "v1alpha1",
    kind = "GpuGrant",
    namespaced,
    shortname = "gpugrant",
    category = "gputenancy",
    derive = "PartialEq",
    doc = "GpuGrant is what a team may use in one of its namespaces: the resources, and how many of each one pod may request. The operator writes it; the admission policies refuse what it does not list.",
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant"),
    printcolumn(name = "Profiles", type_ = "string", json_path = ".spec.profiles[*].name"),
    printcolumn(name = "Pools", type_ = "string", json_path = ".spec.pools"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'grant'").message("metadata.name: a namespace has one grant, and it is named grant"),
)]
#[serde(rename_all = "camelCase")]
pub struct GpuGrantSpec {
    /// The tenant that the namespace belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub tenant: String,
    /// Extended resources that pods may request, and the most of each per pod. Others are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub resources: BTreeMap<String, i32>,
    /// Those of the resources that are shares of a GPU. A pod with one of them may request no other device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub shares: Vec<String>,
    /// The same by profile, with its contract.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub profiles: Vec<GrantedProfile>,
    /// Pools whose nodes offer these resources; pods may select nodes of these only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pools: Vec<String>,
    /// Longest grace period of a pod with a GPU, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_grace_period_seconds: Option<i64>,
    /// PriorityClasses that pods may name, in addition to those of all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub priority_classes: Option<Vec<String>>,
    /// Registries, or folders of them, that images may come from. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub image_registries: Option<Vec<String>>,
    /// Hosts that Ingresses and routes may serve. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub ingress_hosts: Option<Vec<String>>,
    /// The namespace has a virtual cluster. Its syncer, the ServiceAccount `vc-TENANT`, may create pods without a GPU that tolerate a cordon, as
    /// DaemonSets made inside do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_cluster: bool,
    /// Those of the resources for which jobs wait in the queue of Kueue. Pods that request one are refused, unless they belong to a job that Kueue has
    /// admitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub queued: Vec<String>,
    /// Queues of a batch scheduler that labels may name. Others are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub queues: Vec<String>,
}

/// A profile that the team may use.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GrantedProfile {
    /// Name of the GpuProfile.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Extended resource that pods request.
    pub resource_name: String,
    /// Devices that the team is guaranteed over all its namespaces.
    pub budget: i32,
    /// Size of a device, where the profile is a fraction. Annotations `gpu-fraction` and `gpu-memory` of pods choose the profile by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<FractionSize>,
    /// Behaviour that a user must accept as normal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// Behaviour that counts as an incident of the platform.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incident: String,
}

/// Size of a fraction.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FractionSize {
    /// Memory of one device, a quantity of bytes such as `10Gi`.
    pub memory: MemoryText,
    /// Part of the GPU's time, in percent.
    pub compute: i32,
}

impl From<&Fraction> for FractionSize {
    fn from(fraction: &Fraction) -> Self {
        Self { memory: fraction.memory.clone(), compute: fraction.compute }
    }
}
