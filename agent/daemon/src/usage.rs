//! What GPUs, instances and shares do, for which pod and tenant: metrics, from samples of NVML.
//!
//! [`gputenancy_agent_core::usage`] decides what a sample means, this loop reads it with the owners of devices and the tenants of their namespaces, and
//! [`crate::metrics::usage`] has the series.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_agent_core::usage::{
    containers::{GpuUse, divide, owner},
    devices::all,
    reading::Reading,
    seconds::{Counting, Mode},
};
use tokio::{sync::watch, time::sleep};

use crate::{
    attribution::tenants::{self, Tenants},
    dcgm::Dcgm,
    device::{Device, DeviceOwner, DeviceView, KubeletView, Owners},
    gpu::{
        Inventory, NvmlThread, ObservedGpu,
        processes::process_origin::{Origin, Origins, UNKNOWN_CONTAINER},
    },
    metrics::usage::{GpuShown, Held, UsageMetrics},
    partition::PartitionState,
    report::gpu_node::Watched,
};

/// Samples the GPUs of a node.
pub struct Sampler {
    /// Reads NVML.
    pub nvml: NvmlThread,
    /// The node's dcgm-exporter, if one is configured.
    pub dcgm: Option<Dcgm>,
    /// Time between two samples.
    pub interval: Duration,
    /// The latest inventory.
    pub state: watch::Receiver<PartitionState>,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// The pool of this node.
    pub watched: watch::Receiver<Watched>,
    /// Where processes come from.
    pub origins: Origins,
    /// Reads the tenants of namespaces.
    pub tenants: tenants::Read,
    /// The series.
    pub metrics: UsageMetrics,
    /// Name of the node.
    pub node: String,
}

impl Sampler {
    /// Samples for as long as it is polled.
    pub async fn run(mut self) {
        let (mut tenants, mut last) = (Tenants::new(self.tenants.clone()), Instant::now());
        let mut counting = Counting::default();
        loop {
            // before the sample, which a slow exporter must not delay
            let ((), dcgm) = tokio::join!(sleep(self.interval), Dcgm::read(self.dcgm.as_mut()));
            let begun = Instant::now();
            let readings = self.nvml.activity().await;
            if let Err(error) = &readings {
                tracing::debug!(%error, "activity of the GPUs not read");
            }
            let took = begun.elapsed();
            let (devices, owners, inventory) = self.devices();
            let namespaces = owners.values().map(|owner| owner.namespace.as_str()).collect::<BTreeSet<_>>();
            let known = tenants.of(namespaces, begun).await;
            let tenant = |owner: &DeviceOwner| known.get(&owner.namespace).cloned().unwrap_or_default();
            let elapsed = begun.duration_since(std::mem::replace(&mut last, begun));
            let mut readings = readings.unwrap_or_default();
            for reading in &mut readings {
                reading.dcgm = dcgm.get(&reading.uuid).cloned().unwrap_or_default();
            }
            let container = |pid: u32| container(self.origins.of(pid));
            let reading = |gpu: &ObservedGpu| readings.iter().find(|reading| reading.uuid == gpu.uuid);
            let usage = |gpu: &ObservedGpu| Some(divide(gpu, reading(gpu)?, &devices, &owners, &container));
            let usages: Vec<Option<GpuUse>> = inventory.gpus.iter().map(usage).collect();
            let gpus: Vec<_> = inventory.gpus.iter().zip(usages.iter().map(Option::as_ref)).collect();
            let added = counting.add(elapsed.as_secs_f64(), &gpus, &devices, &owners, &tenant);
            let used = inventory.gpus.iter().zip(usages);
            let shown = used.map(|(gpu, usage)| self.shown(gpu, reading(gpu), usage, &devices, &owners, &tenant));
            let shown = shown.collect();
            self.metrics.sampled(took, shown, &added);
        }
    }

    /// The devices that kubelet knows, from any device plugin, their owners, and the GPUs.
    fn devices(&self) -> (Vec<Device>, Owners, Inventory) {
        let (view, kubelet) = (self.view.borrow(), self.kubelet.borrow());
        let inventory = self.state.borrow().inventory.clone().unwrap_or_default();
        (all(&view, &kubelet.elsewhere, &inventory), kubelet.owners.clone(), inventory)
    }

    fn shown(
        &self,
        gpu: &ObservedGpu,
        reading: Option<&Reading>,
        usage: Option<GpuUse>,
        devices: &[Device],
        owners: &Owners,
        tenant: &dyn Fn(&DeviceOwner) -> String,
    ) -> GpuShown {
        let here = devices.iter().filter(|device| device.gpu_uuid == gpu.uuid);
        let held = here.clone().filter_map(|device| {
            let owner = owner(device, owners)?.clone();
            Some(Held { tenant: tenant(&owner), owner, device: device.clone() })
        });
        let mut modes = BTreeMap::new();
        for device in here.clone() {
            let place = device.mig.as_ref().map(|ids| ids.gi);
            modes.entry(place).or_insert_with(|| (Mode::of(device), device.resource.clone()));
        }
        GpuShown {
            node: self.node.clone(),
            pool: self.watched.borrow().pool.clone().unwrap_or_default(),
            held: held.collect(),
            modes,
            board: reading.map(|reading| reading.board),
            rates: reading.and_then(|reading| reading.rates),
            usage: usage.unwrap_or_default(),
            gpu: gpu.clone(),
        }
    }
}

/// The container of a process. The name of one whose pod alone is known is empty: a container may really be named [`UNKNOWN_CONTAINER`].
fn container(origin: Origin) -> Option<DeviceOwner> {
    match origin {
        Origin::Pod(Some(owner)) if owner.container == UNKNOWN_CONTAINER => {
            Some(DeviceOwner { container: String::new(), ..owner })
        }
        Origin::Pod(container) => container,
        Origin::Ended | Origin::Node | Origin::Former(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_container_has_no_name_and_ended_pods_have_no_container() {
        let owner = |name: &str| DeviceOwner { namespace: "n".into(), pod: "p".into(), container: name.into() };
        assert_eq!(container(Origin::Pod(Some(owner("main")))), Some(owner("main")));
        assert_eq!(container(Origin::Pod(Some(owner(UNKNOWN_CONTAINER)))), Some(owner("")));
        let rest = [Origin::Pod(None), Origin::Node, Origin::Ended, Origin::Former(Some(owner("main")), "uid".into())];
        assert_eq!(rest.map(container), [None, None, None, None]);
    }
}
