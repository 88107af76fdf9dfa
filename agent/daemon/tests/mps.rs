//! MPS daemons of the agent on the simulated driver: real processes and real pipes.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gputenancy_agent::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, Owners, Share},
    gpu::{DriverRoot, Inventory, ObservedGpu},
    mps::{Mps, MpsView, control::Control, daemons::Refusal, host::Host},
};
use gputenancy_cluster::events::Notice;
use gputenancy_crds::{SharingMode, reasons};
use silicon::mps::Connection;

use crate::built;

const GPU: &str = "GPU-a";

/// A node with one GPU in three MPS shares.
struct Node {
    root: tempfile::TempDir,
    owners: Arc<Mutex<Owners>>,
    modes: Arc<Mutex<Vec<(String, bool)>>>,
    notices: Arc<Mutex<Vec<Notice>>>,
    host: Host,
    mps: Mps,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("drv/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        for program in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            fs::copy(built::binary("nvsim"), bin.join(program)).unwrap();
        }
        let driver = root.path().join("drv");
        let gpu = ObservedGpu { uuid: GPU.into(), ..ObservedGpu::default() };
        let inventory = Inventory {
            driver_root: Some(DriverRoot { host: driver.clone(), local: driver }),
            driver_version: "580.95.05".into(),
            gpus: vec![gpu],
            ..Inventory::default()
        };
        let owners: Arc<Mutex<Owners>> = Arc::default();
        let (modes, notices) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (listed, set, published) = (Arc::clone(&owners), Arc::clone(&modes), Arc::clone(&notices));
        let host = Host {
            root: root.path().join("mps"),
            proc_root: "/proc".into(),
            // not a cgroup file system: the daemon stays in this test's cgroup
            cgroup_root: root.path().into(),
            inventory: Arc::new(move || Some(inventory.clone())),
            owners: Arc::new(move |()| {
                let owners = listed.lock().unwrap().clone();
                Box::pin(async move { Ok(owners) })
            }),
            // a namespace is of the tenant that its name begins with
            tenant: Arc::new(|namespace: String| Box::pin(async move { Ok(format!("tenant-{}", &namespace[..1])) })),
            set_exclusive: Arc::new(move |call| {
                set.lock().unwrap().push(call);
                Box::pin(async { Ok(()) })
            }),
            publish: Arc::new(move |notice| {
                published.lock().unwrap().push(notice);
                Box::pin(async {})
            }),
            node: "node".into(),
        };
        Self { root, owners, modes, notices, mps: Mps::new(host.clone()), host }
    }

    fn own(&self, number: i32, namespace: &str, pod: &str) {
        let owner = DeviceOwner { namespace: namespace.into(), pod: pod.into(), container: "c".into() };
        self.owners.lock().unwrap().insert(DeviceId::share(GPU, number), owner);
    }

    async fn start(&self, number: i32) -> Result<(), Refusal> {
        self.mps.prepare(&[DeviceId::share(GPU, number)], &devices()).await
    }

    async fn check(&self, now: Instant) -> MpsView {
        let view = DeviceView { generation: 1, devices: devices().into_values().collect(), ..DeviceView::default() };
        self.mps.check(&view, true, now).await;
        self.mps.subscribe().borrow().clone()
    }

    fn control(&self, key: &str) -> Control {
        Control {
            gpu: GPU.into(),
            driver_root: self.root.path().join("drv"),
            folder: self.host.root.join(GPU).join(key),
            proc_root: "/proc".into(),
            cgroup_root: self.root.path().into(),
        }
    }

    /// The folder that the runtime mounts as pipe directory of a share.
    fn pipes(&self, number: i32) -> PathBuf {
        fs::canonicalize(self.host.root.join(GPU).join(number.to_string()).join("pipe")).unwrap()
    }

    async fn remove(&self) {
        self.owners.lock().unwrap().clear();
        let view = DeviceView { generation: 2, ..DeviceView::default() };
        self.mps.check(&view, false, Instant::now()).await;
    }
}

fn devices() -> BTreeMap<DeviceId, Device> {
    let device = |(number, memory_mib, compute): (i32, i64, i32)| Device {
        id: DeviceId::share(GPU, number),
        resource: "gputenancy.io/mps".into(),
        gpu_uuid: GPU.into(),
        gpu_minor: 0,
        mig: None,
        share: Some(Share {
            number,
            mode: SharingMode::Mps,
            memory_mib: Some(memory_mib),
            compute: Some(compute),
            limit_mib: None,
            pace: None,
            resize: gputenancy_crds::ResizePolicy::default(),
        }),
        numa: None,
        cordoned: false,
        healthy: true,
    };
    [(0, 30_720, 50), (1, 10_240, 25), (2, 10_240, 25)].map(device).map(|d| (d.id.clone(), d)).into()
}

#[tokio::test]
async fn first_container_starts_the_daemon_and_the_tenants_second_joins_it() {
    let node = Node::new();
    assert!(matches!(node.start(0).await, Err(Refusal::NoOwner(id)) if id == DeviceId::share(GPU, 0)));
    node.own(0, "a1", "p");
    node.own(1, "a2", "q");
    node.start(0).await.unwrap();
    node.start(1).await.unwrap();
    assert_eq!(*node.modes.lock().unwrap(), [(GPU.to_owned(), true)], "exclusive once");
    assert_eq!(node.pipes(0), node.pipes(1));
    let control = node.control("tenant-a");
    // clients without variables get no more than the largest share
    assert_eq!(control.command("get_default_device_pinned_mem_limit 0").await.unwrap().trim(), "30720M");
    assert_eq!(control.command("get_default_active_thread_percentage").await.unwrap().trim(), "50");
    let client = Connection::open(&node.pipes(1)).unwrap();
    let view = node.check(Instant::now()).await;
    assert_eq!((view[GPU].clients, view[GPU].max_clients, view[GPU].down.is_none()), (1, 48, true));
    drop(client);
    let both = [DeviceId::share(GPU, 0), DeviceId::share(GPU, 1)];
    assert!(matches!(node.mps.prepare(&both, &devices()).await, Err(Refusal::Several(2))));
    node.remove().await;
    assert_eq!(node.modes.lock().unwrap().last(), Some(&(GPU.to_owned(), false)), "restored with the last share");
    assert!(control.pid().is_none() && !node.host.root.join(GPU).exists());
}

#[tokio::test]
async fn second_tenant_is_refused_until_the_first_has_left_and_gets_its_own_daemon() {
    let node = Node::new();
    node.own(0, "a", "p");
    node.start(0).await.unwrap();
    let first = node.control("tenant-a");
    let pid = first.pid().unwrap();
    node.own(1, "b", "q");
    let Err(Refusal::OtherTenant(refusal)) = node.start(1).await else { panic!("two tenants on one server") };
    let text = refusal.to_string();
    assert!(text.contains(GPU) && text.contains("namespace b") && !text.contains("namespace a"), "{text}");
    assert_eq!(first.pid(), Some(pid), "the first tenant's daemon runs on");
    let former = node.pipes(0);
    node.owners.lock().unwrap().remove(&DeviceId::share(GPU, 0));
    node.start(1).await.unwrap();
    assert!(first.pid().is_none() && node.control("tenant-b").pid().is_some());
    assert_ne!(node.pipes(1), former);
    assert!(Connection::open(&former).is_err(), "a container that is left has no way to the second tenant's server");
    node.remove().await;
}

#[tokio::test]
async fn killed_daemon_is_reported_with_its_pods_and_restarted_in_the_same_folder() {
    let node = Node::new();
    node.own(0, "a", "p");
    node.own(1, "a", "q");
    node.start(0).await.unwrap();
    node.start(1).await.unwrap();
    let client = Connection::open(&node.pipes(0)).unwrap();
    let started = Instant::now();
    node.check(started).await;
    let (control, pipes) = (node.control("tenant-a"), node.pipes(0));
    let pid = control.pid().unwrap();
    kill(pid);
    client.wait_for_end();
    while control.pid().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let view = node.check(started).await;
    assert_eq!(view[GPU].down.as_ref().unwrap().pods(), "a/p, a/q");
    assert!(matches!(node.start(1).await, Err(Refusal::Down(gpu)) if gpu == GPU));
    let about: Vec<_> = node.notices.lock().unwrap().iter().map(|n| (n.reason, n.regarding.name.clone())).collect();
    assert_eq!(about, ["node", "p", "q"].map(|name| (reasons::MPS_DAEMON_ENDED, Some(name.to_owned()))));
    assert!(node.check(started).await[GPU].down.is_some(), "not before its delay");
    let view = node.check(started + Duration::from_mins(1)).await;
    assert!(view[GPU].down.is_none());
    assert!(control.pid().is_some_and(|now| now != pid));
    assert!(Connection::open(&pipes).is_ok(), "containers have this folder mounted");
    node.start(1).await.unwrap();
    node.remove().await;
}

#[tokio::test]
async fn restart_of_the_agent_adopts_the_daemon_and_its_tenant() {
    let node = Node::new();
    node.own(0, "a", "p");
    node.start(0).await.unwrap();
    let pid = node.control("tenant-a").pid().unwrap();
    let mps = Mps::new(node.host.clone());
    node.own(1, "b", "q");
    let second = mps.prepare(&[DeviceId::share(GPU, 1)], &devices()).await;
    assert!(matches!(second, Err(Refusal::OtherTenant(_))), "{second:?}");
    node.own(1, "a", "q");
    mps.prepare(&[DeviceId::share(GPU, 1)], &devices()).await.unwrap();
    assert_eq!(node.control("tenant-a").pid(), Some(pid));
    node.remove().await;
}

fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(pid.try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}
