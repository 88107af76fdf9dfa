//! A simulated driver in a folder of its own, and the agent's silicon side on it, with a kubelet that agrees when told to.
#![allow(dead_code, reason = "each test program uses its own part")]

#[path = "../../../integration/nvml-sim/tests/support/built.rs"]
pub mod built;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use gputenancy_agent::{
    carve::{Carved, GpuProgress, Shell, Wanted},
    device::{DeviceView, KubeletView},
    gpu::{Calls, Deadlines, Depth, DriverRoot, Places, SeenGpu, Silicon},
    metrics::Metrics,
};
use gputenancy_crds::{GpuNodeSpec, GpuSpec, InstanceSpec};
use silicon::{
    Store,
    board::Variant,
    boards,
    fault::{Effect, Fault},
    install::{Options, install},
    operations,
};
use tokio::sync::watch;

/// One node's simulated driver.
pub struct Sim {
    pub root: tempfile::TempDir,
    pub store: Store,
    pub options: Options,
}

impl Sim {
    pub fn new(board: &str, gpus: u32) -> Self {
        Self::with(board, gpus, |_| {})
    }

    /// As [`Sim::new`], installed in another way.
    pub fn with(board: &str, gpus: u32, adapt: impl FnOnce(&mut Options)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut options = options(root.path(), board, gpus);
        adapt(&mut options);
        let store = install(&options).unwrap();
        Self { root, store, options }
    }

    pub fn inject(&self, call: &str, nth: u32, times: Option<u32>, effect: Effect) {
        let fault = Fault { call: call.into(), gpu: None, process: None, nth, times, effect, seen: 0 };
        operations::inject(&self.store, fault).unwrap();
    }

    /// Calls that a fault was tried on.
    pub fn seen(&self) -> u32 {
        operations::faults(self.store.dir()).unwrap().iter().map(|fault| fault.seen).sum()
    }

    pub fn clear_faults(&self) {
        operations::clear_faults(&self.store).unwrap();
    }

    /// A process on an instance of GPU 0.
    pub fn client(&self, gi: u32) -> Client {
        Client::start(self.store.dir(), gi)
    }
}

/// GPUs without device nodes, in this folder.
pub fn options(root: &Path, board: &str, gpus: u32) -> Options {
    Options {
        root: root.into(),
        driver_root: "/drv".into(),
        persistent: "/var/lib/nvsim".into(),
        library: built::library(),
        tool: None,
        node: "node".into(),
        board: boards::load(board).unwrap(),
        variant: Variant::Normal,
        gpus,
        latency_permille: 0,
        devices: false,
    }
}

/// This test program once more, as another process that runs only the test `name`.
pub fn myself(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// A process that uses an instance until it is killed.
pub struct Client(Child);

impl Client {
    fn start(store: &Path, gi: u32) -> Self {
        let mut command = myself("client_process");
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

/// The silicon side of an agent.
pub struct Agent {
    shell: Shell,
    generation: i64,
    pub wanted: Wanted,
    pub kubelet: watch::Sender<KubeletView>,
    pub view: watch::Receiver<DeviceView>,
    pub carved: watch::Receiver<Carved>,
}

impl Agent {
    pub fn on(root: &Path) -> Self {
        Self::with(root, Deadlines::default())
    }

    pub fn with(root: &Path, deadlines: Deadlines) -> Self {
        Self::seeing(root, "/proc".as_ref(), deadlines)
    }

    /// An agent that sees these processes.
    pub fn seeing(root: &Path, proc_root: &Path, deadlines: Deadlines) -> Self {
        let driver = root.join("drv");
        let places = Places {
            driver_roots: vec![DriverRoot { host: driver.clone(), seen: driver }],
            proc_root: proc_root.into(),
            sys_root: "/sys".into(),
        };
        let metrics = Metrics::default();
        let silicon = Silicon::start(places, Calls::new(metrics.clone()), deadlines).unwrap();
        let (view, views) = watch::channel(DeviceView::default());
        let (carved, carveds) = watch::channel(Carved::default());
        let kubelet = watch::Sender::new(KubeletView::default());
        let shell = Shell::new(silicon, metrics, kubelet.subscribe(), view, carved);
        // The two looks that see something unused may come one right after the other.
        let shell = shell.with_proof(Duration::ZERO);
        Self { shell, generation: 0, wanted: Wanted::default(), kubelet, view: views, carved: carveds }
    }

    /// With so long between the two looks that see something unused.
    pub fn with_proof(self, proof: Duration) -> Self {
        Self { shell: self.shell.with_proof(proof), ..self }
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
        });
        GpuSpec { uuid: uuid.into(), mig, instances: instances.collect(), ..GpuSpec::default() }
    }

    /// The operator writes a spec.
    pub fn want_all(&mut self, gpus: Vec<GpuSpec>) {
        self.generation += 1;
        let spec = GpuNodeSpec { gpus, ..GpuNodeSpec::default() };
        self.wanted = Wanted { generation: self.generation, spec, ..Wanted::default() };
    }

    pub async fn pass(&mut self) {
        while self.shell.pass(Some(&self.wanted), Depth::Deep).await {}
    }

    /// What an agent at rest does between two deep looks.
    pub async fn glance(&mut self) {
        self.shell.pass(Some(&self.wanted), Depth::Shallow).await;
    }

    /// Looks without a spec, and tells the UUID of GPU 0.
    pub async fn uuid(&mut self) -> String {
        self.shell.pass(None, Depth::Deep).await;
        self.gpu().uuid
    }

    /// Kubelet takes note of what is offered.
    pub fn kubelet_agrees(&self) {
        let generation = self.view.borrow().generation;
        self.kubelet.send_modify(|kubelet| kubelet.applied_generation = generation);
    }

    /// Carves until nothing moves, with a kubelet that agrees at once.
    pub async fn settle(&mut self) -> GpuProgress {
        for _ in 0..4 {
            self.pass().await;
            self.kubelet_agrees();
        }
        self.progress()
    }

    pub fn progress(&self) -> GpuProgress {
        self.carved.borrow().gpus.values().next().cloned().unwrap_or_default()
    }

    pub fn gpu(&self) -> SeenGpu {
        self.carved.borrow().inventory.as_ref().unwrap().gpus[0].clone()
    }

    pub fn layout(&self) -> Vec<(u32, String)> {
        self.gpu().instances.iter().map(|seen| (seen.start, seen.profile.clone())).collect()
    }

    /// Ids of devices that are offered.
    pub fn offered(&self) -> Vec<String> {
        let view = self.view.borrow();
        view.devices.iter().filter(|device| device.offered() && device.healthy).map(|d| d.id.to_string()).collect()
    }
}
