//! Labels, annotations, the finalizer, field managers and resource names, each defined once.

use std::fmt;

use crate::quota::CLASS_RESOURCES;

/// Label on namespaces and on everything rendered for a tenant; the value is the tenant's name.
pub const TENANT_LABEL: &str = "gputenancy.io/tenant";
/// Label on namespaces of the platform, such as ingress controllers and monitoring. Value `true`: their pods may connect to isolated
/// tenants.
pub const REACHES_TENANTS_LABEL: &str = "gputenancy.io/reaches-tenants";
/// Label on namespaces of no tenant. Value `true`: a tenant with `adopt: true` for the namespace may adopt it. The operator cannot set it.
pub const ADOPTABLE_LABEL: &str = "gputenancy.io/adoptable";
/// Label on Nodes and `GpuNode`s: name of their pool.
pub const POOL_LABEL: &str = "gputenancy.io/pool";
/// Name of the `GpuGrant` in every namespace of a tenant.
pub const GRANT: &str = "grant";
/// Label on nodes whose GPUs are simulated.
pub const SIMULATED_LABEL: &str = "gputenancy.io/simulated";
/// Label on nodes of a pool: hash of the layouts of their GPUs.
pub const LAYOUT_LABEL: &str = "gputenancy.io/layout";
/// Label on nodes of a pool: `steady`, `changing` or `failed`.
pub const LAYOUT_STATE_LABEL: &str = "gputenancy.io/layout.state";
/// Label on nodes of a pool: what limits the memory of containers that start now, by the weakest means in use on the node.
pub const ENFORCEMENT_LABEL: &str = "gputenancy.io/enforcement";
/// Recommended label of Kubernetes for the tool that manages an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] on everything that the operator renders.
pub const MANAGED_BY: &str = "gputenancy";
/// Name of the quota in every namespace of a tenant.
pub const QUOTA: &str = "gputenancy";
/// Finalizer on objects whose deletion needs work.
pub const FINALIZER: &str = "gputenancy.io/finalizer";
/// Annotation on nodes: the taint that the operator added, as `key=value:effect`.
pub const TAINTED: &str = "gputenancy.io/tainted";
/// Annotation on pods; `true`: a change waits for them during `doNotEvictFor` after their creation.
pub const DO_NOT_EVICT: &str = "gputenancy.io/do-not-evict";
/// Annotation on pods; `true`: nothing is launched on their shares, and their memory stays allocated.
pub const SUSPEND_COMPUTE: &str = "gputenancy.io/suspend-compute";
/// Annotation on pods that will be evicted: deadline and reason.
pub const EVICTION_NOTICE: &str = "gputenancy.io/eviction-notice";

/// Label on nodes with the layout that NVIDIA's MIG manager applies: a name in its ConfigMap.
pub const MIG_CONFIG_LABEL: &str = "nvidia.com/mig.config";
/// Label on nodes with the state of NVIDIA's MIG manager: `pending`, `rebooting`, `success` or `failed`.
pub const MIG_STATE_LABEL: &str = "nvidia.com/mig.config.state";
/// Prefix of the labels that select the components of the GPU Operator on a node.
pub const DEPLOY_LABELS: &str = "nvidia.com/gpu.deploy.";
/// Such a label, of NVIDIA's MIG manager; `false`: it is not deployed on the node.
pub const DEPLOY_MIG_MANAGER_LABEL: &str = "nvidia.com/gpu.deploy.mig-manager";
/// Value of such a label while NVIDIA's MIG manager has stopped the component.
pub const PAUSED: &str = "paused-for-mig-change";
/// `ConfigMap` with the layouts for NVIDIA's MIG manager, under the key [`MIG_CONFIG_KEY`].
pub const MIG_CONFIG_MAP: &str = "gputenancy-mig-config";
/// Its key.
pub const MIG_CONFIG_KEY: &str = "config.yaml";
/// Label on nodes with the config of NVIDIA's device plugin: a key of its `ConfigMap`.
pub const DEVICE_PLUGIN_CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";
/// `ConfigMap` with the configs for NVIDIA's device plugin, one under each key.
pub const DEVICE_PLUGIN_CONFIG_MAP: &str = "gputenancy-device-plugin";
/// Annotation on nodes that the operator cordoned: the time. A node without it was cordoned by others.
pub const CORDONED: &str = "gputenancy.io/cordoned";
/// Annotation on nodes, written by administrators or other products: GPUs that take no new work, as `UUID` or `UUID=reason`, comma separated.
pub const WITHDRAWN_GPUS: &str = "gputenancy.io/withdrawn-gpus";
/// Annotation of HAMi's device plugin on its nodes.
pub const HAMI_REGISTER: &str = "hami.io/node-nvidia-register";
/// Annotation of NVSentinel on nodes that it has quarantined, removed when it ends the quarantine, also after a cordon that was lifted by hand. Its
/// labels about a cordon are no sign: it writes none on a node that is cordoned already, and some outlive the quarantine.
pub const NVSENTINEL_QUARANTINE: &str = "quarantineHealthEvent";
/// Annotation on nodes, written by administrators: GPUs whose faults until a time count no more, as `UUID=time`, comma separated.
pub const CLEARED_FAULTS: &str = "gputenancy.io/cleared-faults";
/// Condition of a Node, written by its agent: all devices of the node are advertised and healthy.
pub const NODE_DEVICES_READY: &str = "gputenancy.io/DevicesReady";

/// Label on canary pods: the profile that the pod verifies.
pub const CANARY_LABEL: &str = "gputenancy.io/canary";
/// Annotation on canary pods: the node of their device.
pub const CANARY_NODE: &str = "gputenancy.io/canary-node";
/// Prefix of the resources under which new devices are advertised to canary pods.
pub const CANARY_RESOURCES: &str = "gputenancy.io/canary_";

/// Prefix of the operator's field managers; each part appends `/<part>`.
pub const OPERATOR_MANAGER: &str = "gputenancy-operator";
/// Field manager of the agent.
pub const AGENT_MANAGER: &str = "gputenancy-agent";

/// Namespace of the API server's own service.
pub const API_SERVER_NAMESPACE: &str = "default";
/// Name of the API server's own service.
pub const API_SERVER: &str = "kubernetes";
/// The `ServiceAccount` of pods that name none.
pub const DEFAULT_ACCOUNT: &str = "default";
/// The chart's `ClusterRole` for the controller of virtual clusters: what vCluster's own role has, for it can give no right that it lacks.
pub const VIRTUAL_CLUSTER_ROLE: &str = "gputenancy:virtual-clusters";
/// Secret with the administrator's credentials of a virtual cluster, written by vCluster's syncer.
pub fn admin_secret(cluster: &str) -> String {
    format!("vc-{cluster}")
}

/// Resource name of a whole GPU, as NVIDIA's device plugin advertises it.
pub const WHOLE_GPU_RESOURCE: &str = "nvidia.com/gpu";

/// Resource name of a time-slice of a GPU, as NVIDIA's device plugin advertises it with `renameByDefault: true`.
pub const SHARED_GPU_RESOURCE: &str = "nvidia.com/gpu.shared";

/// Prefix of the resources of MIG profiles, and of NVIDIA's labels of nodes about them.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";

/// Is this extended resource one for GPUs? By its domain, NVIDIA's or the operator's, so that no name escapes a budget; the API server makes
/// claims of NVIDIA's device classes out of resources with [`CLASS_RESOURCES`]. The chart's policies have the same rule.
pub fn is_gpu_resource(resource: &str) -> bool {
    let class = || resource.starts_with(CLASS_RESOURCES) && resource.ends_with("nvidia.com");
    resource.starts_with("nvidia.com/") || resource.starts_with("gputenancy.io/") || class()
}

/// Can a device plugin advertise GPUs, MIG instances or shares under this resource? Narrower than [`is_gpu_resource`] on purpose: other
/// plugins have other devices in NVIDIA's domain, such as `nvidia.com/hostdev`, which are not the agent's.
pub fn is_device_resource(resource: &str) -> bool {
    is_nvidias_device_resource(resource) || resource.starts_with("gputenancy.io/")
}

/// Can NVIDIA's device plugin advertise GPUs, MIG instances or shares under this resource?
pub fn is_nvidias_device_resource(resource: &str) -> bool {
    let of_gpu = resource.strip_prefix(WHOLE_GPU_RESOURCE).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    of_gpu || resource.starts_with(MIG_PREFIX)
}

/// Resource name of a MIG profile in the `mixed` strategy of NVIDIA's device plugin:
/// [`MIG_PREFIX`] and the profile's name with `+` turned into `.`.
pub fn mig_resource(profile: &str) -> String {
    format!("{MIG_PREFIX}{}", profile.replace('+', "."))
}

/// Resource name that NVIDIA's plugin gives to shares of another resource, with `renameByDefault`.
pub fn shared_resource(of: &str) -> String {
    format!("{of}.shared")
}

/// Resource name of a profile without one of NVIDIA's: `gputenancy.io/<profile>`.
pub fn own_resource(profile: &str) -> String {
    format!("gputenancy.io/{profile}")
}

/// Resource of one new device for its canary pod, by NVML's index of the GPU and the device's first memory slice. It has one device only, and
/// no profile can have this name: names of profiles have no underscore.
pub fn canary_resource(gpu: impl fmt::Display, start: impl fmt::Display) -> String {
    format!("{CANARY_RESOURCES}{gpu}_{start}")
}

/// Whether this is a resource of [`canary_resource`].
pub fn is_canary_resource(resource: &str) -> bool {
    resource.starts_with(CANARY_RESOURCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_resources_are_found_by_domain_and_devices_by_name() {
        // resource, GPU resource, device resource, of NVIDIA's device plugin
        let table = [
            ("nvidia.com/gpu", true, true, true),
            ("nvidia.com/gpu.shared", true, true, true),
            ("nvidia.com/mig-1g.10gb", true, true, true),
            ("nvidia.com/mig-1g.10gb.shared", true, true, true),
            ("gputenancy.io/small", true, true, false),
            ("gputenancy.io/canary_0_4", true, true, false),
            ("nvidia.com/foo", true, false, false),
            ("nvidia.com/gpus", true, false, false),
            ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", true, false, false),
            ("deviceclass.resource.kubernetes.io/gpu.example.com", false, false, false),
            ("example.com/nvidia.com", false, false, false),
            ("requests.nvidia.com/gpu", false, false, false),
            ("amd.com/gpu", false, false, false),
            ("nvidia.com", false, false, false),
            ("cpu", false, false, false),
        ];
        for (resource, gpu, device, of_plugin) in table {
            let found = (is_gpu_resource(resource), is_device_resource(resource), is_nvidias_device_resource(resource));
            assert_eq!(found, (gpu, device, of_plugin), "{resource}");
        }
    }
}
