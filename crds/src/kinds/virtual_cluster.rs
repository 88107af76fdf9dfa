//! A tenant's virtual cluster: `GpuTenant.spec.virtualCluster` and `status.virtualCluster`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DurationText, MemoryText, quantity::NOT_NEGATIVE, schema::tolerant::Extensible};

/// Finalizer of tenants whose virtual cluster has to be deleted before their namespace is.
pub const VIRTUAL_CLUSTER_FINALIZER: &str = "gputenancy.io/virtual-cluster";

/// A Kubernetes control plane of the team (vCluster, open-source edition) in its namespace. Pods run on the nodes of this cluster, within the
/// budget, isolation and policies of the tenant.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq)]
#[x_kube(
    validation = Rule::new("(has(self.storage) && has(self.storage.size)) == (has(oldSelf.storage) && has(oldSelf.storage.size)) && (!has(self.storage) || !has(self.storage.size) || self.storage.size == oldSelf.storage.size)").message("spec.virtualCluster.storage.size: it cannot be added, changed or removed while the virtual cluster exists, because the volumes of a StatefulSet are fixed when it is created; write the former value; for another one remove spec.virtualCluster with its data (storage.reclaim: Delete), wait for the event VirtualClusterRemoved, and add it again"),
    validation = Rule::new("(has(self.storage) && has(self.storage.class)) == (has(oldSelf.storage) && has(oldSelf.storage.class)) && (!has(self.storage) || !has(self.storage.class) || self.storage.class == oldSelf.storage.class)").message("spec.virtualCluster.storage.class: it cannot be added, changed or removed while the virtual cluster exists, because the volumes of a StatefulSet are fixed when it is created; write the former value; for another one remove spec.virtualCluster with its data (storage.reclaim: Delete), wait for the event VirtualClusterRemoved, and add it again"),
    validation = Rule::new("self.backend != 'External' || !has(self.values)").message("spec.virtualCluster.values: with backend External the vCluster keeps its own values; remove the field"),
    validation = Rule::new("self.backend != 'External' || !has(self.resources)").message("spec.virtualCluster.resources: with backend External the control plane keeps its own requests and limits; remove the field, and set them where the vCluster is installed"),
    validation = Rule::new("self.backend != 'External' || !has(self.storage)").message("spec.virtualCluster.storage: with backend External the control plane keeps its own volumes, also when spec.virtualCluster is removed; remove the field, and set them where the vCluster is installed"),
    validation = Rule::new("self.backend != 'External' || !self.suspend").message("spec.virtualCluster.suspend: with backend External nothing is written to the control plane; use vcluster pause"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VirtualCluster {
    /// The installer of vCluster: `Helm`, the controller of virtual clusters; or `External`, another program such as Flux or Argo CD: the vCluster with the
    /// tenant's name is adopted and not changed. It cannot change; only a backend that
    /// this version does not serve any more, which counts as `External`, may become `External`.
    #[serde(default, deserialize_with = "crate::schema::tolerant::value")]
    #[x_kube(validation = Rule::new("self == oldSelf || (self == 'External' && !(oldSelf in ['Helm', 'External']))").message("spec.virtualCluster.backend: another backend would install a second vCluster; remove spec.virtualCluster first, which deletes a virtual cluster of the backend Helm"))]
    pub backend: VirtualClusterBackend,
    /// Version of vCluster, such as `0.36.1`. It must be one of the Helm value `virtualClusters.charts`; tenants cannot bring a chart. It can be
    /// raised by one minor version at a time. It cannot be lowered, except to the former version of an upgrade that was never ready. With
    /// `backend: External`: the version that runs.
    #[schemars(length(min = 5, max = 32), regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+$"))]
    pub version: String,
    /// Values of vCluster's chart, merged over the platform's. Keys that isolate tenants are refused, and the message names the first one:
    /// policies, exportKubeConfig, rbac, node sync, and others (docs/virtual-clusters.md).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "any_object")]
    pub values: BTreeMap<String, Value>,
    /// Requests and limits of the control plane, merged over those of `values`, the platform and vCluster's chart. They count against
    /// spec.resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ControlPlaneResources>,
    /// The volume of the control plane. Its size and class are fixed when the virtual cluster is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// How users reach the API server of the virtual cluster. Default: inside this cluster only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<Expose>,
    /// The kubeconfig for the team, in the Secret `gputenancy-kubeconfig` of the tenant's namespace. The controller cannot write it elsewhere: copy
    /// the Secret with your own tools.
    #[serde(default)]
    pub kubeconfig: Kubeconfig,
    /// Stop the control plane and delete the virtual cluster's pods. Its data stays.
    #[serde(default)]
    pub suspend: bool,
}

/// The installer of vCluster for a tenant.
#[derive(JsonSchema, Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VirtualClusterBackend {
    /// The controller of virtual clusters itself.
    #[default]
    Helm,
    /// Something else, such as Flux or Argo CD: the vCluster in the tenant's namespace that has the tenant's name is adopted, and nothing of it is
    /// changed.
    External,
}

impl Extensible for VirtualClusterBackend {
    /// Nothing is deleted. Tenants from before a backend was removed keep their guarantees, as the API server refuses such a name only in a new write.
    const UNKNOWN: Self = Self::External;
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

impl VirtualCluster {
    /// Treatment of the volumes when the virtual cluster is removed. Those of an adopted vCluster are not this project's.
    pub fn reclaim(&self) -> Reclaim {
        if self.backend == VirtualClusterBackend::External {
            return Reclaim::Retain;
        }
        self.storage.as_ref().map(|s| s.reclaim).unwrap_or_default()
    }
}

/// Requests and limits of a control plane, as in a container.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlaneResources {
    /// Resources that the scheduler reserves: cpu, memory, ephemeral-storage. A key that is left out keeps its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = Rule::new("self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])").message("spec.virtualCluster.resources.requests: write cpu, memory and ephemeral-storage; a control plane uses no other resource"))]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Quantity>,
    /// Resources that the control plane may use at most: cpu, memory, ephemeral-storage. A key that is left out keeps its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(validation = Rule::new("self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])").message("spec.virtualCluster.resources.limits: write cpu, memory and ephemeral-storage; a control plane uses no other resource"))]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Quantity>,
}

fn quantities(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "maxProperties": 8, "additionalProperties": {
        "description": "A Kubernetes quantity, such as 500m or 2Gi.",
        "x-kubernetes-int-or-string": true, "pattern": NOT_NEGATIVE, "minimum": 0, "maxLength": 32,
    }})
}

/// The volume of a control plane.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Storage {
    /// Size, a quantity of bytes such as `10Gi`. Default: that of vCluster's chart, 5Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = MemoryText::POSITIVE, "minimum" = 1))]
    pub size: Option<MemoryText>,
    /// StorageClass. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub class: Option<String>,
    /// Treatment of the volumes when the virtual cluster is removed.
    #[serde(default)]
    pub reclaim: Reclaim,
}

/// Treatment of the volumes of a control plane when its virtual cluster is removed.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Reclaim {
    /// They stay in the namespace with their data, and the event VirtualClusterRemoved names them. A namespace that is deleted takes its
    /// volumes with it.
    Retain,
    /// They are deleted.
    #[default]
    Delete,
}

/// Address of the API server of a virtual cluster.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expose {
    /// DNS name of the API server for users. It is added to the certificate and written into the kubeconfig. You create the Ingress or load
    /// balancer; it passes TLS through to port 443 of the Service with the tenant's name.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub host: String,
    /// Port there.
    #[serde(default = "https")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

fn https() -> i32 {
    443
}

/// The kubeconfig for the team: a token of a ServiceAccount inside, renewed at half of its lifetime. It is in the Secret
/// `gputenancy-kubeconfig` of the tenant's namespace, which its owners can read.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kubeconfig {
    /// ClusterRole inside the virtual cluster that the token gets; it must exist there. It does not restrict spec.owners.
    #[serde(default = "cluster_admin")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster_role: String,
    /// Lifetime of the token, 10m to 720h.
    #[serde(default = "one_day")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10m') && duration(self) <= duration('720h')").message("spec.virtualCluster.kubeconfig.ttl: write at least 10m and at most 720h, such as 24h"))]
    pub ttl: DurationText,
}

fn cluster_admin() -> String {
    "cluster-admin".into()
}

fn one_day() -> DurationText {
    DurationText::constant("24h")
}

impl Default for Kubeconfig {
    fn default() -> Self {
        Self { cluster_role: cluster_admin(), ttl: one_day() }
    }
}

/// Observed state of a virtual cluster.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualClusterStatus {
    /// Generation of the tenant's spec that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The backend for which objects have been written; it decides how they are deleted.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub backend: Option<VirtualClusterBackend>,
    /// Version whose objects are applied. With `backend: External`: the version that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Namespace of the control plane and of the virtual cluster's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Address of its API server in the kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Secret in this namespace with the team's kubeconfig, under the key `config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret: Option<String>,
    /// When the token expires. It is renewed at half of its lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_expires: Option<Time>,
    /// Treatment of the volumes when the virtual cluster is removed: the last `spec.virtualCluster.storage.reclaim` that the controller has
    /// read. With `backend: External`: Retain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<Reclaim>,
    /// A change of the version whose control plane has not been ready yet, or that has failed. Only with `backend: Helm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<VirtualClusterUpgrade>,
    /// When the deletion of the virtual cluster began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting_since: Option<Time>,
    /// Pods inside that the tenant's quota refuses because of their GPUs, by profile, as of the last complete reconciliation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedPods>,
    /// Ready, PolicyReady, ChartRendered, ControlPlaneReady, KubeconfigReady, CapacityShown, CatalogShown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Pods inside that request a profile and have no pod on this cluster, because the quota of the tenant refuses them.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPods {
    /// Name of the GpuProfile.
    #[serde(default)]
    pub profile: String,
    /// Number of these pods.
    #[serde(default)]
    pub count: i32,
    /// The first ten of them by the time of their refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<RefusedPod>,
}

/// A pod inside that the quota refuses.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPod {
    /// Namespace inside.
    #[serde(default)]
    pub namespace: String,
    /// Name inside.
    #[serde(default)]
    pub name: String,
    /// Time of the oldest refusal that the API server inside still has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Reason and remedy, as in the event `BudgetUsed` of the pod.
    #[serde(default)]
    pub message: String,
}

/// A change of `spec.virtualCluster.version` whose control plane has not been ready yet.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualClusterUpgrade {
    /// Version that ran before. It runs again when the upgrade has failed.
    #[serde(default)]
    pub from: String,
    /// Requested version.
    #[serde(default)]
    pub to: String,
    /// Fingerprint of the chart and the values of `to`. A failed upgrade is tried again when it differs.
    #[serde(default)]
    pub fingerprint: String,
    /// When the objects of `to` were applied: its control plane has ten minutes from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When the upgrade failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Time>,
    /// Reason why the control plane of `to` was not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
