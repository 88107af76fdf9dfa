//! The agent's metrics.

use std::{
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use gputenancy_rights::Right;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::device::DeviceView;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    call: &'static str,
    code: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    step: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeviceLabels {
    resource: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LackingLabels {
    verb: &'static str,
    resource: String,
    feature: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HiddenLabels {
    variables: &'static str,
    outcome: &'static str,
}

/// The agent's metrics; clones count into the same ones.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    nvml_seconds: Family<CallLabels, Histogram>,
    nvml_failures: Family<FailureLabels, Counter>,
    operations: Family<OperationLabels, Counter>,
    devices: Family<DeviceLabels, Gauge<i64, AtomicI64>>,
    missing_rights: Family<LackingLabels, Gauge<i64, AtomicI64>>,
    status_writes: Counter,
    status_failures: Counter,
    refused_allocations: Family<RefusedLabels, Counter>,
    hidden_variables: Family<HiddenLabels, Counter>,
    unseen_environments: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let nvml_seconds: Family<CallLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(10e-6, 10.0, 7)));
        let (nvml_failures, operations, devices) = (Family::default(), Family::default(), Family::default());
        let (missing_rights, status_writes, status_failures) =
            (Family::default(), Counter::default(), Counter::default());
        let mut registry = Registry::with_prefix("gputenancy_agent");
        let help = "Duration of NVML calls";
        registry.register_with_unit("nvml_call", help, Unit::Seconds, nvml_seconds.clone());
        registry.register("nvml_failures", "Failed NVML calls by call and code", nvml_failures.clone());
        registry.register("carve_steps", "Operations on GPUs by step and outcome", operations.clone());
        registry.register("devices", "Devices by resource and state", devices.clone());
        let help = "Missing rights, and the feature that needs them";
        registry.register("missing_rights", help, missing_rights.clone());
        registry.register("status_writes", "Writes of GpuNode status", status_writes.clone());
        registry.register("status_failures", "Failed writes of GpuNode status", status_failures.clone());
        let refused_allocations = Family::default();
        let help = "Allocations by kubelet that the agent refused, by reason";
        registry.register("refused_allocations", help, refused_allocations.clone());
        let hidden_variables = Family::default();
        let help = "Containers of tenants with forbidden variables from envFrom, by group of variables";
        registry.register("hidden_variables", help, hidden_variables.clone());
        let unseen_environments = Gauge::default();
        let help = "Containers with envFrom that are not checked yet";
        registry.register("unseen_environments", help, unseen_environments.clone());
        Self {
            registry: Arc::new(registry),
            nvml_seconds,
            nvml_failures,
            operations,
            devices,
            missing_rights,
            status_writes,
            status_failures,
            refused_allocations,
            hidden_variables,
            unseen_environments,
        }
    }
}

impl Metrics {
    /// An NVML call returned.
    pub fn nvml_call(&self, call: &'static str, code: u32, took: Duration) {
        self.nvml_seconds.get_or_create(&CallLabels { call }).observe(took.as_secs_f64());
        if code != 0 {
            self.nvml_failures.get_or_create(&FailureLabels { call, code }).inc();
        }
    }

    /// An operation on a GPU ended.
    pub fn operation(&self, step: &'static str, done: bool) {
        let outcome = if done { "done" } else { "failed" };
        self.operations.get_or_create(&OperationLabels { step, outcome }).inc();
    }

    /// A write of `GpuNode` status ended.
    pub fn status_write(&self, done: bool) {
        if done {
            self.status_writes.inc()
        } else {
            self.status_failures.inc()
        };
    }

    /// An allocation by kubelet was refused.
    pub fn refused_allocation(&self, reason: &'static str) {
        self.refused_allocations.get_or_create(&RefusedLabels { reason }).inc();
    }

    /// Counts the devices.
    pub fn set_devices(&self, view: &DeviceView) {
        self.devices.clear();
        for device in &view.devices {
            let state = match (device.held, device.healthy) {
                (true, _) => "held",
                (false, true) => "offered",
                (false, false) => "unhealthy",
            };
            self.devices.get_or_create(&DeviceLabels { resource: device.resource.clone(), state }).inc();
        }
    }

    /// A container has forbidden variables of this group.
    pub fn hidden_variable(&self, variables: &'static str, stopped: bool) {
        let outcome = if stopped { "stopped" } else { "told" };
        self.hidden_variables.get_or_create(&HiddenLabels { variables, outcome }).inc();
    }

    /// Containers with `envFrom` that are not checked.
    pub fn set_unseen_environments(&self, count: i64) {
        self.unseen_environments.set(count);
    }

    /// Missing rights.
    pub fn missing_rights(&self, missing: &[Right]) {
        self.missing_rights.clear();
        for right in missing {
            let (verb, resource, feature) = (right.verb, right.what(), right.feature.unwrap_or_default());
            self.missing_rights.get_or_create(&LackingLabels { verb, resource, feature }).set(1);
        }
    }

    /// The registry behind `/metrics`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvml_failures_are_counted_by_call_and_code() {
        let metrics = Metrics::default();
        metrics.nvml_call("nvmlDeviceGetCount_v2", 0, Duration::from_micros(5));
        metrics.nvml_call("nvmlGpuInstanceDestroy", 19, Duration::from_millis(5));
        let text = gputenancy_service::endpoints::text(metrics.registry()).unwrap();
        assert!(text.contains(r#"gputenancy_agent_nvml_failures_total{call="nvmlGpuInstanceDestroy",code="19"} 1"#));
        assert!(!text.contains(r#"failures_total{call="nvmlDeviceGetCount_v2""#));
    }
}
