//! The agent's metrics.

mod expected;
mod shares;
#[cfg(test)]
mod tests;
pub mod usage;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use gputenancy_agent_core::nvml::code;
use gputenancy_cluster::{
    rights::Right,
    service::metrics::{Counters, Gauges, Labels, set_missing_rights},
};
use gputenancy_crds::Isolation;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry, Unit},
};

use crate::{
    device::{Device, DeviceId, DeviceOwner, DeviceView},
    device_memory::{Ghost, Layers, Place},
    series::Series,
};

use self::{
    expected::is_expected,
    shares::{MpsMemory, of_share},
    usage::UsageMetrics,
};

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
    gpu_recoveries: Counter,
    lost_devices: Counter,
    hidden_variables: Counters<2>,
    unchecked_environments: Gauge,
    stopped_after_deadline: Counter,
    processes: Series<4>,
    pods: Series<1>,
    unlisted_processes: Series<1>,
    memory: Series<3>,
    ghost_processes: Series<2>,
    ghost_memory: Series<2>,
    unserved: Series<5>,
    share_limit: Series<6>,
    share_counted: Series<6>,
    share_used: Series<6>,
    share_refused: Series<6>,
    share_endless: Series<6>,
    share_bypassed: Series<6>,
    share_percent: Series<6>,
    share_delay: Series<6, f64, AtomicU64>,
    share_suspended: Series<6>,
    bypasses: Counter,
    /// Usage of GPUs by container and tenant.
    pub usage: UsageMetrics,
}

/// What the metrics show of a share with a memory limit, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ShareFigures<'a> {
    /// The share.
    pub device: &'a Device,
    /// The container that has it.
    pub owner: &'a DeviceOwner,
    /// What its programs see as the memory of the GPU.
    pub limit: u64,
    /// What its ledger counts.
    pub counted: u64,
    /// What NVML reports for its processes, if it does.
    pub used: Option<u64>,
    /// Allocations that were refused.
    pub refused: u64,
    /// Kernels that did not end.
    pub endless: u64,
    /// The limit is bypassed.
    pub bypassed: bool,
}

/// What the metrics show of the compute of a share.
#[derive(Clone, Copy, Debug)]
pub struct ComputeFigures<'a> {
    /// The share.
    pub device: &'a Device,
    /// The container that has it.
    pub owner: &'a DeviceOwner,
    /// Percent of the GPU's time that it may use now, if that is limited.
    pub percent: Option<u64>,
    /// How long its launches waited for their part of the time, as its container counts.
    pub delayed: Option<Duration>,
    /// Nothing is launched.
    pub suspended: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let usage = UsageMetrics::register(registry.sub_registry_with_prefix("gputenancy"));
        let r = registry.sub_registry_with_prefix("gputenancy_agent");
        let nvml_seconds: Family<Labels<1>, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(10e-6, 10.0, 7)));
        r.register_with_unit("nvml_call", "Duration of NVML calls", Unit::Seconds, nvml_seconds.clone());
        let share_limit: Gauges<6> =
            register(r, "share_memory_limit_bytes", "Memory that the programs on a share can allocate");
        let share_used: Gauges<6> =
            register(r, "share_memory_used_bytes", "Memory of the processes on a share, by NVML");
        let usage = usage.with_mps(MpsMemory::of(share_limit.clone(), share_used.clone()));
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
            gpu_recoveries: register(r, "gpu_recoveries", "GPUs that got new pods again after a fault without a reset"),
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
            stopped_after_deadline: register(
                r,
                "stopped_after_deadline",
                "Containers that were killed because they outlived the deletion of their pod",
            ),
            processes: series(r, "processes", "Processes that NVML lists, by GPU and container"),
            pods: series(r, "gpu_pods", "Pods with a device of a GPU"),
            unlisted_processes: series(
                r,
                "unlisted_processes",
                "Processes with an open device file of a GPU that NVML does not list",
            ),
            memory: series(r, "device_memory_bytes", "All memory of a GPU or MIG instance by what holds it"),
            ghost_processes: series(r, "ghost_processes", "Processes that NVML lists although they have ended"),
            ghost_memory: series(r, "ghost_memory_bytes", "Memory that no living process of the device explains"),
            unserved: series(
                r,
                "unserved_containers",
                "1: a container on a limited share that the library cannot limit, by cause",
            ),
            share_limit: Series::of(share_limit),
            share_counted: series(r, "share_memory_counted_bytes", "Memory that the ledger of a share counts"),
            share_used: Series::of(share_used),
            share_refused: series(r, "share_refused_allocations", "Allocations beyond the memory of a share"),
            share_endless: series(
                r,
                "share_endless_kernels",
                "Kernels that ran longer than the compute limit of a share waits",
            ),
            share_bypassed: series(r, "share_bypassed", "1: processes use memory past the limit of their share"),
            share_percent: series(
                r,
                "share_compute_percent",
                "Part of the GPU's time that a share may use now, in percent",
            ),
            share_delay: Series::of(register(
                r,
                "share_launch_delay_seconds",
                "Time that launches waited for the share's part of the GPU's time",
            )),
            share_suspended: series(
                r,
                "share_compute_suspended",
                "1: nothing is launched on a share, because its pod is suspended",
            ),
            bypasses: register(r, "bypasses", "Bypasses of the memory limit of a share that were found"),
            usage,
            registry: Arc::new(registry),
        }
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    gputenancy_cluster::service::metrics::register(registry, name, help, M::default())
}

fn series<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Series<N> {
    Series::of(register(registry, name, help))
}

/// Numbers with the UUID of their GPU as a label.
fn by_gpu<'a>(numbers: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeMap<Labels<1>, u64> {
    numbers.into_iter().map(|(gpu, count)| ([("gpu", Cow::from(gpu.to_owned()))], count)).collect()
}

impl Metrics {
    /// The processes that NVML lists, by GPU and container; `None` for those of the node itself.
    pub fn set_processes<'a>(&self, processes: impl IntoIterator<Item = (&'a str, Option<&'a DeviceOwner>, u64)>) {
        let text = |text: &str| Cow::from(text.to_owned());
        let nothing = DeviceOwner::default();
        let row = |(gpu, container, count): (&str, Option<&DeviceOwner>, u64)| {
            let DeviceOwner { namespace, pod, container } = container.unwrap_or(&nothing);
            let labels = [("gpu", gpu), ("namespace", namespace), ("pod", pod), ("container", container)]
                .map(|(n, v)| (n, text(v)));
            (labels, count)
        };
        self.processes.set(&processes.into_iter().map(row).collect());
    }

    /// Number of processes that NVML does not list, by GPU.
    pub fn set_unlisted_processes<'a>(&self, processes: impl IntoIterator<Item = (&'a str, u64)>) {
        self.unlisted_processes.set(&by_gpu(processes));
    }

    /// Memory of devices by what holds it, and what no living process explains.
    pub fn set_memory(&self, layers: &BTreeMap<Place, Layers>, ghosts: &BTreeMap<Place, Ghost>) {
        let device = |(gpu, gi): &Place| {
            let instance = gi.map(|gi| gi.to_string()).unwrap_or_default();
            [("gpu", Cow::from(gpu.clone())), ("instance", Cow::from(instance))]
        };
        let of_device = |(place, layers): (&Place, &Layers)| {
            let [gpu, instance] = device(place);
            let Layers { reserved, processes, unattributed, free } = *layers;
            let all =
                [("reserved", reserved), ("processes", processes), ("unattributed", unattributed), ("free", free)];
            all.map(|(layer, bytes)| ([gpu.clone(), instance.clone(), ("layer", Cow::from(layer))], bytes))
        };
        self.memory.set(&layers.iter().flat_map(of_device).collect());
        // 0 for the other devices, so that an alert ends
        let devices = || layers.keys().chain(ghosts.keys());
        let count = |place: &Place| ghosts.get(place).map_or(0, |ghost| ghost.pids.len() as u64);
        let bytes = |place: &Place| ghosts.get(place).map_or(0, |ghost| ghost.bytes);
        self.ghost_processes.set(&devices().map(|place| (device(place), count(place))).collect());
        self.ghost_memory.set(&devices().map(|place| (device(place), bytes(place))).collect());
    }

    /// Containers on limited shares that the library cannot limit, with the cause.
    pub fn set_unserved<'a>(
        &self,
        containers: impl IntoIterator<Item = (&'a DeviceId, &'a DeviceOwner, &'static str)>,
    ) {
        let row = |(device, owner, cause): (&DeviceId, &DeviceOwner, &'static str)| {
            let DeviceOwner { namespace, pod, container } = owner;
            let text = |text: &str| Cow::from(text.to_owned());
            let labels = [
                ("share", text(device.as_str())),
                ("namespace", text(namespace)),
                ("pod", text(pod)),
                ("container", text(container)),
                ("cause", Cow::from(cause)),
            ];
            (labels, 1)
        };
        self.unserved.set(&containers.into_iter().map(row).collect());
    }

    /// Number of pods with a device of a GPU, by GPU.
    pub fn set_pods<'a>(&self, pods: impl IntoIterator<Item = (&'a str, u64)>) {
        self.pods.set(&by_gpu(pods));
    }

    /// The shares with a memory limit that containers have.
    pub fn set_shares<'a>(&self, shares: impl IntoIterator<Item = ShareFigures<'a>>) {
        let mut series: [BTreeMap<_, u64>; 6] = Default::default();
        for ShareFigures { device, owner, limit, counted, used, refused, endless, bypassed } in shares {
            let labels = of_share(device, owner);
            let values = [Some(limit), Some(counted), used, Some(refused), Some(endless), Some(bypassed.into())];
            for (series, value) in series.iter_mut().zip(values) {
                series.extend(value.map(|value| (labels.clone(), value)));
            }
        }
        let memory = [&self.share_limit, &self.share_counted, &self.share_used, &self.share_refused];
        let all = memory.into_iter().chain([&self.share_endless, &self.share_bypassed]);
        all.zip(&series).for_each(|(gauges, values)| gauges.set(values));
    }

    /// The compute of the shares that containers have.
    pub fn set_compute<'a>(&self, shares: impl IntoIterator<Item = ComputeFigures<'a>>) {
        let (mut percents, mut delays, mut suspended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for figures in shares {
            let labels = of_share(figures.device, figures.owner);
            percents.extend(figures.percent.map(|percent| (labels.clone(), percent)));
            delays.extend(figures.delayed.map(|delayed| (labels.clone(), delayed.as_secs_f64())));
            suspended.insert(labels, figures.suspended.into());
        }
        self.share_percent.set(&percents);
        self.share_delay.replace(&delays);
        self.share_suspended.set(&suspended);
    }

    /// The memory limit of a share is bypassed.
    pub fn bypass(&self) {
        self.bypasses.inc();
    }

    /// An NVML call returned.
    pub fn nvml_call(&self, call: &'static str, code: u32, took: Duration) {
        self.nvml_seconds.get_or_create(&[("call", call.into())]).observe(took.as_secs_f64());
        if code != code::SUCCESS && !is_expected(call, code) {
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

    /// A GPU gets new pods again after a fault, without a reset.
    pub fn gpu_recovered(&self) {
        self.gpu_recoveries.inc();
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

    /// A container outlived the deletion of its pod and was killed.
    pub fn stopped_after_deadline(&self) {
        self.stopped_after_deadline.inc();
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
