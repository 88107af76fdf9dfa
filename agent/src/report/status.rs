//! The status as a pure function of what is seen.

use std::{collections::BTreeMap, time::Duration};

use gputenancy_crds::{
    DeviceOwner, DeviceState, GpuNodeStatus, GpuState, Health, Holder, InstanceState, MigMode,
    condition::{self},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{
    boards::{boards, small},
    conditions::verdicts,
};
use crate::{
    carve::{Carved, GpuProgress, offer::instance_id},
    device::{Device, DeviceId, DeviceOwner as Container, DeviceView, KubeletView, owner_of},
    gpu::{Inventory, SeenGpu, SeenInstance, origin::Origin},
};

/// Bytes of JSON that a status should not exceed.
pub const LARGEST: usize = 16 * 1024;

/// Everything that the status is made of.
pub struct Sources<'a> {
    /// Where carving stands, and what NVML shows.
    pub carved: &'a Carved,
    /// What is offered to kubelet.
    pub view: &'a DeviceView,
    /// What kubelet makes of it.
    pub kubelet: &'a KubeletView,
    /// The NVML call under way.
    pub under_way: Option<(&'static str, Duration)>,
    /// The command of a process, and where it comes from.
    pub origin: &'a dyn Fn(u32) -> (String, Origin),
    /// The kernel's boot id.
    pub boot_id: &'a str,
    /// The driver is the simulated one.
    pub simulated: bool,
    /// Conditions as they were, for their transition times.
    pub old: &'a [Condition],
    /// The status that an earlier run wrote last.
    pub earlier: &'a GpuNodeStatus,
}

/// The status of the `GpuNode`.
pub fn status(sources: &Sources<'_>, now: Timestamp) -> GpuNodeStatus {
    let carved = sources.carved;
    let inventory = carved.inventory.clone().unwrap_or_default();
    let (boards, kinds) = boards(&inventory);
    let offered: BTreeMap<&DeviceId, &Device> =
        sources.view.devices.iter().filter(|device| device.offered()).map(|device| (&device.id, device)).collect();
    let state = |(gpu, board)| gpu_state(sources, &offered, gpu, board);
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let gpus: Vec<GpuState> = inventory.gpus.iter().zip(kinds).map(state).collect();
    fit(GpuNodeStatus {
        observed_generation: carved.generation.or(Some(-1)),
        conditions: condition::merge(sources.old, verdicts(sources), carved.generation, now),
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        driver_version: known(&inventory.driver_version),
        cuda_version: known(&inventory.cuda_version),
        boot_id: known(sources.boot_id),
        simulated: Some(sources.simulated),
        boards,
        gpu_count: Some(small(gpus.len())),
        devices: Some(devices(&gpus)),
        gpus,
        layout: known(&layout(&inventory)),
    })
}

/// Keeps the status of a finely cut node small: everybody who watches nodes reads all of it at every change. UUIDs of MIG devices
/// go first, because a place names an instance just as well and NVML tells the rest.
fn fit(mut status: GpuNodeStatus) -> GpuNodeStatus {
    if serde_json::to_vec(&status).is_ok_and(|text| text.len() > LARGEST) {
        let instances = status.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
        instances.for_each(|instance| instance.uuid = None);
    }
    status
}

/// The status while NVML has not answered once: what an earlier run saw, out of service. A driver that comes up minutes after
/// the node must not look like a node without GPUs.
pub fn without_inventory(sources: &Sources<'_>, now: Timestamp) -> GpuNodeStatus {
    let withdrawn = |device: &mut DeviceState| {
        device.resource = None;
        device.allocatable = false;
        device.clients = 0;
    };
    let mut status = sources.earlier.clone();
    status.observed_generation = status.observed_generation.or(Some(-1));
    status.conditions = condition::merge(sources.old, verdicts(sources), status.observed_generation, now);
    for gpu in &mut status.gpus {
        gpu.health = Health::Unhealthy;
        gpu.instances.iter_mut().for_each(|instance| withdrawn(&mut instance.device));
        gpu.whole.iter_mut().for_each(withdrawn);
        gpu.holders.clear();
    }
    status
}

fn gpu_state(sources: &Sources<'_>, offered: &BTreeMap<&DeviceId, &Device>, gpu: &SeenGpu, board: i32) -> GpuState {
    let nothing = GpuProgress::default();
    let progress = sources.carved.gpus.get(&gpu.uuid).unwrap_or(&nothing);
    let kubelet = sources.kubelet;
    let earlier = sources.earlier.gpus.iter().find(|known| known.uuid == gpu.uuid);
    let device = |id: &DeviceId, uuid: Option<&str>, clients: usize, before: Option<&DeviceState>| DeviceState {
        resource: (offered.get(id).map(|device| &device.resource))
            .or_else(|| kubelet.offered_elsewhere(uuid?))
            .cloned(),
        allocatable: kubelet.allocates(id, uuid),
        // a process whose pod nobody knows is a reason to make another device for the pod's team: until kubelet has spoken, who had
        // it has it
        owner: match &sources.carved.owners {
            Some(owners) => owner_of(owners, id, uuid).map(named),
            None => before.and_then(|d| d.owner.clone()),
        },
        clients: small(clients),
    };
    let instance = |seen: &SeenInstance| InstanceState {
        start: small(seen.start),
        profile: seen.profile.clone(),
        gi: small(seen.gi),
        ci: seen.compute.first().map(|compute| small(compute.ci)),
        uuid: seen.compute.first().and_then(|compute| compute.uuid.clone()),
        device: device(
            &instance_id(gpu, seen),
            seen.compute.first().and_then(|compute| compute.uuid.as_deref()),
            gpu.clients_of(seen.gi).count(),
            earlier.and_then(|known| known.instances.iter().find(|i| is_same(i, seen))).map(|i| &i.device),
        ),
    };
    let mig_on = gpu.mode.is_some_and(|mode| mode.current);
    GpuState {
        uuid: gpu.uuid.clone(),
        index: small(gpu.index),
        pci_bus_id: gpu.pci_bus_id.clone(),
        board,
        mig: gpu.mode.map(|mode| MigMode {
            enabled: mode.current,
            pending: (mode.pending != mode.current).then_some(mode.pending),
        }),
        health: if sources.carved.trouble.is_some() { Health::Unhealthy } else { gpu.health },
        fault: gpu.fault.clone(),
        step: progress.step,
        instances: gpu.instances.iter().map(instance).collect(),
        whole: (!mig_on).then(|| {
            let before = earlier.and_then(|known| known.whole.as_ref());
            device(&DeviceId::whole(&gpu.uuid), Some(&gpu.uuid), gpu.clients.len(), before)
        }),
        holders: holders(sources, gpu, progress),
        error: progress.error.clone(),
    }
}

/// Is it the instance that an earlier run saw?
fn is_same(known: &InstanceState, seen: &SeenInstance) -> bool {
    (known.start, known.gi, known.profile.as_str()) == (small(seen.start), small(seen.gi), seen.profile.as_str())
}

/// Processes that the owner of their device does not explain: those of NVML's lists, and those that kept an instance from being
/// destroyed.
fn holders(sources: &Sources<'_>, gpu: &SeenGpu, progress: &GpuProgress) -> Vec<Holder> {
    let instance = |gi: Option<u32>| gpu.instances.iter().find(|seen| Some(seen.gi) == gi);
    let listed = gpu.clients.iter().map(|process| (process.pid, instance(process.gi)));
    let blockers = progress.blockers.iter().filter(|pid| gpu.clients.iter().all(|process| process.pid != **pid));
    let all = listed.chain(blockers.map(|pid| (*pid, None)));
    let holder = |(pid, seen): (u32, Option<&SeenInstance>)| {
        let (device, uuid) = match seen {
            Some(seen) => (instance_id(gpu, seen), seen.compute.first().and_then(|compute| compute.uuid.as_deref())),
            None => (DeviceId::whole(&gpu.uuid), Some(gpu.uuid.as_str())),
        };
        let (command, origin) = (sources.origin)(pid);
        let container = match stranger(sources, (&device, uuid), origin)? {
            Stranger::OfNode => None,
            Stranger::In(container) => Some(named(&container)),
        };
        Some(Holder { pid: i64::from(pid), command, start: seen.map(|seen| small(seen.start)), container })
    };
    // Enough to name the culprits; a status is no process list.
    all.filter_map(holder).take(16).collect()
}

/// Who uses a device without having got it from kubelet.
enum Stranger {
    /// A process of the node itself.
    OfNode,
    /// A process of this container.
    In(Container),
}

/// What a process is to the device that it uses; nothing where it may.
fn stranger(sources: &Sources<'_>, (device, uuid): (&DeviceId, Option<&str>), origin: Origin) -> Option<Stranger> {
    let owners = sources.carved.owners.as_ref();
    let owner = owners.and_then(|owners| owner_of(owners, device, uuid));
    // A pod that starts is seen by NVML before kubelet tells of it; from a device that is held none can start.
    let held = || sources.view.devices.iter().any(|known| known.id == *device && known.held);
    match (origin, owner) {
        (Origin::Ended | Origin::Pod(None), _) => None,
        (Origin::Node, _) => Some(Stranger::OfNode),
        (Origin::Pod(Some(who)), Some(owner)) => {
            ((&who.namespace, &who.pod) != (&owner.namespace, &owner.pod)).then_some(Stranger::In(who))
        }
        (Origin::Pod(Some(who)), None) => (owners.is_some() && held()).then_some(Stranger::In(who)),
    }
}

fn named(container: &Container) -> DeviceOwner {
    let Container { namespace, pod, container } = container.clone();
    DeviceOwner { namespace, pod, container }
}

/// Devices that pods own, of all that exist: `5/14`.
fn devices(gpus: &[GpuState]) -> String {
    let all = gpus.iter().flat_map(|gpu| gpu.instances.iter().map(|instance| &instance.device).chain(&gpu.whole));
    let (used, total) = all.fold((0, 0), |(used, total), device| (used + i32::from(device.owner.is_some()), total + 1));
    format!("{used}/{total}")
}

/// `0: 1g.10gb@0 3g.40gb@4; 1: whole`.
fn layout(inventory: &Inventory) -> String {
    let line = |gpu: &SeenGpu| {
        let what = match (gpu.mode.is_some_and(|mode| mode.current), gpu.instances.as_slice()) {
            (false, _) => "whole".to_owned(),
            (true, []) => "empty".to_owned(),
            (true, many) => {
                many.iter().map(|seen| format!("{}@{}", seen.profile, seen.start)).collect::<Vec<_>>().join(" ")
            }
        };
        format!("{}: {what}", gpu.index)
    };
    inventory.gpus.iter().map(line).collect::<Vec<_>>().join("; ")
}
