//! How the activity of a device is divided among the containers that have it.
//!
//! What an exclusive device does, its container does. On a shared GPU each container has the time of its processes, scaled down where NVML's samples of them add
//! up to more than the device did; the time of processes of no pod with a device stays apart. NVML knows no utilization of processes on MIG instances: there
//! a share has memory alone.
//!
//! A process whose own container has no device counts for the container of its pod that has one. If several have one, the parts of all of them are unknown.

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
    /// Its part of the device's utilization; `None` where no source shows it, or where a process may be of several containers of the pod.
    pub utilization: Option<Figure>,
    /// Part of the device's multiprocessors; `None` on shared devices.
    pub sm: Option<Figure>,
    /// Bytes of its processes; `None` where the driver does not report them, or where a process may be of several containers of the pod.
    pub memory: Option<u64>,
}

/// What a GPU and the containers on it do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuUse {
    /// Activity of its devices by GPU instance id, `None` for the GPU as a whole.
    pub devices: BTreeMap<Option<u32>, Activity>,
    /// Containers by GPU instance id.
    pub containers: BTreeMap<(Option<u32>, DeviceOwner), ContainerUse>,
    /// Utilization of shared devices by processes of no pod with a device there.
    pub unattributed: BTreeMap<Option<u32>, f64>,
}

/// Containers with a device, by GPU instance id.
type Holders = BTreeMap<Option<u32>, BTreeSet<DeviceOwner>>;

/// What a GPU and the containers with a device of it do. `origin` is the container of a process, if it is of one; of a process whose pod alone is known, the
/// name of the container is one that no container has.
pub fn divide(
    gpu: &ObservedGpu,
    reading: &Reading,
    of_node: &[Device],
    owners: &Owners,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> GpuUse {
    let mut found = GpuUse { devices: devices(gpu, reading), ..GpuUse::default() };
    let mut exclusive = BTreeSet::<(Option<u32>, DeviceOwner)>::new();
    let (mut shared, mut holders) = (Holders::new(), Holders::new());
    for device in of_node.iter().filter(|device| device.gpu_uuid == gpu.uuid) {
        let (place, owner) = (device.mig.as_ref().map(|ids| ids.gi), owner(device, owners));
        holders.entry(place).or_default().extend(owner.cloned());
        if device.share.is_some() {
            shared.entry(place).or_default().extend(owner.cloned());
        } else {
            exclusive.extend(owner.map(|owner| (place, owner.clone())));
        }
    }
    let memory = memory(gpu, &holders, origin);
    let of = |key: &(Option<u32>, DeviceOwner)| memory.get(&(key.0, &key.1)).copied().unwrap_or(Some(0));
    for key in exclusive {
        let Activity { utilization, sm, .. } = found.devices.get(&key.0).copied().unwrap_or_default();
        let memory = of(&key);
        found.containers.insert(key, ContainerUse { utilization, sm, memory });
    }
    for (place, containers) in shared {
        let device = found.devices.get(&place).and_then(|activity| activity.utilization);
        let rates = if place.is_none() { reading.processes.as_deref() } else { None };
        let parts = rates.zip(holders.get(&place)).map(|(rates, here)| parts(device, rates, here, origin));
        if let Some((_, rest)) = &parts {
            found.unattributed.insert(place, *rest);
        }
        for container in containers {
            let part = parts.as_ref().and_then(|(parts, _)| parts.get(&container).copied().unwrap_or(Some(0.0)));
            let utilization = part.map(|value| Figure { value, source: Source::Process });
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

/// The containers that a process may count for: its own if that has a device, otherwise all of its pod that have one. An init container may use the device
/// that kubelet lists for a later container of the pod, and the name of a process's container may be unknown.
fn candidates<'h>(origin: Option<&DeviceOwner>, holders: &'h BTreeSet<DeviceOwner>) -> Vec<&'h DeviceOwner> {
    let Some(origin) = origin else { return Vec::new() };
    if let Some(own) = holders.get(origin) {
        return vec![own];
    }
    let of_pod = |holder: &&DeviceOwner| (&holder.namespace, &holder.pod) == (&origin.namespace, &origin.pod);
    holders.iter().filter(of_pod).collect()
}

/// The parts of a shared GPU's time by container, `None` where a process may be of several containers, and the time of processes of no pod with a device.
fn parts<'h>(
    device: Option<Figure>,
    rates: &[ProcessRate],
    holders: &'h BTreeSet<DeviceOwner>,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> (BTreeMap<&'h DeviceOwner, Option<f64>>, f64) {
    let mut parts = BTreeMap::<&DeviceOwner, f64>::new();
    let (mut unclear, mut explained) = (BTreeSet::<&DeviceOwner>::new(), 0.0);
    for rate in rates {
        let time = rate.time.max(0.0);
        let candidates = candidates(origin(rate.pid).as_ref(), holders);
        explained += if candidates.is_empty() { 0.0 } else { time };
        match candidates.as_slice() {
            [owner] => *parts.entry(*owner).or_default() += time,
            several if time > 0.0 => unclear.extend(several.iter().copied()),
            _ => {}
        }
    }
    let all = rates.iter().map(|rate| rate.time.max(0.0)).sum::<f64>();
    let device = device.map_or(all.min(1.0), |figure| figure.value);
    // the samples of processes and of the GPU are not of the same moment
    let scale = if all > device && all > 0.0 { device / all } else { 1.0 };
    let mut scaled: BTreeMap<_, _> = parts.into_iter().map(|(owner, time)| (owner, Some(time * scale))).collect();
    scaled.extend(unclear.into_iter().map(|owner| (owner, None)));
    (scaled, (device - explained * scale).max(0.0))
}

/// Bytes of the processes of each container, by GPU instance; `None` if the driver reports none of any of them, or if a process may be of several containers.
fn memory<'h>(
    gpu: &ObservedGpu,
    holders: &'h Holders,
    origin: &dyn Fn(u32) -> Option<DeviceOwner>,
) -> BTreeMap<(Option<u32>, &'h DeviceOwner), Option<u64>> {
    let mut found = BTreeMap::<(Option<u32>, &DeviceOwner), Option<u64>>::new();
    let mut unclear = BTreeSet::<(Option<u32>, &DeviceOwner)>::new();
    for process in &gpu.clients {
        let Some(here) = holders.get(&process.gi) else { continue };
        match candidates(origin(process.pid).as_ref(), here).as_slice() {
            [owner] => {
                let known = found.entry((process.gi, *owner)).or_default();
                *known = [*known, process.memory].into_iter().flatten().reduce(u64::saturating_add);
            }
            several => unclear.extend(several.iter().map(|owner| (process.gi, *owner))),
        }
    }
    found.extend(unclear.into_iter().map(|key| (key, None)));
    found
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        device::{MigIds, tests::share},
        nvml::Process,
        usage::reading::Rates,
    };

    fn container(pod: u32, name: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team".into(), pod: format!("p{pod}"), container: name.into() }
    }

    fn main_of(pod: u32) -> DeviceOwner {
        container(pod, "main")
    }

    /// Processes 10 to 19 are of pod 1, 20 to 29 of pod 2, and so on; below 10 of the node. In each pod the first five are of one container, the next
    /// two of another, and the container of the others is not known.
    fn origin(pid: u32) -> Option<DeviceOwner> {
        let name = match pid % 10 {
            0..5 => "main",
            5..7 => "training",
            _ => "unknown",
        };
        (pid >= 10).then(|| container(pid / 10, name))
    }

    /// The use of a GPU with shares. Each process has 7 bytes.
    fn found(device: Option<f64>, rates: Option<&[(u32, f64)]>, holders: &[DeviceOwner]) -> GpuUse {
        let devices: Vec<Device> = (0..4).map(|number| share(number, SharingMode::TimeSlice, None)).collect();
        let owners: Owners =
            holders.iter().zip(&devices).map(|(holder, device)| (device.id.clone(), holder.clone())).collect();
        let client = |(pid, _): &(u32, f64)| Process { pid: *pid, gi: None, ci: None, memory: Some(7) };
        let clients = rates.unwrap_or_default().iter().map(client).collect();
        let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
        let rate = |(pid, time): &(u32, f64)| ProcessRate { pid: *pid, time: *time };
        let reading = Reading {
            rates: device.map(|gpu| Rates { gpu, memory: 0.0 }),
            processes: rates.map(|rates| rates.iter().map(rate).collect()),
            ..Reading::default()
        };
        divide(&gpu, &reading, &devices, &owners, &origin)
    }

    /// Thousandths of the GPU's time, and bytes.
    fn of(found: &GpuUse, holder: DeviceOwner) -> (Option<f64>, Option<u64>) {
        let found = found.containers[&(None, holder)];
        (found.utilization.map(|figure| (figure.value * 1000.0).round()), found.memory)
    }

    #[test]
    fn neighbour_on_a_shared_gpu_has_its_own_time_and_idle_ones_have_none() {
        let found = found(Some(0.9), Some(&[(10, 0.2), (11, 0.1), (20, 0.5)]), &[1, 2, 3].map(main_of));
        let all = [1, 2, 3].map(|pod| of(&found, main_of(pod)));
        assert_eq!(all, [(Some(300.0), Some(14)), (Some(500.0), Some(7)), (Some(0.0), Some(0))]);
        assert!((found.unattributed[&None] - 0.1).abs() < 1e-9);
        assert!(found.containers.values().all(|container| container.sm.is_none()));
    }

    #[test]
    fn shares_have_no_utilization_where_nvml_knows_no_processes() {
        let found = found(Some(0.9), None, &[main_of(1)]);
        assert_eq!(found.containers[&(None, main_of(1))].utilization, None);
        assert_eq!(found.unattributed, BTreeMap::new());
    }

    #[test]
    fn process_of_an_unknown_container_counts_for_the_only_container_of_its_pod_with_a_device() {
        let found = found(Some(0.9), Some(&[(18, 0.6), (20, 0.2)]), &[main_of(1), main_of(2)]);
        assert_eq!([1, 2].map(|pod| of(&found, main_of(pod))), [(Some(600.0), Some(7)), (Some(200.0), Some(7))]);
        assert!((found.unattributed[&None] - 0.1).abs() < 1e-9);
    }

    #[test]
    fn process_of_an_init_container_counts_for_the_only_container_of_its_pod_with_a_device() {
        let found = found(Some(0.9), Some(&[(10, 0.1), (15, 0.6), (35, 0.2)]), &[main_of(1), main_of(2)]);
        assert_eq!([1, 2].map(|pod| of(&found, main_of(pod))), [(Some(700.0), Some(14)), (Some(0.0), Some(0))]);
        assert!((found.unattributed[&None] - 0.2).abs() < 1e-9, "a pod without a device: {found:?}");
    }

    #[test]
    fn containers_of_a_pod_are_unknown_while_a_process_may_be_of_several_of_them() {
        let holders = [main_of(1), container(1, "training"), main_of(2)];
        let unclear = found(Some(0.9), Some(&[(10, 0.2), (15, 0.1), (18, 0.3), (20, 0.2)]), &holders);
        let all = holders.clone().map(|holder| of(&unclear, holder));
        assert_eq!(all, [(None, None), (None, None), (Some(200.0), Some(7))]);
        assert!((unclear.unattributed[&None] - 0.1).abs() < 1e-9, "the pod explains its time: {unclear:?}");
        let clear = found(Some(0.9), Some(&[(10, 0.2), (15, 0.1), (20, 0.2)]), &holders);
        let all = holders.clone().map(|holder| of(&clear, holder));
        assert_eq!(all, [(Some(200.0), Some(7)), (Some(100.0), Some(7)), (Some(200.0), Some(7))]);
        let without_time = found(Some(0.9), Some(&[(10, 0.2), (18, 0.0)]), &holders);
        let all = holders.map(|holder| of(&without_time, holder));
        assert_eq!(all, [(Some(200.0), None), (Some(0.0), None), (Some(0.0), Some(0))]);
    }

    #[test]
    fn memory_of_an_unmatched_process_counts_for_the_owner_of_an_exclusive_device() {
        let device = |gi: Option<u32>| Device {
            id: DeviceId::new(format!("device-{gi:?}")),
            mig: gi.map(|gi| MigIds { gi, ci: 0, start: 0, profile: "1g.10gb".into() }),
            share: None,
            ..share(0, SharingMode::TimeSlice, None)
        };
        let memory = |held: &[(Option<u32>, DeviceOwner)], processes: &[(u32, Option<u32>)]| {
            let devices: Vec<Device> = held.iter().map(|(gi, _)| device(*gi)).collect();
            let owners: Owners =
                devices.iter().zip(held).map(|(device, (_, owner))| (device.id.clone(), owner.clone())).collect();
            let client = |(pid, gi): &(u32, Option<u32>)| Process { pid: *pid, gi: *gi, ci: None, memory: Some(7) };
            let clients = processes.iter().map(client).collect();
            let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
            let found = divide(&gpu, &Reading::default(), &devices, &owners, &origin);
            held.iter().map(|key| found.containers[key].memory).collect::<Vec<_>>()
        };
        assert_eq!(memory(&[(None, main_of(1))], &[(10, None), (15, None), (18, None)]), [Some(21)]);
        let held = [(Some(7), main_of(1)), (Some(8), container(1, "training"))];
        let found = memory(&held, &[(18, Some(7)), (10, Some(8)), (15, Some(8)), (18, Some(9))]);
        assert_eq!(found, [Some(7), Some(14)], "each instance has one owner");
    }

    proptest! {
        #[test]
        fn known_containers_and_the_rest_add_up_to_the_device(
            device in proptest::option::of(0.0_f64..=1.0),
            rates in proptest::collection::vec((0_u32..60, 0.0_f64..=1.0), 0..12),
            holders in proptest::collection::vec((1_u32..5, proptest::bool::ANY), 0..4),
        ) {
            let name = |training: bool| if training { "training" } else { "main" };
            let holders: Vec<DeviceOwner> =
                holders.iter().map(|(pod, training)| container(*pod, name(*training))).collect();
            let found = found(device, Some(&rates), &holders);
            let time = |of_pod: &dyn Fn(Option<String>) -> bool| -> f64 {
                let of_pod = |(pid, _): &&(u32, f64)| of_pod(origin(*pid).map(|container| container.pod));
                rates.iter().filter(of_pod).map(|(_, time)| time).sum()
            };
            let total = time(&|_| true);
            let all = device.unwrap_or(total.min(1.0));
            let scale = if total > all { all / total } else { 1.0 };
            let values: Vec<Option<f64>> =
                found.containers.values().map(|container| container.utilization.map(|figure| figure.value)).collect();
            let (parts, rest) = (values.iter().flatten().sum::<f64>(), found.unattributed[&None]);
            prop_assert!(rest >= 0.0 && parts + rest <= all + 1e-9, "{} + {} is above {}", parts, rest, all);
            if values.iter().all(Option::is_some) {
                prop_assert!((parts + rest - all).abs() < 1e-9, "{} + {} is not {}", parts, rest, all);
            }
            let explained = time(&|pod| holders.iter().any(|holder| Some(&holder.pod) == pod.as_ref()));
            prop_assert!((rest + explained * scale - all).abs() < 1e-9, "the rest is of other pods");
            for holder in &holders {
                let of_pod = found.containers.iter().filter(|((_, container), _)| container.pod == holder.pod);
                let known: Option<Vec<Figure>> = of_pod.map(|(_, found)| found.utilization).collect();
                let Some(known) = known else { continue };
                let known: f64 = known.iter().map(|figure| figure.value).sum();
                let used = time(&|pod| pod.as_ref() == Some(&holder.pod));
                prop_assert!((known - used * scale).abs() < 1e-9, "{} of {} is known", known, used * scale);
            }
        }
    }
}
