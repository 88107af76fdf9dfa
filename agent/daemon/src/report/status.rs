//! The status as a pure function of the input.

use std::{cell::RefCell, collections::BTreeMap};

use gputenancy_crds::{
    Advertiser, DeviceState, GpuNodeStatus, GpuState, Health, Holder, InstanceState, Isolation, MemoryText, MigMode,
    NodeEnforcement, RefusedResize, ShareState, SharingMode, condition, slice_of, words::counted,
};
use gputenancy_nvml::Process;
use k8s_openapi::jiff::Timestamp;

use super::{
    boards::boards,
    conditions::{stopped_updates, updates},
    input::StatusInput,
    processes,
};
use crate::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, Limiters, Owners, Share},
    enforcement,
    gpu::{Inventory, ObservedGpu, ObservedInstance, processes::process_origin::Origin},
    partition::{
        GpuProgress,
        devices::{device_uuid, owner_of},
    },
    to_i32,
};

/// Largest size of a status, in bytes of JSON.
pub const MAX_SIZE: usize = 16 * 1024;

/// Most unattributed processes listed for one GPU.
const MAX_HOLDERS: usize = 16;

/// The status of the `GpuNode`.
pub fn status(input: &StatusInput<'_>, now: Timestamp) -> GpuNodeStatus {
    // each process once, however many shares its GPU has
    let known = RefCell::new(BTreeMap::<u32, (String, Origin)>::new());
    let origin = |pid: u32| known.borrow_mut().entry(pid).or_insert_with(|| (input.origin)(pid)).clone();
    let input = &StatusInput { origin: &origin, ..*input };
    let state = input.state;
    let inventory = state.inventory.clone().unwrap_or_default();
    let (boards, board_indices) = boards(&inventory);
    let advertised: BTreeMap<&str, &Device> =
        input.view.devices.iter().filter(|d| d.advertised()).map(|device| (device.id.as_str(), device)).collect();
    let gpu_state = |(gpu, board)| gpu_state(input, &advertised, gpu, board);
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let gpus: Vec<GpuState> = inventory.gpus.iter().zip(board_indices).map(gpu_state).collect();
    fit(GpuNodeStatus {
        observed_generation: state.generation.or(Some(-1)),
        conditions: condition::merge(input.old, updates(input), state.generation, now),
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        driver_version: known(&inventory.driver_version),
        cuda_version: known(&inventory.cuda_version),
        boot_id: known(input.boot_id),
        simulated: Some(input.simulated),
        boards,
        enforcement: node_enforcement(input),
        memory_scrub: Some(inventory.scrub()),
        gpu_count: Some(to_i32(gpus.len())),
        devices: Some(devices(&gpus)),
        gpus,
        layout: known(&layout(&inventory, input.view)),
    })
}

/// What the node can give, and the limits of other products there.
fn node_enforcement(input: &StatusInput<'_>) -> Option<NodeEnforcement> {
    let known = enforcement::of_node(input.view.advertiser, input.kubelet.limiters);
    // before the device plugin has found out, that of the earlier run
    let node = known.or_else(|| input.earlier.enforcement.clone())?;
    Some(NodeEnforcement { other_limits: input.other_limits.of(input.kubelet.other_limiter), ..node })
}

/// Keeps the status small, because every watch receives all of it with every change: with as many limits of other products as fit, which
/// teams write, without the lists of processes, and without the UUIDs of MIG devices, which start and profile replace.
fn fit(mut status: GpuNodeStatus) -> GpuNodeStatus {
    while is_too_large(&status) && status.enforcement.as_mut().is_some_and(|node| node.other_limits.pop().is_some()) {}
    if is_too_large(&status) {
        status.gpus.iter_mut().flat_map(GpuState::devices_mut).for_each(processes::leave_out);
    }
    if is_too_large(&status) {
        let instances = status.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
        instances.for_each(|instance| instance.uuid = None);
    }
    status
}

fn is_too_large(status: &GpuNodeStatus) -> bool {
    serde_json::to_vec(status).is_ok_and(|text| text.len() > MAX_SIZE)
}

/// The status before NVML's first answer: that of an earlier run, with all devices withdrawn. A driver that starts minutes after the
/// node must not make it a node without GPUs.
pub fn without_inventory(input: &StatusInput<'_>, now: Timestamp) -> GpuNodeStatus {
    let withdrawn = |device: &mut DeviceState| {
        device.resource = None;
        device.allocatable = false;
        device.clients = 0;
        device.processes.clear();
        device.more_containers = 0;
    };
    let mut status = input.earlier.clone();
    status.observed_generation = status.observed_generation.or(Some(-1));
    status.conditions = condition::merge(input.old, updates(input), status.observed_generation, now);
    for gpu in &mut status.gpus {
        gpu.health = Health::Unhealthy;
        gpu.devices_mut().for_each(withdrawn);
        gpu.holders.clear();
        gpu.unlisted.clear();
        gpu.ghost_memory.clear();
        gpu.shares.iter_mut().for_each(|share| (share.bypass, share.sandbox) = (None, None));
    }
    status
}

/// The status of an agent that stops: its conditions are no longer known, and the GPUs are as it last saw them.
pub fn stopped(latest: GpuNodeStatus, now: Timestamp) -> GpuNodeStatus {
    let generation = latest.observed_generation.filter(|g| *g >= 0);
    let conditions = condition::merge(&latest.conditions, stopped_updates(), generation, now);
    GpuNodeStatus { conditions, ..latest }
}

fn gpu_state(input: &StatusInput<'_>, advertised: &BTreeMap<&str, &Device>, gpu: &ObservedGpu, board: i32) -> GpuState {
    let nothing = GpuProgress::default();
    let progress = input.state.gpus.get(&gpu.uuid).unwrap_or(&nothing);
    let kubelet = input.kubelet;
    let earlier = input.earlier.gpus.iter().find(|known| known.uuid == gpu.uuid);
    let device = |instance: Option<&ObservedInstance>, clients: usize, before: Option<&DeviceState>| DeviceState {
        resource: device_uuid(gpu, instance).and_then(|uuid| {
            advertised.get(uuid).map(|device| &device.resource).or_else(|| kubelet.elsewhere.get(uuid)).cloned()
        }),
        allocatable: device_uuid(gpu, instance).is_some_and(|uuid| kubelet.allocatable.contains(uuid)),
        // before kubelet's first report the earlier owner counts: a device with an unattributed process would be replaced
        owner: match &input.state.owners {
            Some(owners) => owner_of(owners, gpu, instance).cloned(),
            None => before.and_then(|d| d.owner.clone()),
        },
        former_owner: device_uuid(gpu, instance).and_then(|uuid| input.state.former_owners.get(uuid)).cloned(),
        unexplained_memory: device_uuid(gpu, instance).and_then(|uuid| unexplained(input, uuid)),
        clients: to_i32(clients),
        ..DeviceState::default()
    };
    let with_processes = |device: DeviceState, instance: Option<&ObservedInstance>| {
        let owner = device.owner.clone();
        let here = |gi: Option<u32>| instance.is_none_or(|instance| gi == Some(instance.gi));
        processes::list(device, input.processes, &gpu.uuid, &here, owner.as_ref())
    };
    let shares = shares(input, gpu, earlier);
    let instance_state = |instance: &ObservedInstance| InstanceState {
        start: to_i32(instance.start),
        profile: instance.profile.clone(),
        gi: to_i32(instance.gi),
        ci: instance.compute.first().map(|compute| to_i32(compute.ci)),
        uuid: instance.uuid().map(str::to_owned),
        device: Some(device(
            Some(instance),
            gpu.clients_of(instance.gi).count(),
            earlier
                .and_then(|known| known.instances.iter().find(|i| is_same(i, instance)))
                .and_then(|i| i.device.as_ref()),
        ))
        .map(|device| with_processes(device, Some(instance)))
        .filter(|device| device.owner.is_some() || !is_sliced(&shares, instance)),
    };
    GpuState {
        uuid: gpu.uuid.clone(),
        index: to_i32(gpu.index),
        pci_bus_id: gpu.pci_bus_id.clone(),
        board,
        mig: gpu.mode.map(|mode| MigMode {
            enabled: mode.current,
            pending: (mode.pending != mode.current).then_some(mode.pending),
        }),
        health: if input.state.nvml_error.is_some() { Health::Unhealthy } else { gpu.health },
        fault: gpu.fault.clone(),
        recovery: gpu.recovery.clone(),
        step: progress.step,
        instances: gpu.instances.iter().map(instance_state).collect(),
        whole: (!gpu.mig_enabled())
            .then(|| {
                let before = earlier.and_then(|known| known.whole.as_ref());
                with_processes(device(None, gpu.clients.len(), before), None)
            })
            .filter(|whole| shares.is_empty() || whole.owner.is_some()),
        shares,
        retained: input.state.retained.get(&gpu.uuid).cloned(),
        enforcement: enforcement(input, gpu),
        holders: holders(input, gpu, progress),
        unlisted: input.processes.unlisted.get(&gpu.uuid).cloned().unwrap_or_default(),
        ghost_memory: input.processes.ghosts.get(&gpu.uuid).cloned().unwrap_or_default(),
        error: progress.error.clone(),
    }
}

/// The weakest means that holds a share of the GPU to its memory; none without shares. Another plugin's shares have none of ours.
fn enforcement(input: &StatusInput<'_>, gpu: &ObservedGpu) -> Option<Isolation> {
    let limiters = if input.view.advertiser.is_agent() { input.kubelet.limiters } else { Limiters::OFF };
    input.view.shares(&gpu.uuid).filter_map(|(device, _)| enforcement::means_of(device, limiters)).max()
}

/// Whether these shares are parts of the instance.
fn is_sliced(shares: &[ShareState], instance: &ObservedInstance) -> bool {
    shares.iter().any(|share| slice_of(share.number).0 == to_i32(instance.start))
}

/// The shares that the agent serves, or those of the spec where another plugin does.
fn shares(input: &StatusInput<'_>, gpu: &ObservedGpu, earlier: Option<&GpuState>) -> Vec<ShareState> {
    if input.view.generation == 0 {
        // before the first view of this run the shares are those of the earlier one: without them the instances would count as exclusive
        return earlier.map(|known| unserved(input, gpu, known)).unwrap_or_default();
    }
    let state = |(device, share): (&Device, &Share)| {
        let before = earlier.and_then(|known| known.shares.iter().find(|s| s.number == share.number));
        let owner = match &input.state.owners {
            Some(owners) => owners.get(&device.id).cloned(),
            None => before.and_then(|s| s.device.owner.clone()),
        };
        let of_owner = |pid: u32| match (&owner, (input.origin)(pid).1) {
            (Some(owner), Origin::Pod(Some(pod))) => (&pod.namespace, &pod.pod) == (&owner.namespace, &owner.pod),
            _ => false,
        };
        // to find the origin of a process takes several files
        let here = |gi: Option<u32>| device.mig.as_ref().is_none_or(|mig| gi == Some(mig.gi));
        let of_owner = |p: &&Process| here(p.gi) && of_owner(p.pid);
        let sandbox = owner.as_ref().and_then(|owner| (input.sandbox)(device, owner));
        let clients = if owner.is_some() { gpu.clients.iter().filter(of_owner).count() } else { 0 };
        let size = input.sizes.get(&device.id).filter(|size| owner.as_ref() == Some(&size.owner));
        let (memory, refused_resize) = match size {
            Some(size) => (Some(size.memory.clone()), size.refused.clone()),
            // after a restart the sizes are known later than the owners: as the earlier run found them
            None => before
                .filter(|_| share.mode == SharingMode::Fraction)
                .map_or((None, None), |s| size_of(s, owner.as_ref())),
        };
        ShareState {
            number: share.number,
            memory,
            refused_resize,
            sandbox,
            device: processes::list_of_owner(
                input.processes,
                &gpu.uuid,
                &here,
                DeviceState {
                    resource: match input.view.advertiser {
                        Advertiser::Agent => device.advertised().then(|| device.resource.clone()),
                        Advertiser::NvidiaDevicePlugin => input.kubelet.elsewhere.get(&device.id).cloned(),
                    },
                    allocatable: input.kubelet.allocatable.contains(&device.id),
                    owner,
                    former_owner: input.state.former_owners.get(&device.id).cloned(),
                    unexplained_memory: unexplained(input, device.id.as_str()),
                    clients: to_i32(clients),
                    ..DeviceState::default()
                },
            ),
            bypass: input.bypasses.get(&device.id).cloned(),
        }
    };
    input.view.shares(&gpu.uuid).map(state).collect()
}

/// The shares of an earlier run, which no plugin lists yet.
fn unserved(input: &StatusInput<'_>, gpu: &ObservedGpu, known: &GpuState) -> Vec<ShareState> {
    let id = |number: i32| {
        let (start, slice) = slice_of(number);
        let instance = gpu.instances.iter().find(|i| to_i32(i.start) == start);
        if gpu.mig_enabled() {
            instance.and_then(ObservedInstance::uuid).map(|uuid| DeviceId::share(uuid, slice))
        } else {
            Some(DeviceId::share(&gpu.uuid, number))
        }
    };
    let state = |share: &ShareState| {
        let id = id(share.number)?;
        let owner = match &input.state.owners {
            Some(owners) => owners.get(&id).cloned(),
            None => share.device.owner.clone(),
        };
        // as the earlier run found it: without it the planner would count the size of the layout
        let (memory, refused_resize) = size_of(share, owner.as_ref());
        let device = DeviceState { owner, ..DeviceState::default() };
        Some(ShareState { number: share.number, device, memory, refused_resize, ..ShareState::default() })
    };
    let same_mode = gpu.mode.map(|mode| mode.current) == known.mig.map(|mig| mig.enabled);
    known.shares.iter().filter(|_| same_mode).filter_map(state).collect()
}

/// Memory of a share in an earlier status, and a size that its container refuses, if the share still has the same owner.
fn size_of(share: &ShareState, owner: Option<&DeviceOwner>) -> (Option<MemoryText>, Option<RefusedResize>) {
    let same = owner.is_some() && owner == share.device.owner.as_ref();
    if same { (share.memory.clone(), share.refused_resize.clone()) } else { (None, None) }
}

/// Memory for which a device is withdrawn.
fn unexplained(input: &StatusInput<'_>, id: &str) -> Option<MemoryText> {
    let mib = *input.state.quarantined.get(id)?;
    Some(MemoryText::from_mib(i64::try_from(mib).unwrap_or(i64::MAX)))
}

/// The instance is the one in an earlier status.
fn is_same(known: &InstanceState, instance: &ObservedInstance) -> bool {
    (known.start, known.gi, known.profile.as_str())
        == (to_i32(instance.start), to_i32(instance.gi), instance.profile.as_str())
}

/// Unattributed processes: in NVML's lists, or found by the check before a destroy, and not of the owner of their device.
fn holders(input: &StatusInput<'_>, gpu: &ObservedGpu, progress: &GpuProgress) -> Vec<Holder> {
    let instance = |gi: Option<u32>| gpu.instances.iter().find(|instance| Some(instance.gi) == gi);
    let listed = gpu.clients.iter().map(|process| (process.pid, instance(process.gi)));
    let blockers = progress.blockers.iter().filter(|pid| gpu.clients.iter().all(|process| process.pid != **pid));
    let all = listed.chain(blockers.map(|pid| (*pid, None)));
    let holder = |(pid, instance): (u32, Option<&ObservedInstance>)| {
        let (command, origin) = (input.origin)(pid);
        let start = instance.map(|instance| to_i32(instance.start));
        is_unattributed(input, gpu, instance, &origin).then(|| {
            let container = match origin {
                Origin::Pod(container) | Origin::Former(container, _) => container,
                Origin::Node | Origin::Ended => None,
            };
            Holder { pid: i64::from(pid), command, start, container }
        })
    };
    all.filter_map(holder).take(MAX_HOLDERS).collect()
}

/// The process uses a device that kubelet did not give to its pod.
fn is_unattributed(
    input: &StatusInput<'_>,
    gpu: &ObservedGpu,
    instance: Option<&ObservedInstance>,
    origin: &Origin,
) -> bool {
    let owners = input.state.owners.as_ref();
    let owner = owners.and_then(|owners| owner_of(owners, gpu, instance));
    let uuid = device_uuid(gpu, instance);
    if let (Some(uuid), Origin::Pod(Some(pod)), Some(owners)) = (uuid, origin, owners)
        && let Some(unattributed) = is_foreign_to_shares(input, (gpu, uuid), owners, pod)
    {
        return unattributed;
    }
    // NVML can list the process of a new pod before kubelet reports the pod, unless the device is cordoned
    let cordoned = || input.view.devices.iter().any(|known| Some(known.id.uuid()) == uuid && known.cordoned);
    match (origin, owner) {
        (Origin::Ended | Origin::Pod(None), _) => false,
        (Origin::Node | Origin::Former(..), _) => true,
        (Origin::Pod(Some(pod)), Some(owner)) => (&pod.namespace, &pod.pod) != (&owner.namespace, &owner.pod),
        (Origin::Pod(Some(_)), None) => owners.is_some() && cordoned(),
    }
}

/// Whether a pod's process is on a shared GPU or instance of which the pod has no share; `None`: it is not shared. While a share has no
/// owner the process may be of a new pod that kubelet does not report yet.
fn is_foreign_to_shares(
    input: &StatusInput<'_>,
    (gpu, uuid): (&ObservedGpu, &str),
    owners: &Owners,
    pod: &DeviceOwner,
) -> Option<bool> {
    let all = input.view.shares(&gpu.uuid).map(|(device, _)| device);
    let mut shares = all.filter(|device| device.id.uuid() == uuid).peekable();
    shares.peek()?;
    let mut here = owners.iter().filter(|(id, _)| id.uuid() == uuid);
    let has_share = here.any(|(_, owner)| (&owner.namespace, &owner.pod) == (&pod.namespace, &pod.pod));
    Some(!has_share && shares.all(|share| share.cordoned || owners.contains_key(&share.id)))
}

/// Devices that pods own, of all that exist: `5/14`.
fn devices(gpus: &[GpuState]) -> String {
    let all = gpus.iter().flat_map(GpuState::devices);
    let (used, total) = all.fold((0, 0), |(used, total), device| (used + i32::from(device.owner.is_some()), total + 1));
    format!("{used}/{total}")
}

/// `0: 1g.10gb@0 3g.40gb@4; 1: whole; 2: 4 shares; 3: 1g.10gb@0 × 4`.
fn layout(inventory: &Inventory, view: &DeviceView) -> String {
    let shares = |gpu: &ObservedGpu| view.shares(&gpu.uuid).count();
    let slices = |gpu: &ObservedGpu, start: u32| {
        let of = view.shares(&gpu.uuid).filter(|(_, share)| slice_of(share.number).0 == to_i32(start));
        Some(of.count()).filter(|n| *n > 0).map(|n| format!(" × {n}")).unwrap_or_default()
    };
    let line = |gpu: &ObservedGpu| {
        let layout = match (gpu.mig_enabled(), gpu.instances.as_slice()) {
            (false, _) if shares(gpu) > 0 => counted(shares(gpu), "share"),
            (false, _) => "whole".to_owned(),
            (true, []) => "empty".to_owned(),
            (true, many) => {
                let instance = |i: &ObservedInstance| format!("{}@{}{}", i.profile, i.start, slices(gpu, i.start));
                many.iter().map(instance).collect::<Vec<_>>().join(" ")
            }
        };
        format!("{}: {layout}", gpu.index)
    };
    inventory.gpus.iter().map(line).collect::<Vec<_>>().join("; ")
}
