//! The series of usage. They are made from the latest sample at each scrape, so that a value without a source has no series.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gputenancy_agent_core::{
    device::{Device, DeviceOwner},
    gpu::ObservedGpu,
    nvml::MemoryUse,
    usage::{
        activity::{Activity, Figure},
        containers::{ContainerUse, GpuUse},
        reading::{Board, ClockLimit, Rates, Traffic},
        seconds::{Added, Key, Mode, Seconds},
    },
};
use gputenancy_crds::Health;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::ConstCounter,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::shares::MpsMemory;

/// A device that a container has.
#[derive(Debug)]
pub struct Held {
    /// Name of the tenant; empty outside of tenants.
    pub tenant: String,
    /// The container.
    pub owner: DeviceOwner,
    /// The device.
    pub device: Device,
}

/// What is shown of a GPU.
#[derive(Debug)]
pub struct GpuShown {
    /// Name of the node.
    pub node: String,
    /// Name of its pool; empty outside of pools.
    pub pool: String,
    /// The GPU.
    pub gpu: ObservedGpu,
    /// Devices with an owner.
    pub held: Vec<Held>,
    /// Mode and resource of the devices, by GPU instance id.
    pub modes: BTreeMap<Option<u32>, (Mode, String)>,
    /// Utilization by NVML's counters.
    pub rates: Option<Rates>,
    /// What only the board has; `None` if NVML has not answered.
    pub board: Option<Board>,
    /// What devices and containers do.
    pub usage: GpuUse,
}

#[derive(Debug, Default)]
struct Shown {
    gpus: Vec<GpuShown>,
    devices: BTreeMap<Key, Seconds>,
    whole: BTreeMap<Key, Seconds>,
    /// Xid errors by UUID, number and class.
    xids: BTreeMap<(String, u64, &'static str), u64>,
}

/// The series; clones share their values.
#[derive(Clone)]
pub struct UsageMetrics {
    shown: Arc<Mutex<Shown>>,
    seconds: Histogram,
    mps: MpsMemory,
}

impl fmt::Debug for UsageMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsageMetrics")
    }
}

impl UsageMetrics {
    /// The series, in a registry whose prefix is that of the product.
    pub fn register(registry: &mut Registry) -> Self {
        // a sample of one idle GPU takes less than a millisecond
        let seconds = Histogram::new(exponential_buckets(0.001, 4.0, 7));
        registry.register_with_unit("usage_sample", "Duration of a sample", Unit::Seconds, seconds.clone());
        let metrics = Self { shown: Arc::default(), seconds, mps: MpsMemory::default() };
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Sets the memory of MPS shares with each sample.
    pub(super) fn with_mps(self, mps: MpsMemory) -> Self {
        Self { mps, ..self }
    }

    /// A sample has been taken.
    pub fn sampled(&self, took: Duration, gpus: Vec<GpuShown>, added: &Added) {
        self.mps.set(gpus.iter().flat_map(GpuShown::used));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.gpus = gpus;
        sum(&mut shown.devices, &added.devices);
        sum(&mut shown.whole, &added.gpus);
        // after the rest: queries take the first count as a sign that the series of devices exist
        self.seconds.observe(took.as_secs_f64());
    }

    /// The driver reported an Xid error.
    pub fn xid(&self, uuid: &str, xid: u64, class: &'static str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown.xids.entry((uuid.to_owned(), xid, class)).or_default() += 1;
    }
}

fn sum(all: &mut BTreeMap<Key, Seconds>, added: &BTreeMap<Key, Seconds>) {
    for (key, seconds) in added {
        all.entry(key.clone()).or_default().add(*seconds);
    }
}

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, f64)>;

/// Labels of a GPU, or of a GPU instance of it.
fn place(uuid: &str, gi: Option<u32>) -> Labels {
    vec![("uuid", uuid.to_owned()), ("gpu_instance", gi.map(|gi| gi.to_string()).unwrap_or_default())]
}

fn with(mut labels: Labels, more: impl IntoIterator<Item = (&'static str, String)>) -> Labels {
    labels.extend(more);
    labels
}

fn of_container(uuid: &str, gi: Option<u32>, owner: &DeviceOwner) -> Labels {
    let DeviceOwner { namespace, pod, container } = owner.clone();
    with(place(uuid, gi), [("namespace", namespace), ("pod", pod), ("container", container)])
}

/// Rows with the value and source of a figure, where there is one.
fn figures(rows: impl IntoIterator<Item = (Labels, Option<Figure>)>) -> Rows {
    let row = |(labels, figure): (Labels, Option<Figure>)| {
        let Figure { value, source } = figure?;
        Some((with(labels, [("source", source.as_str().to_owned())]), value))
    };
    rows.into_iter().filter_map(row).collect()
}

#[allow(clippy::cast_precision_loss, reason = "bytes and counters below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}

impl GpuShown {
    fn uuid(&self) -> &str {
        &self.gpu.uuid
    }

    /// GPU instances, and the GPU itself.
    fn places(&self) -> impl Iterator<Item = Option<u32>> {
        std::iter::once(None).chain(self.gpu.instances.iter().map(|instance| Some(instance.gi)))
    }

    fn info(&self) -> Rows {
        let row = |gi: Option<u32>| {
            let instance = self.gpu.instances.iter().find(|instance| Some(instance.gi) == gi);
            let (mode, resource) = match self.modes.get(&gi) {
                Some((mode, resource)) => (mode.as_str(), resource.clone()),
                None => ("none", String::new()),
            };
            let about = [
                ("node", self.node.clone()),
                ("pool", self.pool.clone()),
                ("product", self.gpu.board.name.clone()),
                ("gpu", self.gpu.minor.to_string()),
                ("profile", instance.map(|instance| instance.profile.clone()).unwrap_or_default()),
                ("mode", mode.to_owned()),
                ("resource", resource),
            ];
            (with(place(self.uuid(), gi), about), 1.0)
        };
        self.places().map(row).collect()
    }

    fn allocations(&self) -> Rows {
        let row = |Held { tenant, owner, device }: &Held| {
            let gi = device.mig.as_ref().map(|ids| ids.gi);
            let about = [
                ("device", device.id.to_string()),
                ("mode", Mode::of(device).as_str().to_owned()),
                ("resource", device.resource.clone()),
                ("tenant", tenant.clone()),
            ];
            (with(of_container(self.uuid(), gi, owner), about), 1.0)
        };
        self.held.iter().map(row).collect()
    }

    /// Devices with an owner, and the bytes that it uses of the device's GPU or instance.
    fn used(&self) -> impl Iterator<Item = (&Device, &DeviceOwner, Option<u64>)> {
        self.held.iter().map(move |Held { owner, device, .. }| {
            let place = device.mig.as_ref().map(|ids| ids.gi);
            let found = self.usage.containers.get(&(place, owner.clone()));
            (device, owner, found.and_then(|found| found.memory))
        })
    }

    /// Memory of each device, `select`ed of reserved, used and free.
    fn memory(&self, select: fn(MemoryUse) -> u64) -> Rows {
        let rows = self.gpu.memory.iter().map(|(gi, memory)| (place(self.uuid(), *gi), float(select(*memory))));
        rows.collect()
    }

    fn of_board(&self, value: impl Fn(Board) -> Option<f64>) -> Rows {
        let value = self.board.and_then(value);
        value.map(|value| (vec![("uuid", self.uuid().to_owned())], value)).into_iter().collect()
    }

    fn traffic(&self, select: fn(Board) -> Traffic) -> Rows {
        let Some(Traffic { transmit, receive }) = self.board.map(select) else { return Vec::new() };
        let row = |(direction, bytes): (&str, Option<u64>)| {
            let labels = vec![("uuid", self.uuid().to_owned()), ("direction", direction.to_owned())];
            Some((labels, float(bytes?)))
        };
        [("transmit", transmit), ("receive", receive)].into_iter().filter_map(row).collect()
    }

    fn clock_limits(&self) -> Rows {
        let Some(events) = self.board.and_then(|board| board.clock_events) else { return Vec::new() };
        let row = |limit: ClockLimit| {
            let labels = vec![("uuid", self.uuid().to_owned()), ("reason", limit.as_str().to_owned())];
            (labels, f64::from(u8::from(events & limit.bits() != 0)))
        };
        ClockLimit::ALL.map(row).into()
    }
}

/// A family of series.
struct Family {
    name: &'static str,
    help: &'static str,
    counter: bool,
    rows: Rows,
}

/// The families of these GPUs and counters. All names are in it, also those without series.
fn families(shown: &Shown) -> Vec<Family> {
    let of_gpus = |rows: &dyn Fn(&GpuShown) -> Rows| -> Rows { shown.gpus.iter().flat_map(rows).collect() };
    let gauge =
        |name, help, rows: &dyn Fn(&GpuShown) -> Rows| Family { name, help, counter: false, rows: of_gpus(rows) };
    let counter = |name, help, rows| Family { name, help, counter: true, rows };
    let device = |select: fn(&Activity) -> Option<Figure>| {
        move |gpu: &GpuShown| {
            figures(gpu.usage.devices.iter().map(|(gi, activity)| (place(gpu.uuid(), *gi), select(activity))))
        }
    };
    let container = |select: fn(&ContainerUse) -> Option<Figure>| {
        move |gpu: &GpuShown| {
            let rows = gpu.usage.containers.iter();
            figures(rows.map(|((gi, owner), found)| (of_container(gpu.uuid(), *gi, owner), select(found))))
        }
    };
    let container_memory = |gpu: &GpuShown| -> Rows {
        let rows = gpu.usage.containers.iter();
        rows.filter_map(|((gi, owner), found)| Some((of_container(gpu.uuid(), *gi, owner), float(found.memory?))))
            .collect()
    };
    let rest = |gpu: &GpuShown| -> Rows {
        gpu.usage.unattributed.iter().map(|(gi, rest)| (place(gpu.uuid(), *gi), *rest)).collect()
    };
    let healthy = |gpu: &GpuShown| -> Rows {
        let healthy = gpu.gpu.health == Health::Healthy && gpu.gpu.failure.is_none();
        vec![(vec![("uuid", gpu.uuid().to_owned())], f64::from(u8::from(healthy)))]
    };
    let rates = |gpu: &GpuShown| {
        gpu.rates.map(|rates| (vec![("uuid", gpu.uuid().to_owned())], rates.memory)).into_iter().collect()
    };
    let xids = shown.xids.iter().map(|((uuid, xid, class), count)| {
        let labels = vec![("uuid", uuid.clone()), ("xid", xid.to_string()), ("class", (*class).to_owned())];
        (labels, float(*count))
    });
    vec![
        gauge("device_info", "1 for each GPU and MIG instance, with what it belongs to", &GpuShown::info),
        gauge("allocation_info", "1 for each device that a container has", &GpuShown::allocations),
        gauge("device_utilization_ratio", "Part of the time in which a kernel ran", &device(|a| a.utilization)),
        gauge("device_sm_active_ratio", "Part of the multiprocessors with work", &device(|a| a.sm)),
        gauge("device_sm_occupancy_ratio", "Part of the warps that were resident", &device(|a| a.occupancy)),
        gauge("device_tensor_active_ratio", "Part of the time in which tensor cores worked", &device(|a| a.tensor)),
        gauge("device_dram_active_ratio", "Part of the memory bandwidth in use", &device(|a| a.dram)),
        gauge(
            "device_unattributed_utilization_ratio",
            "Utilization of a shared device that no container explains",
            &rest,
        ),
        gauge("device_memory_used_bytes", "Memory in use, without what the driver reserves", &|gpu| {
            gpu.memory(|memory| memory.used)
        }),
        gauge("device_memory_free_bytes", "Free memory", &|gpu| gpu.memory(|memory| memory.free)),
        gauge("device_memory_reserved_bytes", "Memory that the driver reserves", &|gpu| {
            gpu.memory(|memory| memory.reserved)
        }),
        gauge("device_memory_total_bytes", "All memory", &|gpu| {
            gpu.memory(|memory| memory.reserved.saturating_add(memory.used).saturating_add(memory.free))
        }),
        gauge("device_healthy", "0 for a GPU with a fault, or one that does not answer", &healthy),
        gauge("gpu_memory_utilization_ratio", "Part of the time in which memory was read or written", &rates),
        gauge("gpu_power_watts", "Power of the board", &|gpu| gpu.of_board(|b| Some(f64::from(b.power?) / 1e3))),
        gauge("gpu_temperature_celsius", "Temperature of the GPU", &|gpu| {
            gpu.of_board(|b| Some(f64::from(b.temperature?)))
        }),
        gauge("gpu_sm_clock_hertz", "Clock of the multiprocessors", &|gpu| {
            gpu.of_board(|b| Some(f64::from(b.clock?) * 1e6))
        }),
        gauge("gpu_clock_limited", "1 while the clock is lowered, by reason", &GpuShown::clock_limits),
        gauge(
            "container_utilization_ratio",
            "A container's part of the utilization of its device",
            &container(|c| c.utilization),
        ),
        gauge(
            "container_sm_active_ratio",
            "Part of the multiprocessors of a container's device with work",
            &container(|c| c.sm),
        ),
        gauge("container_memory_used_bytes", "Memory of a container's processes on a device", &container_memory),
        counter(
            "gpu_energy_joules",
            "Energy of the board since the driver was loaded",
            of_gpus(&|gpu| gpu.of_board(|b| Some(float(b.energy?) / 1e3))),
        ),
        counter("gpu_pcie_bytes", "Traffic over PCIe", of_gpus(&|gpu| gpu.traffic(|b| b.pcie))),
        counter("gpu_nvlink_bytes", "Traffic over NVLink", of_gpus(&|gpu| gpu.traffic(|b| b.nvlink))),
        counter("gpu_xid_errors", "Xid errors", xids.collect()),
        counter(
            "device_seconds",
            "Seconds of devices that containers of a tenant had, by state",
            seconds(&shown.devices),
        ),
        counter("gpu_seconds", "The same in GPUs: a device counts as its part of its GPU", seconds(&shown.whole)),
    ]
}

fn seconds(all: &BTreeMap<Key, Seconds>) -> Rows {
    let of_key = |(key, seconds): (&Key, &Seconds)| {
        let Key { tenant, resource, mode } = key.clone();
        let labels = move |state: &str| {
            vec![
                ("tenant", tenant.clone()),
                ("resource", resource.clone()),
                ("mode", mode.as_str().to_owned()),
                ("state", state.to_owned()),
            ]
        };
        seconds.states().map(|(state, value)| (labels(state), value))
    };
    all.iter().flat_map(of_key).collect()
}

impl Collector for UsageMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for Family { name, help, counter, rows } in families(&shown) {
            let kind = if counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in rows {
                let row = metric.encode_family(&labels)?;
                if counter { ConstCounter::new(value).encode(row)? } else { ConstGauge::new(value).encode(row)? }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_in_the_reference() {
        let text = include_str!("../../../../docs/reference/metrics.md");
        for Family { name, counter, .. } in families(&Shown::default()) {
            let name = format!("`gputenancy_{name}{}`", if counter { "_total" } else { "" });
            assert!(text.contains(&name), "{name} is not in docs/reference/metrics.md");
        }
    }

    #[test]
    fn table_of_names_has_every_measurement_of_a_device_with_its_dcgm_field() {
        let page = include_str!("../../../../docs/usage.md");
        let (_, table) = page.split_once("## Names of DCGM and OpenTelemetry").unwrap();
        // what only this product has
        let own = ["device_info", "device_seconds", "gpu_seconds", "device_unattributed_utilization_ratio"];
        let measured = |name: &str| name.starts_with("device_") || name.starts_with("gpu_");
        for Family { name, counter, .. } in families(&Shown::default()) {
            if !measured(name) || own.contains(&name) {
                continue;
            }
            let name = format!("`gputenancy_{name}{}", if counter { "_total" } else { "" });
            let rows: Vec<&str> = table.lines().filter(|line| line.starts_with(&format!("| {name}"))).collect();
            assert!(!rows.is_empty(), "{name} is not in the table of docs/usage.md");
            for row in rows {
                let field = row.split('|').nth(2).unwrap();
                assert!(field.contains("`DCGM_"), "{row}");
            }
        }
    }

    #[test]
    fn value_without_a_source_has_no_series() {
        let mut registry = Registry::with_prefix("gputenancy");
        let metrics = UsageMetrics::register(&mut registry);
        let gpu = ObservedGpu { uuid: "GPU-a".into(), minor: 3, ..ObservedGpu::default() };
        let usage = GpuUse { devices: [(None, Activity::default())].into(), ..GpuUse::default() };
        let board = Board { power: Some(62_500), clock_events: Some(0x40), ..Board::default() };
        let shown = GpuShown {
            node: "n1".into(),
            pool: "train".into(),
            gpu,
            held: Vec::new(),
            modes: [(None, (Mode::Exclusive, "nvidia.com/gpu".into()))].into(),
            rates: None,
            board: Some(board),
            usage,
        };
        metrics.sampled(Duration::from_millis(3), vec![shown], &Added::default());
        metrics.xid("GPU-a", 79, "node");
        let text = gputenancy_cluster::service::endpoints::text(&registry).unwrap();
        insta::assert_snapshot!(text);
    }
}
