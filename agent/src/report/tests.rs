//! The status, as the operator and a person with kubectl read it.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use gputenancy_crds::{AgentStep, GpuError, GpuNodeStatus, Health, condition};
use gputenancy_nvml::{Engines, InstanceProfile, MigMode, Process};
use k8s_openapi::jiff::Timestamp;

use super::{Sources, status, status::LARGEST, without_inventory};
use crate::{
    carve::{Carved, GpuProgress, offer::devices},
    device::{DeviceOwner, DeviceView, KubeletView},
    gpu::{Inventory, SeenBoard, SeenCompute, SeenGpu, SeenInstance, Trouble, origin::Origin},
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

fn board() -> Arc<SeenBoard> {
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
    Arc::new(SeenBoard {
        name: "NVIDIA A100-SXM4-80GB".into(),
        memory_mib: 81_920,
        reserved_mib: Some(613),
        mode_needs_reset: true,
        profiles: PROFILES.map(profile).to_vec(),
    })
}

fn uuid(kind: &str, a: u32, b: u32) -> String {
    format!("{kind}-{a:08x}-0000-4000-8000-{b:012x}")
}

/// A GPU cut into as many instances as there can be.
fn gpu(index: u32, instances: u32) -> SeenGpu {
    let instance = |start| SeenInstance {
        gi: 7 + start,
        profile: "1g.10gb".into(),
        start,
        size: 1,
        compute: vec![SeenCompute { ci: 0, full_width: true, uuid: Some(uuid("MIG", index, start)) }],
    };
    SeenGpu {
        uuid: uuid("GPU", index, 0),
        index,
        minor: index,
        pci_bus_id: format!("00000000:{index:02X}:00.0"),
        board: board(),
        mode: Some(MigMode { current: instances > 0, pending: instances > 0 }),
        instances: (0..instances).map(instance).collect(),
        clients: (0..instances)
            .map(|start| Process { pid: 100 + start, gi: Some(7 + start), ci: Some(0), memory_mib: None })
            .collect(),
        ..SeenGpu::default()
    }
}

fn carved(gpus: Vec<SeenGpu>) -> Carved {
    let progress = gpus.iter().map(|gpu| (gpu.uuid.clone(), GpuProgress::default())).collect();
    let driver_version = "580.95.05".into();
    let inventory = Inventory { driver_version, cuda_version: "13.0".into(), gpus, ..Inventory::default() };
    Carved { generation: Some(4), inventory: Some(inventory), gpus: progress, ..Carved::default() }
}

/// Everything that exists is offered, allocatable and owned by a pod.
fn views(carved: &Carved) -> (DeviceView, KubeletView) {
    let gpus = &carved.inventory.as_ref().unwrap().gpus;
    let offered = gpus.iter().flat_map(|gpu| {
        let instances = gpu.instances.iter().map(|seen| (i32::try_from(seen.start).unwrap(), seen.profile.as_str()));
        let instances: Vec<(i32, &str)> = instances.collect();
        let mut spec = crate::carve::tests::model::spec(!instances.is_empty(), &instances);
        spec.uuid.clone_from(&gpu.uuid);
        devices(&spec, gpu)
    });
    let view = DeviceView { generation: 1, devices: offered.collect(), ..DeviceView::default() };
    let owner =
        DeviceOwner { namespace: "team-a".into(), pod: "trainer-69d7dd4fb8-kp8n8".into(), container: "main".into() };
    let kubelet = KubeletView {
        owners: view.devices.iter().map(|device| (device.id.clone(), owner.clone())).collect(),
        allocatable: view.devices.iter().map(|device| device.id.clone()).collect(),
        plugin_ready: true,
        told: true,
        ..KubeletView::default()
    };
    (view, kubelet)
}

/// What a look that came after kubelet's word makes of it.
fn told(carved: &Carved, kubelet: &KubeletView) -> Carved {
    Carved { owners: kubelet.known_owners().cloned(), ..carved.clone() }
}

/// 103 runs on the node; the others in the container that has the device.
fn origin(pid: u32) -> (String, Origin) {
    let origin = if pid == 103 { Origin::Node } else { of_pod("trainer-69d7dd4fb8-kp8n8") };
    ("python3".to_owned(), origin)
}

fn of_pod(pod: &str) -> Origin {
    Origin::Pod(Some(DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }))
}

/// What a status is made of on a node where nothing else is known; of an earlier run nothing is.
fn sources<'a>(carved: &'a Carved, view: &'a DeviceView, kubelet: &'a KubeletView) -> Sources<'a> {
    static NOTHING: LazyLock<GpuNodeStatus> = LazyLock::new(GpuNodeStatus::default);
    Sources {
        carved,
        view,
        kubelet,
        under_way: None,
        origin: &origin,
        boot_id: "",
        simulated: false,
        old: &[],
        earlier: &NOTHING,
    }
}

fn made(carved: &Carved, under_way: Option<(&'static str, Duration)>) -> GpuNodeStatus {
    let (view, kubelet) = views(carved);
    let (carved, boot_id) = (told(carved, &kubelet), "4e7d8fe8-4d85-4698-ae23-5b8810c16c90");
    status(&Sources { under_way, boot_id, ..sources(&carved, &view, &kubelet) }, Timestamp::UNIX_EPOCH)
}

fn ready(status: &GpuNodeStatus) -> (String, String) {
    let ready = status.conditions.iter().find(|found| found.type_ == condition::READY).unwrap();
    (ready.reason.clone(), ready.message.clone())
}

#[test]
fn eight_gpus_cut_into_sevenths_fit_into_sixteen_kib() {
    let status = made(&carved((0..8).map(|index| gpu(index, 7)).collect()), None);
    let size = serde_json::to_string(&status).unwrap().len();
    assert_eq!(status.boards.len(), 1);
    assert!(size <= LARGEST, "{size} bytes");
}

#[test]
fn the_status_of_a_small_node() {
    insta::assert_yaml_snapshot!(made(&carved(vec![gpu(0, 4), gpu(1, 0)]), None));
}

#[test]
fn a_process_that_has_no_right_to_its_device_is_named_with_its_container() {
    let carved = carved(vec![gpu(0, 4)]);
    let named = |view: &DeviceView, kubelet: &KubeletView| -> Vec<(i64, Option<i32>, Option<String>)> {
        let origin = |pid| if pid == 102 { ("smi".into(), of_pod("monitor-x7k2p")) } else { origin(pid) };
        let carved = told(&carved, kubelet);
        let status = status(&Sources { origin: &origin, ..sources(&carved, view, kubelet) }, Timestamp::UNIX_EPOCH);
        let holders = status.gpus[0].holders.iter();
        holders.map(|h| (h.pid, h.start, h.container.as_ref().map(|c| c.pod.clone()))).collect()
    };
    let (mut view, mut kubelet) = views(&carved);
    let (monitor, shell) = ((102, Some(2), Some("monitor-x7k2p".to_owned())), (103, Some(3), None));
    assert_eq!(named(&view, &kubelet), [monitor.clone(), shell.clone()]);
    // Before kubelet tells whose the devices are, only what runs on the node itself is certainly nobody's ...
    kubelet.owners.clear();
    assert_eq!(named(&view, &kubelet), std::slice::from_ref(&shell));
    // ... but nobody can have been given a device that is held.
    view.devices[2].held = true;
    assert_eq!(named(&view, &kubelet), [monitor, shell]);
}

#[test]
fn the_ready_condition_says_what_is_wrong_first() {
    let mut carved = carved(vec![gpu(0, 1)]);
    assert_eq!(ready(&made(&carved, None)).1, "1 of 1 GPU(s) managed and as wanted");
    let uuid = uuid("GPU", 0, 0);
    let progress = |step, error| GpuProgress { step, error, waiting: "GPU 0: waits".into(), ..GpuProgress::default() };
    carved.gpus.insert(uuid.clone(), progress(AgentStep::WaitingForClients, None));
    assert_eq!(ready(&made(&carved, None)), ("WaitingForClients".into(), "GPU 0: waits".into()));
    carved.absent = vec!["GPU-z".into()];
    assert_eq!(ready(&made(&carved, None)).0, "GpuMissing");
    carved.inventory.as_mut().unwrap().gpus[0].health = Health::Unhealthy;
    assert_eq!(ready(&made(&carved, None)).0, "GpuUnhealthy");
    let error = GpuError {
        call: "nvmlDeviceCreateGpuInstanceWithPlacement".into(),
        code: 23,
        message: "creating an instance of profile id 9 at 4:4: Insufficient Resources".into(),
        generation: 4,
    };
    carved.gpus.insert(uuid, progress(AgentStep::Failed, Some(error)));
    let (reason, message) = ready(&made(&carved, None));
    assert_eq!(reason, "CarveFailed");
    assert!(message.ends_with("Insufficient Resources (nvmlDeviceCreateGpuInstanceWithPlacement, 23)"), "{message}");
    carved.trouble = Some(Trouble::Ended);
    assert_eq!(ready(&made(&carved, None)).0, "NvmlFailed");
    let hangs = Some(("nvmlGpuInstanceDestroy", Duration::from_secs(11)));
    let (reason, message) = ready(&made(&carved, hangs));
    assert_eq!(reason, "NvmlHangs");
    assert!(message.starts_with("nvmlGpuInstanceDestroy has not returned"), "{message}");
}

#[test]
fn a_hang_does_not_change_the_status_at_every_look() {
    let carved = carved(vec![gpu(0, 1)]);
    let at = |seconds| made(&carved, Some(("nvmlGpuInstanceDestroy", Duration::from_secs(seconds))));
    assert_eq!(at(20), at(40));
}

#[test]
fn before_the_first_spec_the_generation_is_minus_one() {
    let mut carved = carved(vec![gpu(0, 0)]);
    carved.generation = None;
    assert_eq!(made(&carved, None).observed_generation, Some(-1));
}

#[test]
fn a_driver_that_is_not_up_yet_takes_gpus_out_of_service_and_not_out_of_sight() {
    let earlier = made(&carved(vec![gpu(0, 4)]), None);
    let trouble = Some(Trouble::NoLibrary("no libnvidia-ml.so.1 under /run/nvidia/driver".into()));
    let (carved, view) = (Carved { trouble, ..Carved::default() }, DeviceView::default());
    let kubelet = KubeletView::default();
    let sources = Sources { old: &earlier.conditions, earlier: &earlier, ..sources(&carved, &view, &kubelet) };
    let now = without_inventory(&sources, Timestamp::UNIX_EPOCH);
    assert_eq!(ready(&now).0, "DriverNotFound");
    assert_eq!(now.layout, earlier.layout);
    assert!(now.gpus.iter().all(|gpu| gpu.health == Health::Unhealthy));
    assert!(
        now.gpus[0].instances.iter().all(|instance| !instance.device.allocatable && instance.device.owner.is_some())
    );
}

#[test]
fn until_kubelet_has_spoken_devices_are_whose_they_were() {
    let carved = carved(vec![gpu(0, 4), gpu(1, 0)]);
    let (view, mut kubelet) = views(&carved);
    let mut before = made(&carved, None);
    before.gpus[0].instances[2].gi = 40;
    let owners = |kubelet: &KubeletView| -> Vec<bool> {
        let carved = told(&carved, kubelet);
        let sources = Sources { earlier: &before, ..sources(&carved, &view, kubelet) };
        let gpus = status(&sources, Timestamp::UNIX_EPOCH).gpus;
        let devices = gpus.iter().flat_map(|gpu| gpu.instances.iter().map(|i| &i.device).chain(&gpu.whole));
        devices.map(|device| device.owner.is_some()).collect()
    };
    (kubelet.told, kubelet.owners) = (false, BTreeMap::new());
    assert_eq!(owners(&kubelet), [true, true, false, true, true], "what was made anew is nobody's");
    kubelet.told = true;
    assert_eq!(owners(&kubelet), [false; 5], "kubelet's word counts");
}

#[test]
fn who_has_left_has_the_device_until_a_look_shows_that_its_processes_have_left_too() {
    let mut carved = carved(vec![gpu(0, 4)]);
    let (view, mut kubelet) = views(&carved);
    carved.owners = kubelet.known_owners().cloned();
    kubelet.owners.clear();
    let seen = |carved: &Carved| -> Vec<(bool, i32)> {
        let sources = sources(carved, &view, &kubelet);
        let instances = status(&sources, Timestamp::UNIX_EPOCH).gpus.swap_remove(0).instances;
        instances.iter().map(|i| (i.device.owner.is_some(), i.device.clients)).collect()
    };
    assert_eq!(seen(&carved), [(true, 1); 4], "kubelet has forgotten the pod, and the processes were seen before that");
    carved.owners = kubelet.known_owners().cloned();
    assert_eq!(seen(&carved), [(false, 1); 4], "seen after it, they are nobody's");
    carved.inventory.as_mut().unwrap().gpus[0].clients.clear();
    assert_eq!(seen(&carved), [(false, 0); 4]);
}
