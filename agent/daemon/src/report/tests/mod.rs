//! The status, as the operator reads it.

mod shares;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use gputenancy_crds::{
    Advertiser, AgentStep, Bypass, DeviceProcesses, GhostMemory, GpuError, GpuNodeStatus, GpuSpec, GpuState, Health,
    Holder, InstanceSpec, Isolation, Layout, MemoryScrub, MemoryText, NodeEnforcement, RefusedResize, Sandbox,
    ShareGroup, ShareState, Sharing, SharingMode, condition,
};
use gputenancy_nvml::{Engines, InstanceProfile, MigMode, Process};
use k8s_openapi::jiff::Timestamp;

use super::{
    StatusInput, conditions, status,
    status::{MAX_SIZE, stopped},
    without_inventory,
};
use crate::{
    attribution::Attributed,
    device::{Device, DeviceId, DeviceOwner, DeviceView, DriverLimits, KubeletView, Limiters, OtherLimiter, ShimState},
    enforcement::{OtherLimits, ShareSize, ShareSizes},
    gpu::{
        Inventory, NvmlError, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance,
        platform::UnsupportedPlatform, processes::process_origin::Origin,
    },
    partition::{GpuProgress, PartitionState, devices::devices},
};

/// Profiles of an A100-80: id, name, slices, size, starts.
const PROFILES: [(u32, &str, u32, u32, &[u32]); 7] = [
    (0, "7g.80gb", 7, 8, &[0]),
    (5, "4g.40gb", 4, 4, &[0]),
    (9, "3g.40gb", 3, 4, &[0, 4]),
    (14, "2g.20gb", 2, 2, &[0, 2, 4]),
    (15, "1g.20gb", 1, 2, &[0, 2, 4, 6]),
    (19, "1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (20, "1g.10gb+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
];

fn board() -> Arc<ObservedBoard> {
    let profile = |(id, name, slices, size, starts): (u32, &str, u32, u32, &[u32])| InstanceProfile {
        id,
        name: name.into(),
        slices,
        max: u32::try_from(starts.len()).unwrap(),
        multiprocessors: 14 * slices,
        memory_mib: 9_728 * u64::from(size),
        engines: Engines { copy: slices, decoder: slices / 2, encoder: 0, jpeg: 0, ofa: 0 },
        size,
        starts: starts.to_vec(),
    };
    Arc::new(ObservedBoard {
        name: "NVIDIA A100-SXM4-80GB".into(),
        memory_mib: 81_920,
        reserved_mib: Some(613),
        vgpu: None,
        before_volta: false,
        mode_needs_reset: true,
        profiles: PROFILES.map(profile).to_vec(),
    })
}

fn uuid(kind: &str, a: u32, b: u32) -> String {
    format!("{kind}-{a:08x}-0000-4000-8000-{b:012x}")
}

/// A GPU with this number of instances.
fn gpu(index: u32, instances: u32) -> ObservedGpu {
    let instance = |start| ObservedInstance {
        gi: 7 + start,
        profile: "1g.10gb".into(),
        start,
        size: 1,
        compute: vec![ObservedCompute { ci: 0, full_width: true, uuid: Some(uuid("MIG", index, start)) }],
    };
    ObservedGpu {
        uuid: uuid("GPU", index, 0),
        index,
        minor: index,
        pci_bus_id: format!("00000000:{index:02X}:00.0"),
        board: board(),
        mode: Some(MigMode { current: instances > 0, pending: instances > 0 }),
        instances: (0..instances).map(instance).collect(),
        clients: (0..instances)
            .map(|start| Process { pid: 100 + start, gi: Some(7 + start), ci: Some(0), memory: None })
            .collect(),
        ..ObservedGpu::default()
    }
}

fn state(gpus: Vec<ObservedGpu>) -> PartitionState {
    let progress = gpus.iter().map(|gpu| (gpu.uuid.clone(), GpuProgress::default())).collect();
    let driver_version = "580.95.05".into();
    let inventory = Inventory { driver_version, cuda_version: "13.0".into(), gpus, ..Inventory::default() };
    PartitionState { generation: Some(4), inventory: Some(inventory), gpus: progress, ..PartitionState::default() }
}

/// Every device is advertised, allocatable and owned by a pod.
fn views(state: &PartitionState) -> (DeviceView, KubeletView) {
    let gpus = &state.inventory.as_ref().unwrap().gpus;
    let offered = gpus.iter().flat_map(|gpu| {
        let instances = gpu.instances.iter().map(|instance| InstanceSpec {
            start: i32::try_from(instance.start).unwrap(),
            profile: instance.profile.clone(),
            resource: None,
            replicas: None,
        });
        let instances: Vec<InstanceSpec> = instances.collect();
        let mig = !instances.is_empty();
        devices(&GpuSpec { uuid: gpu.uuid.clone(), mig, instances, ..GpuSpec::default() }, gpu)
    });
    let view = DeviceView { generation: 1, devices: offered.collect(), ..DeviceView::default() };
    let owner =
        DeviceOwner { namespace: "team-a".into(), pod: "trainer-69d7dd4fb8-kp8n8".into(), container: "main".into() };
    let kubelet = KubeletView {
        owners: view.devices.iter().map(|device| (device.id.clone(), owner.clone())).collect(),
        allocatable: view.devices.iter().map(|device| device.id.clone()).collect(),
        plugin_ready: true,
        answered: true,
        ..KubeletView::default()
    };
    (view, kubelet)
}

/// The state of a scan after kubelet's report.
fn with_owners(state: &PartitionState, kubelet: &KubeletView) -> PartitionState {
    PartitionState { owners: kubelet.known_owners().cloned(), ..state.clone() }
}

/// 103 runs on the node; the others in the container that has the device.
fn origin(pid: u32) -> (String, Origin) {
    let origin = if pid == 103 { Origin::Node } else { of_pod("trainer-69d7dd4fb8-kp8n8") };
    ("python3".to_owned(), origin)
}

fn of_pod(pod: &str) -> Origin {
    Origin::Pod(Some(DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }))
}

/// Input without an earlier run.
fn input<'a>(state: &'a PartitionState, view: &'a DeviceView, kubelet: &'a KubeletView) -> StatusInput<'a> {
    static NOTHING: LazyLock<GpuNodeStatus> = LazyLock::new(GpuNodeStatus::default);
    static NO_LIMITS: LazyLock<OtherLimits> = LazyLock::new(OtherLimits::default);
    static NO_PROCESSES: LazyLock<Attributed> = LazyLock::new(Attributed::default);
    StatusInput {
        state,
        view,
        mps: const { &BTreeMap::new() },
        processes: &NO_PROCESSES,
        sandbox: &|_, _| None,
        bypasses: const { &BTreeMap::new() },
        sizes: const { &BTreeMap::new() },
        other_limits: &NO_LIMITS,
        kubelet,
        nvml_call: None,
        origin: &origin,
        boot_id: "",
        simulated: false,
        old: &[],
        earlier: &NOTHING,
    }
}

fn made(state: &PartitionState, nvml_call: Option<(&'static str, Duration)>) -> GpuNodeStatus {
    let (view, kubelet) = views(state);
    let (state, boot_id) = (with_owners(state, &kubelet), "4e7d8fe8-4d85-4698-ae23-5b8810c16c90");
    status(&StatusInput { nvml_call, boot_id, ..input(&state, &view, &kubelet) }, Timestamp::UNIX_EPOCH)
}

fn ready(status: &GpuNodeStatus) -> (String, String) {
    let ready = status.conditions.iter().find(|found| found.type_ == condition::READY).unwrap();
    (ready.reason.clone(), ready.message.clone())
}

#[test]
fn status_of_eight_gpus_with_seven_instances_fits_into_sixteen_kib() {
    let status = made(&state((0..8).map(|index| gpu(index, 7)).collect()), None);
    let size = serde_json::to_string(&status).unwrap().len();
    assert_eq!(status.boards.len(), 1);
    assert!(size <= MAX_SIZE, "{size} bytes");
}

#[test]
fn status_of_a_small_node() {
    insta::assert_yaml_snapshot!(made(&state(vec![gpu(0, 4), gpu(1, 0)]), None));
}

#[test]
fn unattributed_process_is_listed_with_its_container() {
    let state = state(vec![gpu(0, 4)]);
    let named = |view: &DeviceView, kubelet: &KubeletView| -> Vec<(i64, Option<i32>, Option<String>)> {
        let origin = |pid| if pid == 102 { ("smi".into(), of_pod("monitor-x7k2p")) } else { origin(pid) };
        let state = with_owners(&state, kubelet);
        let status = status(&StatusInput { origin: &origin, ..input(&state, view, kubelet) }, Timestamp::UNIX_EPOCH);
        let holders = status.gpus[0].holders.iter();
        holders.map(|h| (h.pid, h.start, h.container.as_ref().map(|c| c.pod.clone()))).collect()
    };
    let (mut view, mut kubelet) = views(&state);
    let (monitor, shell) = ((102, Some(2), Some("monitor-x7k2p".to_owned())), (103, Some(3), None));
    assert_eq!(named(&view, &kubelet), [monitor.clone(), shell.clone()]);
    // without owners only processes of the node are certainly unattributed
    kubelet.owners.clear();
    assert_eq!(named(&view, &kubelet), std::slice::from_ref(&shell));
    // but a cordoned device cannot have been allocated
    view.devices[2].cordoned = true;
    assert_eq!(named(&view, &kubelet), [monitor, shell]);
}

#[test]
fn ready_condition_names_the_most_severe_problem() {
    let mut state = state(vec![gpu(0, 1)]);
    assert_eq!(ready(&made(&state, None)).1, "1 of 1 GPU managed, with the layout of the spec");
    let uuid = uuid("GPU", 0, 0);
    let progress = |step, error| GpuProgress { step, error, waiting: "GPU 0: waits".into(), ..GpuProgress::default() };
    state.gpus.insert(uuid.clone(), progress(AgentStep::WaitingForClients, None));
    assert_eq!(ready(&made(&state, None)), ("WaitingForClients".into(), "GPU 0: waits".into()));
    state.absent = vec!["GPU-z".into()];
    assert_eq!(ready(&made(&state, None)).0, "GpuMissing");
    state.inventory.as_mut().unwrap().gpus[0].health = Health::Unhealthy;
    assert_eq!(ready(&made(&state, None)).0, "GpuUnhealthy");
    let error = GpuError {
        call: "nvmlDeviceCreateGpuInstanceWithPlacement".into(),
        code: 23,
        message: "creating an instance of profile id 9 at 4:4: Insufficient Resources".into(),
        generation: 4,
    };
    state.gpus.insert(uuid, progress(AgentStep::Failed, Some(error)));
    let (reason, message) = ready(&made(&state, None));
    assert_eq!(reason, "PartitionFailed");
    assert!(message.ends_with("Insufficient Resources (nvmlDeviceCreateGpuInstanceWithPlacement, 23)"), "{message}");
    state.nvml_error = Some(NvmlError::Ended);
    assert_eq!(ready(&made(&state, None)).0, "NvmlFailed");
    let hangs = Some(("nvmlGpuInstanceDestroy", Duration::from_secs(11)));
    let (reason, message) = ready(&made(&state, hangs));
    assert_eq!(reason, "NvmlTimeout");
    assert!(message.starts_with("nvmlGpuInstanceDestroy has not returned"), "{message}");
}

#[test]
fn hanging_call_does_not_change_the_status_with_every_scan() {
    let state = state(vec![gpu(0, 1)]);
    let at = |seconds| made(&state, Some(("nvmlGpuInstanceDestroy", Duration::from_secs(seconds))));
    assert_eq!(at(20), at(40));
}

#[test]
fn observed_generation_before_the_first_spec_is_minus_one() {
    let mut state = state(vec![gpu(0, 0)]);
    state.generation = None;
    assert_eq!(made(&state, None).observed_generation, Some(-1));
}

#[test]
fn status_before_the_driver_starts_keeps_gpus_as_unhealthy() {
    let earlier = made(&state(vec![gpu(0, 4)]), None);
    let nvml_error = Some(NvmlError::NoLibrary("no libnvidia-ml.so.1 under /run/nvidia/driver".into()));
    let (state, view) = (PartitionState { nvml_error, ..PartitionState::default() }, DeviceView::default());
    let kubelet = KubeletView::default();
    let input = StatusInput { old: &earlier.conditions, earlier: &earlier, ..input(&state, &view, &kubelet) };
    let now = without_inventory(&input, Timestamp::UNIX_EPOCH);
    assert_eq!(ready(&now).0, "DriverNotFound");
    assert_eq!(now.layout, earlier.layout);
    assert!(now.gpus.iter().all(|gpu| gpu.health == Health::Unhealthy));
    assert!(now.gpus[0].devices().all(|device| !device.allocatable && device.owner.is_some()));
}

#[test]
fn owners_of_an_earlier_run_count_until_kubelet_reports() {
    let state = state(vec![gpu(0, 4), gpu(1, 0)]);
    let (view, mut kubelet) = views(&state);
    let mut before = made(&state, None);
    before.gpus[0].instances[2].gi = 40;
    let owners = |kubelet: &KubeletView| -> Vec<bool> {
        let state = with_owners(&state, kubelet);
        let input = StatusInput { earlier: &before, ..input(&state, &view, kubelet) };
        let gpus = status(&input, Timestamp::UNIX_EPOCH).gpus;
        let devices = gpus.iter().flat_map(GpuState::devices);
        devices.map(|device| device.owner.is_some()).collect()
    };
    (kubelet.answered, kubelet.owners) = (false, BTreeMap::new());
    assert_eq!(owners(&kubelet), [true, true, false, true, true], "an instance that was created again has no owner");
    kubelet.answered = true;
    assert_eq!(owners(&kubelet), [false; 5], "kubelet's report counts");
}

#[test]
fn owner_that_has_ended_stays_until_a_scan_after_it() {
    let mut state = state(vec![gpu(0, 4)]);
    let (view, mut kubelet) = views(&state);
    state.owners = kubelet.known_owners().cloned();
    kubelet.owners.clear();
    let observed = |state: &PartitionState| -> Vec<(bool, i32)> {
        let input = input(state, &view, &kubelet);
        let gpu = status(&input, Timestamp::UNIX_EPOCH).gpus.swap_remove(0);
        gpu.devices().map(|device| (device.owner.is_some(), device.clients)).collect()
    };
    assert_eq!(observed(&state), [(true, 1); 4], "kubelet reports no pod, but the scan is older");
    state.owners = kubelet.known_owners().cloned();
    assert_eq!(observed(&state), [(false, 1); 4], "the scan is newer");
    state.inventory.as_mut().unwrap().gpus[0].clients.clear();
    assert_eq!(observed(&state), [(false, 0); 4]);
}

#[test]
fn stopped_agent_leaves_unknown_conditions_and_the_gpus_as_seen() {
    let time = |second| Timestamp::from_second(second).unwrap();
    let ready = serde_json::json!({
        "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": time(1),
    });
    let gpu = serde_json::json!({"uuid": "GPU-a", "index": 0, "board": 0, "step": "Steady"});
    let latest: GpuNodeStatus =
        serde_json::from_value(serde_json::json!({"observedGeneration": 7, "conditions": [ready], "gpus": [gpu]}))
            .unwrap();
    let status = stopped(latest.clone(), time(9));
    assert_eq!((&status.gpus, status.observed_generation), (&latest.gpus, Some(7)));
    let types: Vec<&str> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["Ready", "Reconciling", "Stalled", "NvmlReady", "PluginReady"]);
    for c in &status.conditions {
        assert_eq!((c.status.as_str(), c.reason.as_str()), ("Unknown", "AgentStopped"));
        assert_eq!((c.last_transition_time.0, c.observed_generation), (time(9), Some(7)));
    }
    assert!(status.conditions[0].message.contains("DaemonSet gputenancy-agent"));
    let again = stopped(status.clone(), time(20));
    assert_eq!(again, status, "nothing to write twice");
}

/// A GPU in two shares, with processes of two pods, of a third pod and of the node.
fn shared() -> (PartitionState, DeviceView, KubeletView) {
    let clients = [100, 101, 102, 103].map(|pid| Process { pid, gi: None, ci: None, memory: None }).to_vec();
    let gpu = ObservedGpu { clients, ..gpu(0, 0) };
    let group = ShareGroup { resource: "nvidia.com/gpu.shared".into(), numbers: vec![0, 1], ..ShareGroup::default() };
    let sharing = Some(Sharing { shares: vec![group], ..Sharing::default() });
    let spec = GpuSpec { uuid: gpu.uuid.clone(), sharing, ..GpuSpec::default() };
    let view = DeviceView { generation: 1, devices: devices(&spec, &gpu), ..DeviceView::default() };
    let owner = |pod: &str| DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() };
    let ids: Vec<_> = view.devices.iter().map(|device| device.id.clone()).collect();
    let kubelet = KubeletView {
        owners: ids.iter().cloned().zip(["one", "two"].map(owner)).collect(),
        allocatable: ids.into_iter().collect(),
        plugin_ready: true,
        answered: true,
        ..KubeletView::default()
    };
    (with_owners(&state(vec![gpu]), &kubelet), view, kubelet)
}

#[test]
fn share_counts_the_processes_of_its_own_pod_and_others_are_unattributed() {
    let (state, view, kubelet) = shared();
    let origin = |pid: u32| match pid {
        100 => ("a".into(), of_pod("one")),
        101 => ("b".into(), of_pod("two")),
        102 => ("c".into(), of_pod("three")),
        _ => ("d".into(), Origin::Node),
    };
    let status = status(&StatusInput { origin: &origin, ..input(&state, &view, &kubelet) }, Timestamp::UNIX_EPOCH);
    let gpu = &status.gpus[0];
    assert!(gpu.whole.is_none());
    let shares: Vec<(i32, bool, i32)> =
        gpu.shares.iter().map(|s| (s.number, s.device.allocatable, s.device.clients)).collect();
    assert_eq!(shares, [(0, true, 1), (1, true, 1)]);
    let unattributed: Vec<&str> = gpu.holders.iter().map(|h| h.command.as_str()).collect();
    assert_eq!(unattributed, ["c", "d"]);
    assert_eq!((status.devices.as_deref(), status.layout.as_deref()), (Some("2/2"), Some("0: 2 shares")));
}

#[test]
fn time_slices_of_an_instance_have_owners_and_clients_of_their_own_and_the_instance_is_no_device() {
    let clients = [100, 101, 102].map(|pid| Process { pid, gi: Some(7), ci: Some(0), memory: None }).to_vec();
    let gpu = ObservedGpu { clients, ..gpu(0, 2) };
    let instances = [(0, Some(2)), (1, None)].map(|(start, replicas)| InstanceSpec {
        start,
        profile: "1g.10gb".into(),
        resource: replicas.map(|_| "nvidia.com/mig-1g.10gb.shared".into()),
        replicas,
    });
    let spec = GpuSpec { uuid: gpu.uuid.clone(), mig: true, instances: instances.to_vec(), ..GpuSpec::default() };
    let view = DeviceView { generation: 1, devices: devices(&spec, &gpu), ..DeviceView::default() };
    let owner = |pod: &str| DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() };
    let slices = view.devices.iter().filter(|d| d.share.is_some()).map(|d| d.id.clone());
    let kubelet = KubeletView {
        owners: slices.zip(["one", "two"].map(owner)).collect(),
        allocatable: view.devices.iter().map(|d| d.id.clone()).collect(),
        plugin_ready: true,
        answered: true,
        ..KubeletView::default()
    };
    let state = with_owners(&state(vec![gpu]), &kubelet);
    let origin = |pid: u32| match pid {
        100 => ("a".into(), of_pod("one")),
        101 => ("b".into(), of_pod("two")),
        _ => ("c".into(), of_pod("three")),
    };
    let status = status(&StatusInput { origin: &origin, ..input(&state, &view, &kubelet) }, Timestamp::UNIX_EPOCH);
    let gpu = &status.gpus[0];
    let exclusive: Vec<bool> = gpu.instances.iter().map(|i| i.device.is_some()).collect();
    assert_eq!(exclusive, [false, true]);
    let of = |s: &ShareState| (s.number, s.device.owner.as_ref().map(|o| o.pod.clone()), s.device.clients);
    let shares: Vec<_> = gpu.shares.iter().map(of).collect();
    assert_eq!(shares, [(0, Some("one".into()), 1), (16, Some("two".into()), 1)]);
    let unattributed: Vec<_> = gpu.holders.iter().map(|h| (h.command.as_str(), h.start)).collect();
    assert_eq!(unattributed, [("c", Some(0))]);
    assert_eq!(
        (status.devices.as_deref(), status.layout.as_deref()),
        (Some("2/3"), Some("0: 1g.10gb@0 × 2 1g.10gb@1"))
    );

    // an agent that has just started shows the time-slices of the earlier run, so that the instance does not look exclusive
    let (unset, earlier) = (DeviceView::default(), status);
    let restarted = StatusInput { origin: &origin, earlier: &earlier, ..input(&state, &unset, &kubelet) };
    let restarted = super::status(&restarted, Timestamp::UNIX_EPOCH);
    let gpu = &restarted.gpus[0];
    assert_eq!(gpu.instances.iter().map(|i| i.device.is_some()).collect::<Vec<_>>(), [false, true]);
    let owners: Vec<_> = gpu.shares.iter().filter_map(|s| Some(s.device.owner.as_ref()?.pod.as_str())).collect();
    assert_eq!(owners, ["one", "two"]);
    assert!(gpu.shares.iter().all(|s| s.device.resource.is_none() && !s.device.allocatable));
}

#[test]
fn shared_gpu_that_a_pod_still_has_as_a_whole_says_so() {
    let (mut state, view, kubelet) = shared();
    let uuid = state.inventory.as_ref().unwrap().gpus[0].uuid.clone();
    let owner = kubelet.owners.values().next().unwrap().clone();
    state.owners.as_mut().unwrap().insert(DeviceId::new(uuid), owner);
    let status = status(&input(&state, &view, &kubelet), Timestamp::UNIX_EPOCH);
    assert!(status.gpus[0].whole.as_ref().is_some_and(|whole| whole.owner.is_some() && whole.resource.is_none()));
}

#[test]
fn other_plugin_that_advertises_nothing_is_down() {
    let state = state(vec![gpu(0, 4)]);
    let (_, kubelet) = views(&state);
    let view = DeviceView { generation: 1, advertiser: Advertiser::NvidiaDevicePlugin, ..DeviceView::default() };
    let reason = |kubelet: &KubeletView, state: &PartitionState| {
        ready(&status(&input(state, &view, kubelet), Timestamp::UNIX_EPOCH)).0
    };
    assert_eq!(reason(&kubelet, &state), "Ready");
    let down = KubeletView { allocatable: BTreeSet::new(), nothing_listed: true, ..kubelet };
    assert_eq!(reason(&down, &state), "DevicePluginDown");
    // a GPU without devices needs no plugin
    let mut empty = state.clone();
    let mut bare = gpu(0, 4);
    bare.instances.clear();
    empty.inventory.as_mut().unwrap().gpus = vec![bare];
    assert_eq!(reason(&down, &empty), "Ready");
}

#[test]
fn machine_that_is_not_supported_is_named() {
    let nvml_error = Some(NvmlError::Platform(UnsupportedPlatform::Tegra));
    let (state, view) = (PartitionState { nvml_error, ..PartitionState::default() }, DeviceView::default());
    let now = without_inventory(&input(&state, &view, &KubeletView::default()), Timestamp::UNIX_EPOCH);
    let (reason, message) = ready(&now);
    assert!(reason == "PlatformNotSupported" && message.contains("Jetson"), "{reason}: {message}");
}

/// Next to a driver without memory limits.
fn limiters(shim: ShimState) -> Limiters {
    Limiters { shim, driver: DriverLimits::NotSupported }
}

#[test]
fn status_says_what_limits_the_memory_of_shares_and_nothing_of_other_gpus() {
    let (state, view, kubelet) = shared();
    let means = |kubelet: &KubeletView, view: &DeviceView| {
        let status = super::status(&input(&state, view, kubelet), Timestamp::UNIX_EPOCH);
        status.gpus[0].enforcement
    };
    assert_eq!(means(&kubelet, &view), Some(Isolation::None));
    let with_shim = KubeletView { limiters: limiters(ShimState::Served), ..kubelet };
    assert_eq!(means(&with_shim, &view), Some(Isolation::Software));
    let condition = |kubelet: &KubeletView| {
        let found = conditions::updates(&input(&state, &view, kubelet));
        found.into_iter().find(|c| c.type_ == conditions::MEMORY_LIMITED).map(|c| c.status)
    };
    let failed = KubeletView { limiters: limiters(ShimState::NotInstalled), ..with_shim.clone() };
    assert_eq!([&with_shim, &failed].map(condition), [Some(Some(true)), Some(Some(false))]);
    assert_eq!(
        condition(&KubeletView { limiters: limiters(ShimState::Off), ..with_shim.clone() }),
        None,
        "switched off"
    );
    let other = KubeletView { limiters: limiters(ShimState::Conflict(OtherLimiter::Folder)), ..with_shim.clone() };
    assert_eq!((condition(&other), means(&other, &view)), (Some(Some(false)), Some(Isolation::None)));
    let driver = Limiters { shim: ShimState::NotInstalled, driver: DriverLimits::Supported };
    let by_driver = KubeletView { limiters: driver, ..with_shim.clone() };
    assert_eq!((condition(&by_driver), means(&by_driver, &view)), (Some(Some(true)), Some(Isolation::Driver)));
    let theirs = DeviceView { advertiser: Advertiser::NvidiaDevicePlugin, ..view };
    assert_eq!(means(&with_shim, &theirs), Some(Isolation::None));
    assert_eq!(means(&with_shim, &DeviceView::default()), None);
}

#[test]
fn status_keeps_what_an_earlier_run_could_enforce_until_it_is_known() {
    let (state, view, kubelet) = shared();
    let earlier = GpuNodeStatus {
        enforcement: Some(NodeEnforcement { fraction: Isolation::Software, ..NodeEnforcement::default() }),
        ..GpuNodeStatus::default()
    };
    let of = |shim: ShimState| {
        let kubelet = KubeletView { limiters: limiters(shim), ..kubelet.clone() };
        let input = StatusInput { earlier: &earlier, ..input(&state, &view, &kubelet) };
        super::status(&input, Timestamp::UNIX_EPOCH).enforcement.unwrap()
    };
    assert_eq!(of(ShimState::Unknown), earlier.enforcement.clone().unwrap());
    assert_eq!((of(ShimState::Off).fraction, of(ShimState::Off).mps), (Isolation::None, Isolation::Server));
    assert_eq!(of(ShimState::Served).time_slice, Isolation::Software);
}

#[test]
fn limits_of_another_product_are_in_the_status_while_it_is_on_the_node() {
    let (state, view, kubelet) = shared();
    let mut other_limits = OtherLimits::default();
    for number in 0..20 {
        let name = format!("trainer-{number:02}-{}", "x".repeat(40));
        let annotations = serde_json::json!({"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,3000,30:;"});
        let metadata = serde_json::json!({"namespace": "team-a", "name": name, "annotations": annotations});
        let pod = serde_json::json!({"metadata": metadata, "spec": {"containers": []}});
        other_limits.apply(&serde_json::from_value(pod).unwrap());
    }
    let listed = |state: &PartitionState, view: &DeviceView, kubelet: &KubeletView, other: Option<OtherLimiter>| {
        let kubelet = KubeletView { limiters: limiters(ShimState::Off), other_limiter: other, ..kubelet.clone() };
        let status =
            status(&StatusInput { other_limits: &other_limits, ..input(state, view, &kubelet) }, Timestamp::UNIX_EPOCH);
        status.enforcement.unwrap().other_limits
    };
    assert!(listed(&state, &view, &kubelet, None).is_empty());
    let found = listed(&state, &view, &kubelet, Some(OtherLimiter::Folder));
    assert_eq!(found.len(), 16);
    let first = &found[0];
    assert!(first.pod.starts_with("trainer-00") && first.compute == Some(30) && first.gpu.as_deref() == Some("GPU-a"));
    assert_eq!(first.memory.as_ref().unwrap().to_string(), "3000Mi");
    let large = self::state((0..8).map(|index| gpu(index, 7)).collect());
    let (view, kubelet) = views(&large);
    let large = with_owners(&large, &kubelet);
    let found = listed(&large, &view, &kubelet, Some(OtherLimiter::Folder));
    assert!(found.is_empty(), "a status that is too large without them has none");
}

#[test]
fn missing_vgpu_licence_is_a_condition_of_a_virtual_machine_only() {
    let condition = |licensed: [Option<bool>; 2]| {
        let gpus = (0..).zip(licensed).map(|(index, licensed)| ObservedGpu { licensed, ..gpu(index, 0) }).collect();
        let state = state(gpus);
        let (view, kubelet) = views(&state);
        let found = conditions::updates(&input(&state, &view, &kubelet));
        found.into_iter().find(|c| c.type_ == conditions::VGPU_LICENSED).map(|c| (c.status, c.message))
    };
    assert_eq!(condition([None, None]), None);
    assert_eq!(condition([Some(true), Some(true)]).unwrap().0, Some(true));
    let (status, message) = condition([Some(true), Some(false)]).unwrap();
    assert_eq!(status, Some(false));
    assert!(message.starts_with("no vGPU licence: gpu 1: "), "{message}");
}

#[test]
fn registry_key_that_disables_scrubbing_is_a_condition_and_a_vgpu_is_unknown() {
    let gpu = |vgpu| {
        let board = ObservedBoard { vgpu, ..ObservedBoard::default() };
        ObservedGpu { uuid: "GPU-0".into(), board: board.into(), ..ObservedGpu::default() }
    };
    let of = |gpus: Vec<ObservedGpu>, memory_scrub| {
        let mut state = state(gpus);
        state.inventory.as_mut().unwrap().memory_scrub = memory_scrub;
        let (view, kubelet) = views(&state);
        let status = super::status(&input(&state, &view, &kubelet), Timestamp::UNIX_EPOCH);
        let condition = status.conditions.into_iter().find(|c| c.type_ == "MemoryScrubbed");
        (status.memory_scrub.unwrap(), condition.map(|c| (c.status, c.reason)))
    };
    let expected = |scrub, status: &str, reason: &str| (scrub, Some((status.to_owned(), reason.to_owned())));
    assert_eq!(of(vec![gpu(None)], MemoryScrub::On), expected(MemoryScrub::On, "True", "Scrubbed"));
    assert_eq!(of(vec![gpu(None)], MemoryScrub::Off), expected(MemoryScrub::Off, "False", "ScrubDisabled"));
    let unknown = || expected(MemoryScrub::Unknown, "Unknown", "ScrubUnknown");
    assert_eq!(of(vec![gpu(None)], MemoryScrub::Unknown), unknown());
    let guest = || gpu(Some(gputenancy_nvml::Vgpu::Guest));
    assert_eq!([of(vec![guest()], MemoryScrub::On), of(vec![guest()], MemoryScrub::Off)], [unknown(), unknown()]);
    assert_eq!(of(Vec::new(), MemoryScrub::Off).1, None);
}
