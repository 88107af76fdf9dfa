//! The flags that the operator's rights depend on.

use clap::{ArgAction, Args, builder::NonEmptyStringValueParser};

/// Default name of the lease, also in the chart.
pub const LEASE: &str = "gputenancy-operator";

/// Namespaces and names of the operator's own objects, and features that need rights of their own.
#[derive(Args, Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Locations {
    /// Namespace of the lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "gputenancy-system")]
    pub namespace: String,
    /// Namespace of the `ConfigMap` with layouts for NVIDIA's MIG manager, by default that of the lease: it is mounted there.
    #[arg(long, env = "MIG_CONFIG_NAMESPACE")]
    pub mig_config_namespace: Option<String>,
    /// Namespace of the `ConfigMap` with configs for NVIDIA's device plugin, by default that of the lease: it is mounted there.
    #[arg(long, env = "DEVICE_PLUGIN_CONFIG_NAMESPACE")]
    pub device_plugin_config_namespace: Option<String>,
    /// Name of the lease.
    #[arg(long, default_value = LEASE)]
    pub lease_name: String,
    /// Names of the Secrets in the operator's namespace that tenants may have copied into theirs for pulling images, separated by
    /// commas; none: it has no right on any Secret.
    #[arg(long, env = "PULL_SECRETS", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub pull_secrets: Vec<String>,
    /// Write a condition into the status of refused `ReplicaSet`s, `StatefulSet`s and Jobs once the budget has headroom for their
    /// pods, so that they retry at once; false: they retry after their own back-off, and the operator needs no right on them.
    #[arg(long, env = "WAKE_CONTROLLERS", default_value_t = true, action = ArgAction::Set)]
    pub wake_controllers: bool,
    /// Write a `ClusterRole` and a `ClusterRoleBinding` for each tenant that let its owners and viewers read their `GpuTenant`; false: the
    /// operator needs no right on these kinds.
    #[arg(long, env = "OWNERS_READ_TENANT", default_value_t = true, action = ArgAction::Set)]
    pub owners_read_tenant: bool,
    /// Serve the metrics of a tenant over HTTPS to clients that may read its `GpuTenant`; false: the operator needs no right to review tokens and
    /// access.
    #[arg(long, env = "USAGE_ENDPOINT", default_value_t = false, action = ArgAction::Set)]
    pub usage_endpoint: bool,
    /// Tenants may have virtual clusters: in the namespace of such a tenant the operator binds the rights of their controller.
    #[arg(long, env = "VIRTUAL_CLUSTERS", default_value_t = false, action = ArgAction::Set)]
    pub virtual_clusters: bool,
    /// Write the queues of Kueue for pools with `spec.queueing.system: Kueue`; false: the operator needs no right on them.
    #[arg(long, env = "KUEUE", default_value_t = false, action = ArgAction::Set)]
    pub kueue: bool,
    /// Label selector of the agent's pods in the operator's namespace: a node without such a Ready pod counts as silent. Empty: they are not
    /// watched, and only Node and `GpuNode` show whether an agent reports.
    #[arg(long, env = "AGENT_SELECTOR", default_value = "")]
    pub agent_selector: String,
}

impl Locations {
    /// Namespace of the layouts for NVIDIA's MIG manager.
    pub fn layouts(&self) -> &str {
        self.mig_config_namespace.as_ref().unwrap_or(&self.namespace)
    }

    /// Namespace of the configs for NVIDIA's device plugin.
    pub fn plugin_configs(&self) -> &str {
        self.device_plugin_config_namespace.as_ref().unwrap_or(&self.namespace)
    }
}
