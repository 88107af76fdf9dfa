//! `GpuTenant`: a team, its namespaces, and its guaranteed devices.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DurationText, Isolation, Price, Trust, VirtualCluster, VirtualClusterStatus, quantity::NOT_NEGATIVE};

/// A team: namespaces, GPU budget, owners.
#[derive(CustomResource, KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "gputenancy.io",
    version = "v1alpha1",
    kind = "GpuTenant",
    shortname = "gput",
    category = "gputenancy",
    status = "GpuTenantStatus",
    derive = "PartialEq",
    doc = "GpuTenant is the demand of one team: its namespaces, its guaranteed devices by profile, and its owners.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Trust", type_ = "string", json_path = ".spec.trust"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Equivalents", type_ = "string", json_path = ".status.equivalents.used", priority = 1),
    printcolumn(name = "Cap", type_ = "string", json_path = ".status.equivalents.cap", priority = 1),
    printcolumn(name = "Enforcement", type_ = "string", json_path = ".status.enforcement", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 50").message("metadata.name: use at most 50 characters, the name becomes part of object names"),
    validation = Rule::new("!has(self.spec.gpuEquivalents) || !has(self.spec.gpus) || self.spec.gpus.all(g, !has(g.borrow) || g.borrow == 0)").message("spec.gpus[].borrow: a cap over all profiles does not count what is borrowed; leave borrow or spec.gpuEquivalents out"),
    validation = Rule::new("!has(self.spec.virtualCluster) || self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name: with spec.virtualCluster the name is also that of a Service: use lowercase letters, digits and '-', and start with a letter; a name cannot change, so create another tenant"),
    validation = Rule::new("!has(self.spec.virtualCluster) || self.spec.namespaces.size() == 1").message("spec.namespaces: write exactly one namespace with spec.virtualCluster: it holds the control plane and its pods; teams create their namespaces inside"),
    validation = Rule::new("!has(self.spec.virtualCluster) || !has(oldSelf.spec.virtualCluster) || self.spec.namespaces.map(n, n.name) == oldSelf.spec.namespaces.map(n, n.name)").message("spec.namespaces: a virtual cluster cannot move to another namespace; delete the tenant and create it again"),
    validation = Rule::new("has(self.spec.virtualCluster) || !has(oldSelf.spec.virtualCluster) || oldSelf.spec.virtualCluster.backend == 'External' || !self.spec.deletionProtection").message("spec.virtualCluster: removing it deletes the virtual cluster and its data; set spec.deletionProtection: false in the same change, and true again afterwards"),
    validation = Rule::new("has(self.spec.virtualCluster) || !has(oldSelf.spec.virtualCluster) || !has(oldSelf.spec.virtualCluster.storage) || oldSelf.spec.virtualCluster.storage.reclaim != 'Retain' || !has(self.status) || !has(self.status.virtualCluster) || (has(self.status.virtualCluster.reclaim) && self.status.virtualCluster.reclaim == 'Retain')").message("spec.virtualCluster: the controller has not read storage.reclaim: Retain yet and would delete the volumes; remove it when status.virtualCluster.reclaim is Retain, or set storage.reclaim: Delete first"),
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuTenantSpec {
    /// Users, groups and service accounts with the rights of `edit` in the tenant's namespaces, without quotas, labels and network policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub owners: Vec<Owner>,
    /// Users, groups and service accounts with the rights of `view` in the tenant's namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub viewers: Vec<Owner>,
    /// Trust in the team; limits the profiles that it may use.
    #[serde(default)]
    pub trust: Trust,
    /// Sharing with others: the acknowledgement that shares of a GPU do not isolate, and the group of teams that lend each other idle devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<TenantSharing>,
    /// Rank of the guarantees when GPUs do not suffice: 5 is served first, -5 last, equal ranks share fairly. Pods within another team's
    /// guarantee are never evicted for it.
    #[serde(default)]
    #[schemars(range(min = -5, max = 5))]
    pub priority: i32,
    /// Namespaces of the team, created by the operator or adopted. They share one budget, which moves to where pods wait.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub namespaces: Vec<TenantNamespace>,
    /// Guaranteed devices by profile. A profile that is not listed has a limit of zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["profile".into()]))]
    pub gpus: Vec<Guarantee>,
    /// A cap over all profiles together, in whole GPUs, such as `"3.5"`. Default: no cap. A device counts as its share of the board's
    /// memory slices: on an A100 with 80 GB a `1g.10gb` as 1/8, a `3g.40gb` as 4/8, a whole GPU as 1; one of N equal shares of a GPU as
    /// 1/N, and one of a stated size as the larger of its parts of memory and compute; with different boards the largest share counts. Counts in `gpus` are then maximums, and the planner still provides all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 12))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,5}([.][0-9]{1,3})?$') && double(self) > 0.0").message("spec.gpuEquivalents: write whole GPUs as a decimal number above 0 in quotes, with three decimals at most, such as \"3.5\"; leave it out for no cap"))]
    pub gpu_equivalents: Option<String>,
    /// Other limits, as keys of a ResourceQuota: `requests.cpu`, `requests.memory`, `pods`, and so on. GPU resources belong in `gpus`.
    /// Other keys are unlimited, except those of the chart's `tenants.defaultResources`: by default no node ports (`services.nodeports`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(
        validation = Rule::new("self.all(k, !k.contains('nvidia.com/') && !k.contains('gputenancy.io/'))").message("spec.resources: GPU resources are budgeted in spec.gpus by profile; remove keys of nvidia.com and gputenancy.io"),
        validation = Rule::new("self.size() <= 32").message("spec.resources: write at most 32 keys"),
        validation = Rule::new("self.all(k, k.contains('/') ? k.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && k.size() <= 253 && (k.startsWith('count/') || k.startsWith('requests.') || k.endsWith('.storageclass.storage.k8s.io/requests.storage') || k.endsWith('.storageclass.storage.k8s.io/persistentvolumeclaims') || k.endsWith('.deviceclass.resource.k8s.io/devices')) : k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'resourcequotas', 'services', 'replicationcontrollers', 'secrets', 'persistentvolumeclaims', 'configmaps', 'services.nodeports', 'services.loadbalancers'] || k.matches('^(requests[.])?hugepages-[A-Za-z0-9]{1,40}$'))").message("spec.resources: write keys that a ResourceQuota counts: requests.cpu, limits.memory, pods and the like, count/<resource>.<group>, <class>.storageclass.storage.k8s.io/requests.storage, or requests.<domain>/<name> with at most 63 characters after the slash"),
        validation = Rule::new("self.all(k, !(k.contains('/') && !k.startsWith('requests.') || k in ['pods', 'resourcequotas', 'services', 'replicationcontrollers', 'secrets', 'persistentvolumeclaims', 'configmaps', 'services.nodeports', 'services.loadbalancers']) || !string(self[k]).matches('[.]|[num]$'))").message("spec.resources: write whole numbers for what is counted (pods, services, count/<resource>.<group> and the like), such as 8"),
    )]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {
        "description": "A Kubernetes quantity, such as 64, 500m or 512Gi.",
        "x-kubernetes-int-or-string": true, "pattern": NOT_NEGATIVE, "minimum": 0, "maxLength": 32,
    }))]
    pub resources: BTreeMap<String, Quantity>,
    /// Network isolation of the team's pods, by a NetworkPolicy in each namespace. The cluster's CNI plugin has to enforce it.
    #[serde(default)]
    pub network: Network,
    /// The Pod Security Standard that pods of the team must meet.
    #[serde(default)]
    pub pod_security: PodSecurity,
    /// PriorityClasses that the team's pods may name, in addition to the chart's `policies.priorityClasses` and the cluster's default class,
    /// enforced by policy and by a scoped quota. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    #[x_kube(validation = Rule::new("self.all(c, !c.startsWith('system-'))").message("spec.priorityClasses: system- classes are the cluster's own; name others, or leave the list out"))]
    pub priority_classes: Option<Vec<String>>,
    /// Queues of a batch scheduler that the team's workloads may join by label (policies.queueLabels in the chart's values; default: KAI
    /// and Run:ai). Others are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub queues: Vec<String>,
    /// Registries, or folders of them, that the team's images may come from, such as `registry.example.com/team-a` or `docker.io/library`.
    /// Others are refused, or admitted with a warning (`policies.otherRegistries` in the chart's values). At least one; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 253)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(r, r.matches('^(localhost|[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[0-9]{1,5}|([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+(:[0-9]{1,5})?))(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$'))").message("spec.imageRegistries: write a registry with an optional folder, such as registry.example.com:5000/team-a, without a scheme and without a slash at the end; write docker.io/team-a for images named team-a/…"),
    )]
    pub image_registries: Option<Vec<String>>,
    /// Hosts that the team's Ingresses and routes of the Gateway API may serve: a name, or `*.` and a name for its direct subdomains. Others
    /// are refused. `[]`: none. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(h, h.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))").message("spec.ingressHosts: write names of hosts in lowercase, such as team-a.example.com, or *.team-a.example.com for its direct subdomains; without a port and a path"),
    )]
    pub ingress_hosts: Option<Vec<String>>,
    /// Longest grace period of pods with a GPU: in their spec, in a DELETE request and in an eviction. A longer one is refused, because a
    /// program that ignores SIGTERM keeps its device for as long. 1s to 24h.
    #[serde(default = "ten_minutes")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('24h')").message("spec.maxGracePeriod: write at least 1s and at most 24h, such as 10m"))]
    pub max_grace_period: DurationText,
    /// Image pull secrets of the team, by names that the chart allows (`tenants.imagePullSecrets`). The Secret of the operator's namespace is
    /// copied into each namespace of the team and added to its ServiceAccount `default`. Owners can read the copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(n, n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))").message("spec.imagePullSecrets: write names of Secrets of the operator's namespace, such as registry: lowercase letters, digits, '-' and '.'"),
    )]
    pub image_pull_secrets: Vec<String>,
    /// Admit no new work: quotas are set to zero. Running pods continue, and nothing is deleted.
    #[serde(default)]
    pub suspend: bool,
    /// A Kubernetes control plane of the team's own. The tenant then has one namespace, which holds it and its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_cluster: Option<VirtualCluster>,
    /// Refuse deletion of the tenant until this is false.
    #[serde(default = "yes")]
    pub deletion_protection: bool,
}

fn ten_minutes() -> DurationText {
    DurationText::constant("10m")
}

fn yes() -> bool {
    true
}

/// Sharing of GPUs and of idle devices with other teams.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(validation = Rule::new("has(self.acknowledgedBy) || has(self.group) || has(self.weight)").message("spec.sharing: write acknowledgedBy for shares of a GPU, group or weight for lent devices, or leave sharing out"))]
#[x_kube(validation = Rule::new("has(self.acknowledgedBy) || !has(self.acknowledgedAt)").message("spec.sharing.acknowledgedBy: Required value: write who acknowledged it on this day"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantSharing {
    /// Person or group that accepts, such as `lead-of-team-a@example.com`, that shares of a GPU (profiles with `timeSlice`, `mps` or `fraction`) do
    /// not isolate pods as a whole GPU or a MIG instance does. Without it the team gets none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub acknowledged_by: Option<String>,
    /// Day of the acknowledgement, a date of RFC 3339 such as `2026-11-24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date"), regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub acknowledged_at: Option<String>,
    /// Teams of the same group lend each other idle devices, as far as `spec.gpus[].lend` and `borrow` permit, in pools with a queueing system.
    /// Default: the group `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 50))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("spec.sharing.group: write lowercase letters, digits and '-', such as research; the name becomes part of object names"))]
    pub group: Option<String>,
    /// The team's part of what several teams borrow at the same time, relative to the weights of the others. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: Option<i32>,
}

impl TenantSharing {
    /// The group of a tenant that names none.
    pub const DEFAULT_GROUP: &str = "default";
}

impl GpuTenantSpec {
    /// Is it acknowledged for the team that shares of a GPU do not isolate?
    pub fn acknowledges_shares(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.acknowledged_by.is_some())
    }

    /// The group of teams with which the team lends and borrows idle devices.
    pub fn sharing_group(&self) -> &str {
        self.sharing.as_ref().and_then(|sharing| sharing.group.as_deref()).unwrap_or(TenantSharing::DEFAULT_GROUP)
    }

    /// The team's weight among those that borrow at the same time.
    pub fn sharing_weight(&self) -> i32 {
        self.sharing.as_ref().and_then(|sharing| sharing.weight).unwrap_or(1)
    }
}

/// A user, group or service account.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(validation = Rule::new("self.kind == 'ServiceAccount' ? has(self.namespace) : !has(self.namespace)").message("spec.owners, spec.viewers: write namespace for a ServiceAccount, and only for it"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Owner {
    /// User, Group or ServiceAccount.
    pub kind: OwnerKind,
    /// Name as the API server's authenticator gives it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of a ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// Kind of an owner.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
    /// A service account, such as that of a CI job.
    ServiceAccount,
}

/// Network isolation of a team's pods.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum Network {
    /// Egress to the team's namespaces, DNS, the API server, and the chart's `tenants.network.egress`. Ingress from the team's namespaces
    /// and from namespaces with the label gputenancy.io/reaches-tenants.
    #[default]
    Isolated,
    /// No NetworkPolicy from the operator.
    Open,
}

/// A Pod Security Standard. `privileged` is not available: a privileged pod has every device of its node.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum PodSecurity {
    /// Pods run without root and without any privilege.
    #[default]
    Restricted,
    /// Pods may run as root with the runtime's default capabilities; no host namespaces, host paths or privileged containers.
    Baseline,
}

/// A namespace of the team.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(validation = Rule::new("!(self.name.startsWith('kube-') || self.name == 'default')").message("spec.namespaces: choose a name of the team's own; kube-* and default belong to the cluster"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantNamespace {
    /// Name of the namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Adopt the namespace if it exists, belongs to no tenant and has the label gputenancy.io/adoptable=true. An adopted namespace is released, not deleted, with the tenant.
    #[serde(default)]
    pub adopt: bool,
}

/// Guaranteed devices of a profile.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(validation = Rule::new("!has(self.lend) || self.lend <= self.count").message("spec.gpus[].lend: a team can lend what it is guaranteed; write at most count"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guarantee {
    /// Name of a GpuProfile.
    #[schemars(length(min = 1, max = 63))]
    pub profile: String,
    /// Number of devices.
    #[schemars(range(min = 0, max = 100_000))]
    pub count: i32,
    /// Most devices above `count` that the team may borrow while they are idle, in pools with a queueing system. Jobs on them are suspended and
    /// queued again when the owner needs them. Default: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 100_000))]
    pub borrow: i32,
    /// Most devices of `count` that others may borrow while the team leaves them idle. Default: none; they stay idle.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 100_000))]
    pub lend: i32,
}

impl Guarantee {
    /// A guarantee of which nothing is lent, and above which nothing is borrowed.
    pub fn of(profile: &str, count: i32) -> Self {
        Self { profile: profile.to_owned(), count, borrow: 0, lend: 0 }
    }
}

/// Is it the default, which is not written?
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// Observed state of a tenant.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuTenantStatus {
    /// Generation of the spec that this status refers to; -1 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, NamespacesReady, PolicyReady, QuotaReady, CapacityReady; PullSecretsReady with
    /// `spec.imagePullSecrets`; QueueReady with a profile of a pool with a queueing system; Suspended with `spec.suspend`; MemoryLimited
    /// while a pod has a device; EarlierAccess while others reach an adopted namespace as before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The namespaces and their state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub namespaces: Vec<NamespaceState>,
    /// Budget and use by profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["profile".into()]))]
    pub gpus: Vec<GpuUse>,
    /// Use of all profiles together; only with `spec.gpuEquivalents`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivalents: Option<Equivalents>,
    /// Jobs in the tenant's queue; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueUse>,
    /// The weakest means that limits the memory of the tenant's pods with devices: Hardware for MIG instances and whole GPUs. It is that of
    /// containers that start now; see the condition MemoryLimited. Absent while no pod has a device.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Isolation>,
    /// State of the virtual cluster; only with `spec.virtualCluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_cluster: Option<VirtualClusterStatus>,
    /// Used and budget in one line for `kubectl get`, such as `mig-1g 2/8, gpu 2/2 (1 unmet)`: one device of the guarantee does not exist. Devices that admitted pods wait for count as used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// State of one namespace.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceState {
    /// Name of the namespace.
    pub name: String,
    /// Active, Retained (no longer listed), Adopting, Terminating, Missing or Foreign (it exists and is not this tenant's).
    pub phase: String,
}

impl NamespaceState {
    /// Phase of a namespace that exists and is not the tenant's.
    pub const FOREIGN: &str = "Foreign";

    /// Does the namespace exist without being the tenant's?
    pub fn is_foreign(&self) -> bool {
        self.phase == Self::FOREIGN
    }

    /// Does the namespace exist as the tenant's?
    pub fn is_own(&self) -> bool {
        ["Active", "Retained", "Terminating"].contains(&self.phase.as_str())
    }
}

/// Budget and use of one profile.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuUse {
    /// Name of the GpuProfile.
    pub profile: String,
    /// Extended resource that pods request.
    pub resource_name: String,
    /// Devices that the team is guaranteed.
    pub budget: i32,
    /// Devices that pods requested and the quotas admitted.
    pub used: i32,
    /// Devices that exist for the tenant: in use, and free up to its budget.
    pub available: i32,
    /// Pods that wait for a device of this profile, controllers whose pods the quota has refused for two seconds, and pods inside the virtual
    /// cluster that the quota refuses.
    pub waiting: i32,
    /// Devices above the guarantee that admitted jobs of the team use. Their owners can reclaim them. Absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub borrowed: i32,
    /// Devices of the guarantee that jobs of other teams use. The team's own jobs reclaim them. Absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lent: i32,
    /// Share of a whole GPU that one device counts against `spec.gpuEquivalents`, such as `1/8`; absent without a cap, and when no board
    /// of a pool offers the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Isolation of a pod on one device from its neighbours, as in the GpuProfile's status; absent while the profile is not in the catalog.
    #[serde(default, deserialize_with = "crate::schema::tolerant::option", skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Price of one device for one hour, as in the GpuProfile; absent when it has none.
    #[serde(default, deserialize_with = "Price::read", skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// Jobs in a tenant's queue, over all its namespaces.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QueueUse {
    /// Jobs (Workloads of Kueue) that wait to be admitted.
    #[serde(default)]
    pub waiting: i32,
    /// Jobs that are admitted and have not ended.
    #[serde(default)]
    pub admitted: i32,
}

/// Use of all profiles together, in whole GPUs by memory slices.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Equivalents {
    /// Use that the quotas admitted, rounded up to thousandths, such as `2.125`. A device that no board of a pool offers counts as a whole
    /// GPU.
    pub used: String,
    /// The cap: `spec.gpuEquivalents`.
    pub cap: String,
}
