//! Labels, annotations, the finalizer, field managers and resource names, each spelled once.

use std::fmt;

/// Label on namespaces and on everything rendered for a tenant; the value is the tenant's name.
pub const TENANT_LABEL: &str = "gputenancy.io/tenant";
/// Label on namespaces of the platform, such as those of ingress controllers and of monitoring: with the value `true` their pods may
/// connect to those of isolated tenants.
pub const REACHES_TENANTS_LABEL: &str = "gputenancy.io/reaches-tenants";
/// Label on nodes; the value is the name of the pool that the node belongs to.
pub const POOL_LABEL: &str = "gputenancy.io/pool";
/// Name of the `GpuGrant` in every namespace of a tenant.
pub const GRANT: &str = "grant";
/// Label on nodes whose GPUs are simulated.
pub const SIMULATED_LABEL: &str = "gputenancy.io/simulated";
/// Label on nodes of a pool: a digest of the layouts of their GPUs, equal on nodes that are carved alike.
pub const LAYOUT_LABEL: &str = "gputenancy.io/layout";
/// Label on nodes of a pool: `steady`, `changing` or `failed`.
pub const LAYOUT_STATE_LABEL: &str = "gputenancy.io/layout.state";
/// Recommended label of Kubernetes for the tool that manages an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] on everything that we render.
pub const MANAGED_BY: &str = "gputenancy";
/// Name of the quota in every namespace of a tenant.
pub const QUOTA: &str = "gputenancy";
/// Finalizer on the kinds whose deletion needs work.
pub const FINALIZER: &str = "gputenancy.io/finalizer";
/// Annotation on nodes: the taint that we have put there, as `key=value:effect`.
pub const TAINTED: &str = "gputenancy.io/tainted";
/// Pods with this annotation set to `true` are waited for, never evicted.
pub const DO_NOT_EVICT: &str = "gputenancy.io/do-not-evict";
/// Annotation on pods that will be evicted: deadline and reason.
pub const EVICTION_NOTICE: &str = "gputenancy.io/eviction-notice";

/// Label on nodes that NVIDIA's MIG manager acts on whenever its value changes: the name of a layout in its ConfigMap.
pub const MIG_CONFIG_LABEL: &str = "nvidia.com/mig.config";
/// Label on nodes in which NVIDIA's MIG manager answers: `pending`, `rebooting`, `success` or `failed`.
pub const MIG_STATE_LABEL: &str = "nvidia.com/mig.config.state";
/// Prefix of the labels that say which parts of the GPU Operator run on a node.
pub const DEPLOY_LABELS: &str = "nvidia.com/gpu.deploy.";
/// Value of such a label while NVIDIA's MIG manager keeps the part from running.
pub const PAUSED: &str = "paused-for-mig-change";
/// `ConfigMap` in our namespace with the layouts for NVIDIA's MIG manager, under the key [`MIG_CONFIG_KEY`].
pub const MIG_CONFIG_MAP: &str = "gputenancy-mig-config";
/// Its key.
pub const MIG_CONFIG_KEY: &str = "config.yaml";
/// Annotation on nodes that we have cordoned: since when. A node without it was cordoned by somebody else.
pub const CORDONED: &str = "gputenancy.io/cordoned";

/// Label on canary pods; the value is the profile that the pod proves.
pub const CANARY_LABEL: &str = "gputenancy.io/canary";
/// Annotation on canary pods: the node whose device they prove.
pub const CANARY_NODE: &str = "gputenancy.io/canary-node";
/// Prefix of the resources under which new devices are offered to canary pods alone.
pub const CANARY_RESOURCES: &str = "gputenancy.io/canary_";

/// Prefix of the operator's field managers; each controller appends `/<part>`.
pub const OPERATOR_MANAGER: &str = "gputenancy-operator";
/// Field manager of the agent.
pub const AGENT_MANAGER: &str = "gputenancy-agent";

/// Resource name of a whole GPU, as NVIDIA's device plugin advertises it.
pub const WHOLE_GPU_RESOURCE: &str = "nvidia.com/gpu";

/// Can this extended resource be a GPU's?
pub fn is_gpu_resource(resource: &str) -> bool {
    resource.starts_with("nvidia.com/") || resource.starts_with("gputenancy.io/")
}

/// The resource name that NVIDIA's device plugin gives a MIG profile in its `mixed` strategy:
/// `nvidia.com/mig-` and the profile's name with `+` turned into `.`.
pub fn mig_resource(profile: &str) -> String {
    format!("nvidia.com/mig-{}", profile.replace('+', "."))
}

/// The resource name of a profile that has none of its own at NVIDIA: `gputenancy.io/<profile>`.
pub fn own_resource(profile: &str) -> String {
    format!("gputenancy.io/{profile}")
}

/// The resource under which one new device is offered to its canary pod, by NVML's index of the GPU and the device's first memory slice:
/// a pod that asks
/// for it can have got no other device. No profile can have it: names of profiles have no underscore.
pub fn canary_resource(gpu: impl fmt::Display, start: impl fmt::Display) -> String {
    format!("{CANARY_RESOURCES}{gpu}_{start}")
}

/// Is it a resource of [`canary_resource`], which is no tenant's?
pub fn is_canary_resource(resource: &str) -> bool {
    resource.starts_with(CANARY_RESOURCES)
}
