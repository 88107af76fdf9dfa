//! Usage of simulated GPUs by real programs that launch kernels: what NVML shows on each board and in each mode, and what of it is a container's.
//!
//! A busy machine delays programs, so nothing here expects a duration: the programs launch more than the GPU can do.

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    time::Duration,
};

use gputenancy_agent::{
    device::{Device, DeviceId, DeviceOwner, MigIds, Owners, Share},
    gpu::{Calls, Deadlines, DriverRoot, Inventory, NodePaths, NvmlThread, Scan, faults::KnownFaults},
    metrics::Metrics,
};
use gputenancy_agent_core::usage::{
    activity::{Activity, Source},
    containers::{GpuUse, divide},
    reading::Reading,
};
use gputenancy_crds::{ResizePolicy, SharingMode};
use silicon::operations;

use crate::{built, common::Sim};

/// More than a test needs on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// Two GPM samples are at least 100 ms apart (nvml.h).
const BETWEEN: Duration = Duration::from_millis(500);

struct Node {
    sim: Sim,
    nvml: NvmlThread,
    inventory: Inventory,
}

/// A program that ends with its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Node {
    async fn new(board: &str, prepare: impl FnOnce(&Sim)) -> Self {
        let sim = Sim::new(board, 2);
        prepare(&sim);
        let driver = sim.root.path().join("drv");
        let paths = NodePaths {
            driver_roots: vec![DriverRoot { host: driver.clone(), local: driver }],
            proc_root: "/proc".into(),
            sys_root: "/sys".into(),
        };
        let nvml = NvmlThread::start(paths, Calls::new(Metrics::default()), Deadlines::default()).unwrap();
        assert!(nvml.activity().await.unwrap().is_empty(), "nothing is known before the first scan");
        let inventory = scan(&nvml).await;
        Self { sim, nvml, inventory }
    }

    /// Kernels one after another, for as long as the test runs: many in the queue of the GPU, or each after the end of the one before, so that several
    /// programs take turns.
    fn launch(&self, device: &str, blocks: u32, in_turns: bool) -> Program {
        let mut program = Command::new(built::binary("cuda-work"));
        program.arg("--library").arg(built::shared("libcuda_sim.so")).args(["launch", "--iteration", "1"]);
        program.args(["--micros", "2000", "--millis", "600000", "--blocks", &blocks.to_string()]);
        program.args(["--mode", if in_turns { "each" } else { "async" }]);
        program.env("NVSIM_STATE", self.sim.store.dir()).env("NVSIM_DEV", "all").env("CUDA_VISIBLE_DEVICES", device);
        Program(program.stdout(Stdio::null()).spawn().unwrap())
    }

    /// The use of a GPU, once it is as wanted.
    async fn until(
        &mut self,
        gpu: usize,
        devices: &[Device],
        owners: &Owners,
        origin: &dyn Fn(u32) -> Option<DeviceOwner>,
        wanted: impl Fn(&GpuUse) -> bool,
    ) -> GpuUse {
        let begun = std::time::Instant::now();
        loop {
            let readings: Vec<Reading> = self.nvml.activity().await.unwrap();
            self.inventory = scan(&self.nvml).await;
            let observed = &self.inventory.gpus[gpu];
            let reading = readings.iter().find(|reading| reading.uuid == observed.uuid).unwrap();
            let found = divide(observed, reading, devices, owners, origin);
            if wanted(&found) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{found:#?}");
            tokio::time::sleep(BETWEEN).await;
        }
    }
}

async fn scan(nvml: &NvmlThread) -> Inventory {
    nvml.read(Scan::Full, false, KnownFaults::default()).await.unwrap()
}

fn owner(pod: &str) -> DeviceOwner {
    DeviceOwner { namespace: "team".into(), pod: pod.into(), container: "main".into() }
}

fn device(gpu: &str, id: DeviceId, mig: Option<MigIds>, share: Option<i32>) -> Device {
    let share = share.map(|number| Share {
        number,
        mode: SharingMode::TimeSlice,
        memory_mib: None,
        compute: None,
        limit_mib: None,
        pace: None,
        resize: ResizePolicy::default(),
    });
    Device {
        id,
        resource: "nvidia.com/gpu".into(),
        gpu_uuid: gpu.into(),
        gpu_minor: 0,
        mig,
        share,
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

#[tokio::test]
async fn tiny_kernel_is_busy_but_idle_and_a_kernel_on_all_multiprocessors_is_not() {
    let mut node = Node::new("h100-80gb", |_| {}).await;
    let uuids: Vec<String> = node.inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let devices: Vec<Device> = uuids.iter().map(|uuid| device(uuid, DeviceId::new(uuid), None, None)).collect();
    let owners: Owners = [(devices[0].id.clone(), owner("tiny")), (devices[1].id.clone(), owner("large"))].into();
    let _programs = [node.launch(&uuids[0], 1, false), node.launch(&uuids[1], 1320, false)];
    let busy = |pod: &'static str| {
        move |found: &GpuUse| {
            let used = found.containers[&(None, owner(pod))].utilization;
            used.is_some_and(|used| used.value > 0.86 && used.source == Source::Gpm)
        }
    };
    let tiny = node.until(0, &devices, &owners, &|_| None, busy("tiny")).await;
    let sm = tiny.containers[&(None, owner("tiny"))].sm.unwrap().value;
    assert!(sm > 0.0 && sm < 0.02, "{sm}");
    assert!(tiny.devices[&None].is_busy_but_idle());
    let large = node.until(1, &devices, &owners, &|_| None, busy("large")).await;
    assert!(large.containers[&(None, owner("large"))].sm.unwrap().value > 0.8);
    assert!(!large.devices[&None].is_busy_but_idle());
}

#[tokio::test]
async fn containers_on_a_time_sliced_gpu_have_the_time_of_their_processes_and_the_rest_stays_apart() {
    let mut node = Node::new("a100-80gb", |_| {}).await;
    let uuid = node.inventory.gpus[0].uuid.clone();
    let devices: Vec<Device> =
        (0..3).map(|number| device(&uuid, DeviceId::share(&uuid, number), None, Some(number))).collect();
    let owners: Owners = ["a", "b", "idle"].iter().zip(&devices).map(|(pod, d)| (d.id.clone(), owner(pod))).collect();
    let programs = [node.launch(&uuid, 1080, true), node.launch(&uuid, 1080, true), node.launch(&uuid, 1080, true)];
    // the third program is of no pod
    let pids: BTreeMap<u32, DeviceOwner> =
        programs.iter().zip(["a", "b"]).map(|(program, pod)| (program.0.id(), owner(pod))).collect();
    let origin = |pid: u32| pids.get(&pid).cloned();
    let time = |found: &GpuUse, pod: &str| found.containers[&(None, owner(pod))].utilization.unwrap().value;
    let found = node
        .until(0, &devices, &owners, &origin, |found| {
            let all = found.devices[&None].utilization.unwrap().value;
            all > 0.9 && time(found, "a") > 0.15 && time(found, "b") > 0.15 && found.unattributed[&None] > 0.15
        })
        .await;
    assert!(time(&found, "idle") == 0.0, "{found:?}");
    let sum = ["a", "b", "idle"].map(|pod| time(&found, pod)).iter().sum::<f64>() + found.unattributed[&None];
    let of_gpu = found.devices[&None].utilization.unwrap();
    assert!((sum - of_gpu.value).abs() <= 0.02 && of_gpu.source == Source::Nvml, "{found:?}");
    assert!(found.containers[&(None, owner("a"))].memory > Some(0));
    assert_eq!(found.devices[&None].sm, None, "an A100 has no performance monitoring");
}

#[tokio::test]
async fn instances_have_activity_from_hopper_on_and_none_before_and_none_is_not_zero() {
    for (board, known) in [("h100-80gb", true), ("a100-80gb", false)] {
        let mut node = Node::new(board, |sim| {
            operations::partition(&sim.store, 0, &["1g.10gb".to_owned(), "1g.10gb".to_owned()]).unwrap();
        })
        .await;
        let gpu = node.inventory.gpus[0].clone();
        let of_instance = |at: usize| {
            let instance = &gpu.instances[at];
            let (ci, uuid) = instance.whole_compute().unwrap();
            let mig = MigIds { gi: instance.gi, ci, start: instance.start, profile: instance.profile.clone() };
            device(&gpu.uuid, DeviceId::new(uuid), Some(mig), None)
        };
        let devices = [of_instance(0), of_instance(1)];
        let owners: Owners = [(devices[0].id.clone(), owner("busy")), (devices[1].id.clone(), owner("idle"))].into();
        let program = node.launch(devices[0].id.as_str(), 1320, false);
        let pid = program.0.id();
        let origin = |found: u32| (found == pid).then(|| owner("busy"));
        let places = [0, 1].map(|at: usize| Some(gpu.instances[at].gi));
        let of = |found: &GpuUse, at: usize, pod: &str| found.containers[&(places[at], owner(pod))];
        let found = node
            .until(0, &devices, &owners, &origin, |found| {
                let busy = of(found, 0, "busy");
                let active = busy.utilization.is_some_and(|used| used.value > 0.86);
                busy.memory > Some(0) && active == known
            })
            .await;
        let idle = of(&found, 1, "idle").utilization.map(|used| used.value);
        if known {
            assert_eq!(idle, Some(0.0));
        } else {
            assert_eq!((idle, found.devices[&places[0]]), (None, Activity::default()));
        }
    }
}
