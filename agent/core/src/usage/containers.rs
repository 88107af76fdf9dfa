//! How the activity of a device is divided among the containers that have it.
//!
//! What an exclusive device does, its container does. On a shared GPU each container has the time of its processes, scaled down where NVML's samples of them add
//! up to more than the device did; what no container explains stays apart. NVML knows no utilization of processes on MIG instances: there a share has
//! memory alone.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    activity::{Activity, Figure, Source, devices},
    reading::{ProcessRate, Reading},
};
use crate::{
    device::{Device, DeviceId, DeviceOwner, Owners},
    gpu::ObservedGpu,
};

/// What a container does on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContainerUse {
    /// Its part of the device's utilization; `None` where no source shows it.
    pub utilization: Option<Figure>,
    /// Part of the device's multiprocessors; `None` on shared devices.
    pub sm: Option<Figure>,
    /// Bytes of its processes; `None` where the driver does not report them.
    pub memory: Option<u64>,
}

/// What a GPU and the containers on it do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuUse {
    /// Activity of its devices by GPU instance id, `None` for the GPU as a whole.
    pub devices: BTreeMap<Option<u32>, Activity>,
    /// Containers by GPU instance id.
    pub containers: BTreeMap<(Option<u32>, DeviceOwner), ContainerUse>,
    /// Utilization of shared devices that no container with a share explains.
    pub unattributed: BTreeMap<Option<u32>, f64>,
}

/// What a GPU and the containers with a device of it do. `origin` is the container of a process, if it is of one.
pub fn divide(
    gpu: &ObservedGpu,
    reading: &Reading,
    of_node: &[Device],
    owners: &Owners,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> GpuUse {
    let mut found = GpuUse { devices: devices(gpu, reading), ..GpuUse::default() };
    let (mut exclusive, mut shared) = (BTreeSet::new(), BTreeMap::<Option<u32>, BTreeSet<DeviceOwner>>::new());
    for device in of_node.iter().filter(|device| device.gpu_uuid == gpu.uuid) {
        let place = device.mig.as_ref().map(|ids| ids.gi);
        match (owner(device, owners), &device.share) {
            (Some(owner), None) => drop(exclusive.insert((place, owner.clone()))),
            (Some(owner), Some(_)) => drop(shared.entry(place).or_default().insert(owner.clone())),
            (None, Some(_)) => drop(shared.entry(place).or_default()),
            (None, None) => {}
        }
    }
    let memory = memory(gpu, origin);
    let of = |key: &(Option<u32>, DeviceOwner)| memory.get(key).copied().unwrap_or(Some(0));
    for key in exclusive {
        let Activity { utilization, sm, .. } = found.devices.get(&key.0).copied().unwrap_or_default();
        let memory = of(&key);
        found.containers.insert(key, ContainerUse { utilization, sm, memory });
    }
    for (place, containers) in shared {
        let device = found.devices.get(&place).and_then(|activity| activity.utilization);
        let rates = if place.is_none() { reading.processes.as_deref() } else { None };
        let parts = rates.map(|rates| parts(device, rates, &containers, origin));
        if let Some((_, rest)) = &parts {
            found.unattributed.insert(place, *rest);
        }
        for container in containers {
            let part = |parts: &BTreeMap<DeviceOwner, f64>| parts.get(&container).copied().unwrap_or(0.0);
            let utilization = parts.as_ref().map(|(parts, _)| Figure { value: part(parts), source: Source::Process });
            let key = (place, container);
            let memory = of(&key);
            found.containers.insert(key, ContainerUse { utilization, sm: None, memory });
        }
    }
    found
}

/// The container that has a device, also if kubelet lists it under its legacy id.
pub fn owner<'o>(device: &Device, owners: &'o Owners) -> Option<&'o DeviceOwner> {
    let legacy = || owners.get(&device.legacy_id()?);
    owners.get::<DeviceId>(&device.id).or_else(legacy)
}

/// The parts of a shared GPU's time by container, and what none of these explains.
fn parts(
    device: Option<Figure>,
    rates: &[ProcessRate],
    containers: &BTreeSet<DeviceOwner>,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> (BTreeMap<DeviceOwner, f64>, f64) {
    let mut parts = BTreeMap::new();
    for rate in rates {
        if let Some(container) = origin(rate.pid).filter(|container| containers.contains(container)) {
            *parts.entry(container).or_insert(0.0) += rate.time.max(0.0);
        }
    }
    let (own, all) = (parts.values().sum::<f64>(), rates.iter().map(|rate| rate.time.max(0.0)).sum::<f64>());
    let device = device.map_or(all.min(1.0), |figure| figure.value);
    // the samples of processes and of the GPU are not of the same moment
    let scale = if all > device && all > 0.0 { device / all } else { 1.0 };
    for part in parts.values_mut() {
        *part *= scale;
    }
    (parts, (device - own * scale).max(0.0))
}

/// Bytes of the processes of each container, by GPU instance; `None` if the driver reports none of any of them.
fn memory(
    gpu: &ObservedGpu,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> BTreeMap<(Option<u32>, DeviceOwner), Option<u64>> {
    let mut found: BTreeMap<_, Option<u64>> = BTreeMap::new();
    for process in &gpu.clients {
        let Some(container) = origin(process.pid) else { continue };
        let known = found.entry((process.gi, container)).or_default();
        *known = [*known, process.memory].into_iter().flatten().reduce(u64::saturating_add);
    }
    found
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;
    use proptest::prelude::*;

    use super::*;
    use crate::{device::tests::share, nvml::Process, usage::reading::Rates};

    fn owner_of(pod: u32) -> DeviceOwner {
        DeviceOwner { namespace: "team".into(), pod: format!("p{pod}"), container: "main".into() }
    }

    /// Processes 10 to 19 are of pod 1, 20 to 29 of pod 2, and so on; below 10 of the node.
    fn origin(pid: u32) -> Option<DeviceOwner> {
        (pid >= 10).then(|| owner_of(pid / 10))
    }

    fn found(device: Option<f64>, rates: Option<&[(u32, f64)]>, pods: &[u32]) -> GpuUse {
        let devices: Vec<Device> = (0..4).map(|number| share(number, SharingMode::TimeSlice, None)).collect();
        let owners: Owners =
            pods.iter().zip(&devices).map(|(pod, device)| (device.id.clone(), owner_of(*pod))).collect();
        let clients = vec![Process { pid: 10, gi: None, ci: None, memory: Some(7) }];
        let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
        let rate = |(pid, time): &(u32, f64)| ProcessRate { pid: *pid, time: *time };
        let reading = Reading {
            rates: device.map(|gpu| Rates { gpu, memory: 0.0 }),
            processes: rates.map(|rates| rates.iter().map(rate).collect()),
            ..Reading::default()
        };
        divide(&gpu, &reading, &devices, &owners, &origin)
    }

    #[test]
    fn neighbour_on_a_shared_gpu_has_its_own_time_and_idle_ones_have_none() {
        let found = found(Some(0.9), Some(&[(10, 0.2), (11, 0.1), (20, 0.5)]), &[1, 2, 3]);
        let time = |pod| found.containers[&(None, owner_of(pod))].utilization.unwrap().value;
        assert!((time(1) - 0.3).abs() < 1e-9 && (time(2) - 0.5).abs() < 1e-9 && time(3) == 0.0, "{found:?}");
        assert!((found.unattributed[&None] - 0.1).abs() < 1e-9);
        assert_eq!(found.containers[&(None, owner_of(1))].memory, Some(7));
        assert!(found.containers.values().all(|container| container.sm.is_none()));
    }

    #[test]
    fn shares_have_no_utilization_where_nvml_knows_no_processes() {
        let found = found(Some(0.9), None, &[1]);
        assert_eq!(found.containers[&(None, owner_of(1))].utilization, None);
        assert_eq!(found.unattributed, BTreeMap::new());
    }

    proptest! {
        #[test]
        fn containers_and_the_rest_add_up_to_the_device(
            device in proptest::option::of(0.0..=1.0),
            rates in proptest::collection::vec((0_u32..60, 0.0..=1.0), 0..12),
            pods in proptest::collection::vec(1_u32..5, 0..4),
        ) {
            let found = found(device, Some(&rates), &pods);
            let parts: f64 = found.containers.values().filter_map(|c| c.utilization).map(|figure| figure.value).sum();
            let rest = found.unattributed[&None];
            let all = device.unwrap_or_else(|| rates.iter().map(|(_, time)| time).sum::<f64>().min(1.0));
            prop_assert!((parts + rest - all).abs() < 1e-9, "{} + {} is not {}", parts, rest, all);
            prop_assert!(rest >= 0.0);
        }
    }
}
