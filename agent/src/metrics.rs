//! The agent's metrics.

use std::{sync::Arc, time::Duration};

use gputenancy_crds::Isolation;
use gputenancy_rights::Right;
use gputenancy_service::metrics::{Counters, Gauges, Labels, set_missing_rights};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry, Unit},
};

use crate::device::DeviceView;

/// The agent's metrics; clones share their values.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    nvml_seconds: Family<Labels<1>, Histogram>,
    nvml_failures: Counters<2>,
    operations: Counters<2>,
    devices: Gauges<2>,
    enforcement: Gauges<1>,
    missing_rights: Gauges<3>,
    status_writes: Counter,
    status_failures: Counter,
    refused_allocations: Counters<1>,
    terminated_processes: Counter,
    gpu_faults: Counters<1>,
    lost_devices: Counter,
    hidden_variables: Counters<2>,
    unchecked_environments: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("gputenancy_agent");
        let r = &mut registry;
        let nvml_seconds: Family<Labels<1>, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(10e-6, 10.0, 7)));
        r.register_with_unit("nvml_call", "Duration of NVML calls", Unit::Seconds, nvml_seconds.clone());
        Self {
            nvml_seconds,
            nvml_failures: register(r, "nvml_failures", "Failed NVML calls by call and code"),
            operations: register(r, "partition_operations", "Operations that partition GPUs, by step and outcome"),
            devices: register(r, "devices", "Devices by resource and state"),
            enforcement: register(r, "enforcement", "Shares by the means that limits the memory of their containers"),
            missing_rights: register(r, "missing_rights", "Missing rights, and the feature that needs them"),
            status_writes: register(r, "status_writes", "Writes of GpuNode status"),
            status_failures: register(r, "status_failures", "Failed writes of GpuNode status"),
            refused_allocations: register(
                r,
                "refused_allocations",
                "Allocations by kubelet that the agent refused, by reason",
            ),
            terminated_processes: register(
                r,
                "terminated_processes",
                "Processes that were killed because they kept a device after kubelet forgot their pod",
            ),
            gpu_faults: register(r, "gpu_faults", "Faults that the driver reported, by class"),
            lost_devices: register(r, "lost_devices", "MIG devices that are gone while containers had them"),
            hidden_variables: register(
                r,
                "hidden_variables",
                "Containers of tenants with forbidden variables from envFrom, by group of variables",
            ),
            unchecked_environments: register(
                r,
                "unchecked_environments",
                "Containers with envFrom that are not checked yet",
            ),
            registry: Arc::new(registry),
        }
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    gputenancy_service::metrics::register(registry, name, help, M::default())
}

impl Metrics {
    /// An NVML call returned.
    pub fn nvml_call(&self, call: &'static str, code: u32, took: Duration) {
        self.nvml_seconds.get_or_create(&[("call", call.into())]).observe(took.as_secs_f64());
        if code != 0 {
            self.nvml_failures.get_or_create(&[("call", call.into()), ("code", code.to_string().into())]).inc();
        }
    }

    /// An operation on a GPU ended.
    pub fn operation(&self, step: &'static str, done: bool) {
        let outcome = if done { "done" } else { "failed" };
        self.operations.get_or_create(&[("step", step.into()), ("outcome", outcome.into())]).inc();
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
        self.refused_allocations.get_or_create(&[("reason", reason.into())]).inc();
    }

    /// A process was killed because it kept a device.
    pub fn terminated_process(&self) {
        self.terminated_processes.inc();
    }

    /// A device is gone while a container had it.
    pub fn lost_device(&self) {
        self.lost_devices.inc();
    }

    /// The driver reported a fault.
    pub fn gpu_fault(&self, class: &'static str) {
        self.gpu_faults.get_or_create(&[("class", class.into())]).inc();
    }

    /// Counts the devices.
    pub fn set_devices(&self, view: &DeviceView) {
        self.devices.clear();
        for device in &view.devices {
            let state = match (device.cordoned, device.healthy) {
                (true, _) => "cordoned",
                (false, true) => "advertised",
                (false, false) => "unhealthy",
            };
            let labels = [("resource", device.resource.clone().into()), ("state", state.into())];
            self.devices.get_or_create(&labels).inc();
        }
    }

    /// Counts shares by what limits the memory of containers that start now with them.
    pub fn set_enforcement(&self, shares: &[Isolation]) {
        // values are set, not removed and added: a scrape in between must not read 0
        for means in [Isolation::Driver, Isolation::Server, Isolation::Software, Isolation::None] {
            let count = shares.iter().filter(|share| **share == means).count();
            self.enforcement
                .get_or_create(&[("means", means.as_str().into())])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A container has forbidden variables of this group.
    pub fn hidden_variable(&self, variables: String, stopped: bool) {
        let outcome = if stopped { "stopped" } else { "reported" };
        self.hidden_variables.get_or_create(&[("variables", variables.into()), ("outcome", outcome.into())]).inc();
    }

    /// Containers with `envFrom` that are not checked.
    pub fn set_unchecked_environments(&self, count: i64) {
        self.unchecked_environments.set(count);
    }

    /// Missing rights.
    pub fn missing_rights(&self, missing: &[Right]) {
        set_missing_rights(&self.missing_rights, missing);
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
    fn shares_are_counted_by_means_and_a_means_without_shares_is_zero() {
        let metrics = Metrics::default();
        metrics.set_enforcement(&[Isolation::None; 3]);
        metrics.set_enforcement(&[Isolation::Software, Isolation::Server, Isolation::Software]);
        let text = gputenancy_service::endpoints::text(metrics.registry()).unwrap();
        for (means, count) in [("Software", 2), ("Server", 1), ("Driver", 0), ("None", 0)] {
            let line = format!("gputenancy_agent_enforcement{{means=\"{means}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

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
