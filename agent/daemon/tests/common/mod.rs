//! A simulated driver in its own folder, and the partitioning of an agent on it, with a kubelet that the test controls.
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use gputenancy_agent::{
    device::{DeviceView, KubeletView},
    gpu::{Calls, Deadlines, DriverRoot, NodePaths, NvmlThread, ObservedGpu, Scan, processes::process_origin::Origins},
    grpc::pod_resources::PodResources,
    handover::{HandoverCheck, ProcessPolicy, Terminator},
    metrics::Metrics,
    partition::{DesiredLayout, GpuProgress, PartitionState, Reconciler, ServedLayouts},
};
use gputenancy_crds::{GpuNodeSpec, GpuSpec, InstanceSpec};
use silicon::{
    Store,
    attach::attach,
    board::Variant,
    boards, clients,
    fault::{Effect, Fault},
    install::{Options, install},
    operations,
};
use tokio::sync::watch;

use crate::built;

/// One node's simulated driver.
pub struct Sim {
    pub root: tempfile::TempDir,
    pub store: Store,
    pub options: Options,
}

impl Sim {
    pub fn new(boards: &str, gpus: u32) -> Self {
        Self::with(boards, gpus, |_| {})
    }

    /// As [`Sim::new`], with other options.
    pub fn with(boards: &str, gpus: u32, adapt: impl FnOnce(&mut Options)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut options = options(root.path(), boards, gpus);
        adapt(&mut options);
        let store = install(&options).unwrap();
        Self { root, store, options }
    }

    pub fn inject(&self, call: &str, nth: u32, times: Option<u32>, effect: Effect) {
        let fault = Fault { call: call.into(), gpu: None, process: None, nth, times, effect, seen: 0 };
        operations::inject(&self.store, fault).unwrap();
    }

    /// Calls that matched a fault.
    pub fn matched_calls(&self) -> u32 {
        operations::faults(self.store.dir()).unwrap().iter().map(|fault| fault.seen).sum()
    }

    pub fn clear_faults(&self) {
        operations::clear_faults(&self.store).unwrap();
    }

    /// A process on an instance of GPU 0.
    pub fn client(&self, gi: u32) -> Client {
        let client = Client::start(self.store.dir(), gi);
        let pid = client.pid().to_string();
        symlink(Path::new("/proc").join(&pid), processes(self.root.path()).join(&pid)).unwrap();
        client
    }
}

/// GPUs without device nodes, in this folder.
pub fn options(root: &Path, boards: &str, gpus: u32) -> Options {
    Options {
        root: root.into(),
        driver_root: "/drv".into(),
        persistent: "/var/lib/nvsim".into(),
        library: built::library(),
        cuda: None,
        tool: None,
        node: "node".into(),
        boards: boards::load_list(boards).unwrap(),
        variant: Variant::Normal,
        gpus,
        latency_permille: 0,
        devices: false,
    }
}

/// A `/proc` with the clients of this node alone: that of a machine with many processes takes long to scan.
pub fn processes(root: &Path) -> PathBuf {
    let folder = root.join("proc");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A process of this test program that runs only the test `name`.
pub fn myself(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// A process that uses an instance until it is killed.
pub struct Client(Child);

impl Client {
    fn start(store: &Path, gi: u32) -> Self {
        let mut command = myself("common::client_process");
        command.env("CLIENT_STATE", store).env("CLIENT_GI", gi.to_string()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().unwrap().contains("attached")).expect("the client attaches").unwrap();
        Self(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The partitioning of an agent.
pub struct Agent {
    reconciler: Reconciler,
    generation: i64,
    pub desired: DesiredLayout,
    pub kubelet: watch::Sender<KubeletView>,
    pub view: watch::Receiver<DeviceView>,
    pub state: watch::Receiver<PartitionState>,
    pub handover: HandoverCheck,
}

impl Agent {
    pub fn on(root: &Path) -> Self {
        Self::with(root, Deadlines::default())
    }

    pub fn with(root: &Path, deadlines: Deadlines) -> Self {
        Self::seeing(root, &processes(root), deadlines)
    }

    /// An agent with these processes.
    pub fn seeing(root: &Path, proc_root: &Path, deadlines: Deadlines) -> Self {
        Self::ending(root, proc_root, deadlines, None)
    }

    /// An agent that ends unattributed processes after this time.
    pub fn ending(root: &Path, proc_root: &Path, deadlines: Deadlines, deadline: Option<Duration>) -> Self {
        let driver = root.join("drv");
        let paths = NodePaths {
            driver_roots: vec![DriverRoot { host: driver.clone(), local: driver }],
            proc_root: proc_root.into(),
            sys_root: "/sys".into(),
        };
        let metrics = Metrics::default();
        let nvml = NvmlThread::start(paths, Calls::new(metrics.clone()), deadlines).unwrap();
        let (view, views) = watch::channel(DeviceView::default());
        let (state, states) = watch::channel(PartitionState::default());
        let kubelet = watch::Sender::new(KubeletView::default());
        let origins = Origins {
            proc_root: proc_root.into(),
            logs: root.join("logs"),
            pods: gputenancy_agent::seen_pods::SeenPods::default(),
        };
        let terminator = deadline.map(|deadline| Terminator {
            deadline,
            origins: origins.clone(),
            pod_resources: PodResources::at(&root.join("kubelet.sock")),
            metrics: metrics.clone(),
        });
        let processes = ProcessPolicy { origins: origins.clone(), terminator };
        let handover = HandoverCheck::through(nvml.clone(), origins);
        let reconciler = Reconciler::new(nvml, metrics, kubelet.subscribe(), view, state, processes);
        // one scan proves idleness
        let reconciler = reconciler.with_proof(Duration::ZERO);
        let desired = DesiredLayout::default();
        Self { reconciler, generation: 0, desired, kubelet, view: views, state: states, handover }
    }

    /// With this duration of a proof of idleness.
    pub fn with_proof(self, proof: Duration) -> Self {
        Self { reconciler: self.reconciler.with_proof(proof), ..self }
    }

    /// With the layouts that an earlier run served.
    pub fn with_layouts(self, layouts: ServedLayouts) -> Self {
        Self { reconciler: self.reconciler.with_layouts(layouts), ..self }
    }

    /// The operator writes a spec for GPU 0.
    pub fn want(&mut self, uuid: &str, mig: bool, instances: &[(i32, &str)]) {
        self.want_all(vec![Self::spec(uuid, mig, instances)]);
    }

    pub fn spec(uuid: &str, mig: bool, instances: &[(i32, &str)]) -> GpuSpec {
        let instances = instances.iter().map(|(start, profile)| InstanceSpec {
            start: *start,
            profile: (*profile).into(),
            resource: None,
            replicas: None,
        });
        GpuSpec { uuid: uuid.into(), mig, instances: instances.collect(), ..GpuSpec::default() }
    }

    /// The operator writes a spec.
    pub fn want_all(&mut self, gpus: Vec<GpuSpec>) {
        self.generation += 1;
        let spec = GpuNodeSpec { gpus, ..GpuNodeSpec::default() };
        self.desired = DesiredLayout { generation: self.generation, spec, ..DesiredLayout::default() };
    }

    pub async fn reconcile(&mut self) {
        while self.reconciler.reconcile(Some(&self.desired), Scan::Full).await {}
    }

    /// Reconciles after a quick scan.
    pub async fn quick_scan(&mut self) {
        self.reconciler.reconcile(Some(&self.desired), Scan::Quick).await;
    }

    /// Scans without a spec, and returns the UUID of GPU 0.
    pub async fn uuid(&mut self) -> String {
        self.reconciler.reconcile(None, Scan::Full).await;
        self.gpu().uuid
    }

    /// Kubelet applies the latest devices.
    pub fn kubelet_applies(&self) {
        let generation = self.view.borrow().generation;
        self.kubelet.send_modify(|kubelet| kubelet.applied_generation = generation);
    }

    /// Reconciles until nothing changes, with a kubelet that applies devices at once.
    pub async fn converge(&mut self) -> GpuProgress {
        for _ in 0..4 {
            self.reconcile().await;
            self.kubelet_applies();
        }
        self.progress()
    }

    pub fn progress(&self) -> GpuProgress {
        self.state.borrow().gpus.values().next().cloned().unwrap_or_default()
    }

    pub fn gpu(&self) -> ObservedGpu {
        self.state.borrow().inventory.as_ref().unwrap().gpus[0].clone()
    }

    pub fn layout(&self) -> Vec<(u32, String)> {
        self.gpu().instances.iter().map(|i| (i.start, i.profile.clone())).collect()
    }

    /// UUID of the MIG device on an instance.
    pub fn mig_uuid(&self, instance: usize) -> String {
        self.gpu().instances[instance].compute[0].uuid.clone().unwrap()
    }

    /// Ids of the devices that kubelet can allocate.
    pub fn advertised(&self) -> Vec<String> {
        let view = self.view.borrow();
        view.devices.iter().filter(|device| device.advertised() && device.healthy).map(|d| d.id.to_string()).collect()
    }
}

/// Not a test: a process on a GPU.
#[test]
fn client_process() {
    let Some(state) = std::env::var_os("CLIENT_STATE") else { return };
    let gi = std::env::var("CLIENT_GI").unwrap().parse().unwrap();
    let store = Store::new(PathBuf::from(state));
    let client = clients::Client {
        pid: 0,
        gpu: 0,
        instance: Some((gi, 0)),
        memory: 1 << 20,
        name: "client".into(),
        owner: "test".into(),
        cgroups: Vec::new(),
    };
    let _attachment = attach(&store, &client, &[]).unwrap();
    println!("attached");
    std::thread::sleep(Duration::from_mins(10));
}
