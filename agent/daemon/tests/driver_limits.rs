//! Memory limits in the simulated driver: set for the cgroups of containers with a share, held by programs without the agent's library, and
//! cleared. Needs a writable hierarchy of cgroups.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{built, common::Sim};
use gputenancy_agent::{
    device::{
        Device, DeviceId, DeviceOwner, DeviceView, DriverLimits, KubeletView, Limiters, OtherLimiter, Owners, Share,
        ShimState,
    },
    enforcement::{
        Resizer, ShareFiles, ShareSizes,
        driver::{Cgroups, Channels, DriverLimiter},
    },
    gpu::{Calls, Deadlines, DriverRoot, Inventory, NodePaths, NvmlThread, Scan, faults::KnownFaults},
    metrics::Metrics,
};
use gputenancy_crds::{ResizePolicy, SharingMode};
use gputenancy_ledger::{Ledger, Mapped, Usage};
use silicon::memory_limits::MemoryLimits;
use tokio::sync::watch;

/// MiB of a share, and of the context that its container has on top.
const LIMIT: i64 = 1024;
const CONTEXT: u64 = 640;

/// A node with one GPU in shares, the agent's files, and a hierarchy of cgroups that ends with the test.
struct Node {
    sim: Sim,
    nvml: NvmlThread,
    cgroups: PathBuf,
    inventory: Inventory,
    limiter: DriverLimiter,
}

impl Node {
    async fn new(name: &str, supported: bool) -> Self {
        let cgroups = silicon::cgroup::hierarchy().join(format!("gputenancy-{name}-{}", std::process::id()));
        fs::create_dir_all(&cgroups)
            .unwrap_or_else(|error| panic!("{}: {error}: run the tests as root", cgroups.display()));
        let sim = Sim::new("a100-80gb", 1);
        fs::create_dir_all(sim.root.path().join("logs")).unwrap();
        supports(&sim, supported);
        let driver = sim.root.path().join("drv");
        let paths = NodePaths {
            driver_roots: vec![DriverRoot { host: driver.clone(), local: driver }],
            proc_root: "/proc".into(),
            sys_root: "/sys".into(),
        };
        let nvml = NvmlThread::start(paths, Calls::new(Metrics::default()), Deadlines::default()).unwrap();
        let inventory = nvml.read(Scan::Full, false, KnownFaults::default()).await.unwrap();
        let limiter = limiter(&sim, true, &nvml);
        Self { sim, nvml, cgroups, inventory, limiter }
    }

    /// The cgroup of a container that has started.
    fn start(&self, pod: &str, id: &str) -> PathBuf {
        let id = id.repeat(64);
        fs::write(self.sim.root.path().join(format!("logs/{pod}_team_main-{id}.log")), "").unwrap();
        let cgroup = self.cgroups.join(format!("pod-{pod}/{id}"));
        fs::create_dir_all(&cgroup).unwrap();
        cgroup
    }

    fn device(&self, number: i32) -> Device {
        let gpu = self.inventory.gpus[0].uuid.clone();
        let share = Share {
            number,
            mode: SharingMode::TimeSlice,
            memory_mib: None,
            compute: None,
            limit_mib: Some(LIMIT),
            pace: None,
            resize: ResizePolicy::default(),
        };
        Device {
            id: DeviceId::share(&gpu, number),
            resource: "nvidia.com/gpu.shared".into(),
            gpu_uuid: gpu,
            gpu_minor: 0,
            mig: None,
            share: Some(share),
            numa: None,
            cordoned: false,
            healthy: true,
        }
    }

    /// One reconcile in which these pods have shares 0, 1, ….
    async fn reconcile(&mut self, pods: &[&str], shim: ShimState) -> DriverLimits {
        self.next_to(pods, shim, None).await
    }

    /// The same, next to another product.
    async fn next_to(&mut self, pods: &[&str], shim: ShimState, other: Option<OtherLimiter>) -> DriverLimits {
        let devices = (0..4).map(|number| self.device(number)).collect();
        let view = DeviceView { generation: 1, devices, ..DeviceView::default() };
        let owner = |pod: &&str| DeviceOwner { namespace: "team".into(), pod: (*pod).into(), container: "main".into() };
        let owners = (0..).zip(pods).map(|(number, pod)| (self.device(number).id, owner(pod))).collect();
        let limiters = Limiters { shim, driver: DriverLimits::Unknown };
        let kubelet = KubeletView { answered: true, owners, limiters, other_limiter: other, ..KubeletView::default() };
        self.limiter.reconcile(&view, &kubelet, &self.inventory).await
    }

    /// Cgroup, soft and hard limit of those in the driver.
    fn limits(&self) -> Vec<(PathBuf, u64, u64)> {
        let machine = self.sim.store.read().unwrap();
        machine.memory_limits.set.iter().map(|l| (PathBuf::from(&l.cgroup), l.soft, l.hard)).collect()
    }

    /// Output of a program in a cgroup that loads the driver's library itself, and takes as many blocks of 64 MiB as it gets.
    fn allocate(&self, cgroup: &Path) -> String {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec {} --library {} allocate --count 2000",
            cgroup.display(),
            built::binary("cuda-work").display(),
            built::shared("libcuda_sim.so").display(),
        );
        let output =
            Command::new("sh").args(["-c", &script]).env("NVSIM_STATE", self.sim.store.dir()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for pod in fs::read_dir(&self.cgroups).unwrap().flatten() {
            let containers = fs::read_dir(pod.path()).into_iter().flatten().flatten();
            containers.for_each(|container| drop(fs::remove_dir(container.path())));
            let _ = fs::remove_dir(pod.path());
        }
        let _ = fs::remove_dir(&self.cgroups);
    }
}

fn supports(sim: &Sim, supported: bool) {
    let set = |machine: &mut silicon::Machine| machine.memory_limits = MemoryLimits { supported, set: Vec::new() };
    sim.store
        .change(|machine, _| {
            set(machine);
            Ok(())
        })
        .unwrap();
}

fn limiter(sim: &Sim, enabled: bool, nvml: &NvmlThread) -> DriverLimiter {
    let cgroups = Cgroups::new(vec!["/sys/fs/cgroup".into()], sim.root.path().join("logs"));
    DriverLimiter::new(enabled, &sim.root.path().join("enforcement"), cgroups, nvml.clone())
}

const HARD: u64 = (LIMIT.cast_unsigned() + CONTEXT) << 20;

#[tokio::test]
async fn limit_of_a_container_holds_a_program_without_the_library_and_its_neighbour_is_not_affected() {
    let mut node = Node::new("hold", true).await;
    let (greedy, other) = (node.start("greedy", "a"), node.start("other", "b"));
    assert_eq!(node.reconcile(&["greedy"], ShimState::Served).await, DriverLimits::Supported);
    assert_eq!(node.limits(), [(greedy.clone(), 0, HARD)]);
    // the simulated context has 300 MiB, which leaves 1,364 MiB
    let printed = node.allocate(&greedy);
    assert!(printed.contains("granted=21 code=2"), "{printed}");
    let printed = node.allocate(&other);
    assert!(printed.contains("granted=1267 code=2"), "without a share nothing is limited: {printed}");
    // idempotent, and without a share of its owner cleared while the cgroup exists
    node.reconcile(&["greedy"], ShimState::Served).await;
    assert_eq!(node.limits().len(), 1);
    node.reconcile(&[], ShimState::Served).await;
    assert_eq!(node.limits(), []);
    assert!(greedy.exists());
}

#[tokio::test]
async fn hard_limit_follows_the_size_of_a_fraction_in_both_directions_and_not_below_present_use() {
    let node = Node::new("resize", true).await;
    let cgroup = node.start("p", "1");
    let fraction = |mib: i64, resize| {
        let device = node.device(0);
        let share =
            Share { mode: SharingMode::Fraction, limit_mib: Some(mib), resize, ..device.share.clone().unwrap() };
        Device { share: Some(share), ..device }
    };
    let (when_free, force) = (ResizePolicy::WhenFree, ResizePolicy::Force);
    let first = fraction(LIMIT, when_free);
    let shares = node.sim.root.path().join("enforcement/shares");
    let files = ShareFiles::of(&first, &shares).unwrap();
    files.renew(&first).unwrap();
    let usage = Mapped::<Usage>::open(&files.usage).unwrap();
    let ledger = Ledger::join(&usage).unwrap();
    ledger.reserve((CONTEXT + 900) << 20, u64::MAX).unwrap();
    let owner = DeviceOwner { namespace: "team".into(), pod: "p".into(), container: "main".into() };
    let owners = Owners::from([(first.id.clone(), owner)]);
    let view = watch::Sender::new(DeviceView { generation: 1, devices: vec![first.clone()], ..DeviceView::default() });
    let kubelet = watch::Sender::new(KubeletView { answered: true, owners, ..KubeletView::default() });
    let sizes = watch::Sender::new(ShareSizes::new());
    let changed = sizes.subscribe();
    let resizer = Resizer {
        shares,
        view: view.subscribe(),
        kubelet: kubelet.subscribe(),
        sizes,
        publish: Arc::new(|_| Box::pin(async {})),
        node: "gpu-1".into(),
    };
    tokio::spawn(resizer.run());
    let (inventory, limiter) = (node.inventory.clone(), limiter(&node.sim, true, &node.nvml));
    tokio::spawn(limiter.run(Channels {
        view: view.subscribe(),
        kubelet: kubelet.subscribe(),
        sizes: changed,
        inventory: Arc::new(move || Some(inventory.clone())),
        driver_limits: watch::Sender::new(DriverLimits::Unknown),
    }));
    let limit = async |mib: u64| {
        let wanted = [(cgroup.clone(), 0, (mib + CONTEXT) << 20)];
        while node.limits() != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    limit(LIMIT.cast_unsigned()).await;
    let mut took = Vec::new();
    let mut steps = vec![(1500, when_free, 1500), (1200, when_free, 1200)];
    // refused: 900 MiB are held; the growth after it shows that the refusal was handled
    steps.extend([(1300, when_free, 1300), (800, force, 900), (2000, force, 2000)]);
    for (mib, policy, expected) in steps {
        let begun = Instant::now();
        view.send_modify(|view| view.devices = vec![fraction(mib, policy)]);
        limit(expected).await;
        took.push(begun.elapsed().as_micros());
    }
    view.send_modify(|view| view.devices = vec![fraction(800, when_free)]);
    ledger.release(50 << 20);
    view.send_modify(|view| view.devices = vec![fraction(850, when_free)]);
    limit(850).await;
    println!("from the agent's device view to the driver's limit, in µs: {took:?}");
    assert_eq!(ledger_used(&files), (CONTEXT + 850) << 20);
}

fn ledger_used(files: &ShareFiles) -> u64 {
    Mapped::<Usage>::read_counts(&files.usage).unwrap().used()
}

#[tokio::test]
async fn limits_follow_restarts_of_container_and_agent_and_end_with_the_option() {
    let mut node = Node::new("restart", true).await;
    let first = node.start("p", "c");
    node.reconcile(&["p"], ShimState::Served).await;
    let second = node.start("p", "d");
    node.reconcile(&["p"], ShimState::Served).await;
    assert_eq!(node.limits(), [(first.clone(), 0, HARD), (second.clone(), 0, HARD)]);
    fs::remove_dir(&first).unwrap();
    // an agent after a restart knows what the former one has set
    node.limiter = limiter(&node.sim, true, &node.nvml);
    let gone = node.start("q", "e");
    assert_eq!(node.reconcile(&["p", "q"], ShimState::NotInstalled).await, DriverLimits::Supported);
    assert_eq!(node.limits(), [(second, 0, HARD), (gone, 0, HARD)]);
    node.limiter = limiter(&node.sim, false, &node.nvml);
    assert_eq!(node.reconcile(&["p", "q"], ShimState::Off).await, DriverLimits::NotSupported);
    assert_eq!(node.limits(), []);
}

#[tokio::test]
async fn driver_without_limits_leaves_the_library_and_so_does_another_product() {
    let mut node = Node::new("absent", false).await;
    let cgroup = node.start("p", "f");
    assert_eq!(node.reconcile(&["p"], ShimState::Served).await, DriverLimits::NotSupported);
    assert_eq!(node.limits(), []);
    // a newer driver is noticed when it reports another version
    supports(&node.sim, true);
    node.inventory.driver_version = "615.10".into();
    assert_eq!(node.reconcile(&["p"], ShimState::Served).await, DriverLimits::Supported);
    assert_eq!(node.limits(), [(cgroup, 0, HARD)]);
    for other in [OtherLimiter::Folder, OtherLimiter::Fractioning] {
        let state = node.next_to(&["p"], ShimState::Conflict(other), Some(other)).await;
        assert_eq!(state, DriverLimits::NotSupported, "{other:?}");
        assert_eq!(node.limits(), []);
        assert_eq!(node.reconcile(&["p"], ShimState::Served).await, DriverLimits::Supported);
    }
}

#[tokio::test]
async fn driver_that_refuses_limits_counts_as_without_after_three_reconciles() {
    let mut node = Node::new("refuse", true).await;
    node.start("p", "0");
    node.sim.inject("nvmlDeviceSetMemoryLimits_v1", 1, Some(3), silicon::fault::Effect::Fail(4));
    let mut found = Vec::new();
    for _ in 0..4 {
        found.push(node.reconcile(&["p"], ShimState::Served).await);
    }
    let (yes, no) = (DriverLimits::Supported, DriverLimits::NotSupported);
    assert_eq!(found, [yes, yes, no, yes], "and again with once it accepts them");
}
