//! Containers on limited shares that the library cannot serve: those in a sandbox such as gVisor or Kata, which do not get it, and those of images
//! with musl, which cannot load it. Both are reported.
//!
//! [`crate::kubelet::node::sandbox`] decides which containers run in a sandbox, [`musl`] looks at a container's files, and this loop publishes events
//! and metrics.

pub mod musl;
pub mod notices;

use std::{collections::BTreeMap, path::PathBuf, thread, time::Duration};

use gputenancy_cluster::events::Notice;
use gputenancy_crds::Sandbox;
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use crate::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, KubeletView, ShimState},
    enforcement::driver::Cgroups,
    event::Publish,
    kubelet::node::sandbox::{Sandboxes, is_limited},
    metrics::Metrics,
    unlimited_containers::{
        musl::{is_musl, process_of},
        notices::{of_musl, of_sandbox},
    },
};

/// Interval of the reads of containers' files.
const INTERVAL: Duration = Duration::from_secs(4);
/// How long a report waits for containers' files.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

/// Why the library does not serve a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It runs in a sandbox.
    Sandbox(Sandbox),
    /// Its image has musl.
    Musl,
}

impl Cause {
    /// As a label of a metric.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "sandbox",
            Self::Musl => "musl",
        }
    }
}

/// Limited shares with the container that has them, and why the library does not serve it.
pub type Unserved = BTreeMap<(DeviceId, DeviceOwner), Cause>;

/// Reports the containers of a node.
pub struct Reporter {
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// Which pods run in a sandbox.
    pub sandboxes: Sandboxes,
    /// Publishes events.
    pub publish: Publish,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Name of the node.
    pub node: String,
}

/// Files of containers.
#[derive(Debug)]
pub struct Files {
    cgroups: Cgroups,
    proc_root: PathBuf,
    /// How often a container was looked at, by its cgroup, and whether it has musl.
    looked: BTreeMap<PathBuf, (u32, bool)>,
}

impl Reporter {
    /// Reports for as long as it is polled.
    pub async fn run(self, files: Files) {
        let (mut reported, mut musl, mut looks) = (Unserved::new(), Unserved::new(), Looks::Idle(files));
        loop {
            sleep(INTERVAL).await;
            let shares = owned(&self.view.borrow(), &self.kubelet.borrow());
            let sandboxed = self.sandboxed(&shares);
            let others = shares.iter().map(|(id, (_, owner))| (id.clone(), owner.clone()));
            let others: Vec<_> = others.filter(|share| !sandboxed.contains_key(share)).collect();
            musl.retain(|share, _| others.contains(share));
            self.report(&mut reported, sandboxed.clone().into_iter().chain(musl.clone()).collect());
            if let Some(found) = looks.next(others.clone(), LOOK_LIMIT).await {
                musl = found;
                // of a look that began earlier
                musl.retain(|share, _| others.contains(share));
                self.report(&mut reported, sandboxed.into_iter().chain(musl.clone()).collect());
            }
        }
    }

    /// Reports the containers as they are now, with an event for each that was not reported before.
    fn report(&self, reported: &mut Unserved, now: Unserved) {
        self.metrics.set_unserved(now.iter().map(|((device, owner), cause)| (device, owner, cause.as_str())));
        for (share, cause) in now.iter().filter(|(share, _)| !reported.contains_key(*share)) {
            tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(self.notice(share, cause))));
        }
        *reported = now;
    }

    fn sandboxed(&self, shares: &Shares) -> Unserved {
        let sandbox = |(id, (device, owner)): (&DeviceId, &(Device, DeviceOwner))| {
            let sandbox = self.sandboxes.of(device, owner)?;
            Some(((id.clone(), owner.clone()), Cause::Sandbox(sandbox)))
        };
        shares.iter().filter_map(sandbox).collect()
    }

    fn notice(&self, (id, owner): &(DeviceId, DeviceOwner), cause: &Cause) -> Notice {
        match cause {
            Cause::Sandbox(sandbox) => of_sandbox(&self.node, id, owner, sandbox),
            Cause::Musl => of_musl(&self.node, id, owner),
        }
    }
}

/// Looks at containers' files, one at a time: a mount of a container may never answer.
#[derive(Debug)]
enum Looks {
    /// None goes on.
    Idle(Files),
    /// One goes on, and returns what it found.
    Running(oneshot::Receiver<(Files, Unserved)>),
    /// The thread of the last one has ended without an answer.
    Failed,
}

impl Looks {
    /// Which of these have musl, if a look finds out within the limit. A look that takes longer goes on, and its result is the next one.
    async fn next(&mut self, shares: Vec<(DeviceId, DeviceOwner)>, limit: Duration) -> Option<Unserved> {
        let mut look = match std::mem::replace(self, Self::Failed) {
            Self::Idle(files) => start(files, shares),
            Self::Running(look) => look,
            Self::Failed => return None,
        };
        match timeout(limit, &mut look).await {
            Ok(Ok((files, found))) => {
                *self = Self::Idle(files);
                Some(found)
            }
            Ok(Err(_)) => {
                tracing::warn!("reading of containers' files failed; containers with musl are reported no more");
                None
            }
            Err(_) => {
                *self = Self::Running(look);
                None
            }
        }
    }
}

/// Reads on a thread of its own, for which the shutdown does not wait.
fn start(mut files: Files, shares: Vec<(DeviceId, DeviceOwner)>) -> oneshot::Receiver<(Files, Unserved)> {
    let (send, look) = oneshot::channel();
    let read = move || {
        let found = files.with_musl(shares);
        // the reporter may have ended
        let _ = send.send((files, found));
    };
    if let Err(error) = thread::Builder::new().name("container-files".to_owned()).spawn(read) {
        tracing::warn!(%error, "starting the thread for containers' files failed");
    }
    look
}

impl Files {
    /// Files of the containers with these cgroups, through the node's `/proc`.
    pub fn new(cgroups: Cgroups, proc_root: PathBuf) -> Self {
        Self { cgroups, proc_root, looked: BTreeMap::new() }
    }

    /// The containers with musl among these. Each is looked at twice, because it has the files of the node while its runtime starts it.
    fn with_musl(&mut self, shares: Vec<(DeviceId, DeviceOwner)>) -> Unserved {
        let folders = self.cgroups.of(shares.iter().map(|(_, owner)| owner), true);
        self.looked.retain(|folder, _| folders.values().flatten().any(|known| known == folder));
        for folder in folders.values().flatten() {
            let before = self.looked.get(folder).copied().unwrap_or_default();
            let root = || Some(self.proc_root.join(process_of(folder)?.to_string()).join("root"));
            if before.0 < 2
                && let Some(musl) = root().and_then(|root| is_musl(&root))
            {
                self.looked.insert(folder.clone(), (before.0 + 1, musl));
            }
        }
        let has_musl = |owner: &DeviceOwner| {
            let mut folders = folders.get(owner).into_iter().flatten();
            folders.any(|folder| self.looked.get(folder) == Some(&(2, true)))
        };
        shares.into_iter().filter(|(_, owner)| has_musl(owner)).map(|share| (share, Cause::Musl)).collect()
    }
}

/// Shares and their owners.
type Shares = BTreeMap<DeviceId, (Device, DeviceOwner)>;

/// The shares with a limit that a container has, where containers get the library.
fn owned(view: &DeviceView, kubelet: &KubeletView) -> Shares {
    if kubelet.limiters.shim != ShimState::Served {
        return Shares::new();
    }
    let limited = view.devices.iter().filter(|device| is_limited(device));
    let owned = limited.filter_map(|device| {
        let owner = kubelet.owners.get(&device.id)?;
        Some((device.id.clone(), (device.clone(), owner.clone())))
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Instant};

    use gputenancy_crds::SharingMode;
    use gputenancy_crds::projection::NodePod;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        device::{Limiters, Owners, Share},
        kubelet::node::{requests::PodRequests, runtime_classes::RuntimeClasses},
        mps::share::tests::device,
    };

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    /// Files of the container of pod `train-0`, of which a read waits until the file that is returned is written.
    fn hanging(root: &Path) -> (Files, PathBuf) {
        let id = "a".repeat(64);
        let (cgroup, logs) = (root.join("cgroup"), root.join("logs"));
        let folder = cgroup.join(format!("kubepods/pod1/{id}"));
        for path in [&folder, &logs] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(cgroup.join("cgroup.controllers"), "").unwrap();
        fs::write(logs.join(format!("train-0_team-a_main-{id}.log")), "").unwrap();
        let fifo = folder.join("cgroup.procs");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        (Files::new(Cgroups::new(vec![cgroup], logs), root.join("proc")), fifo)
    }

    #[tokio::test]
    async fn look_that_takes_long_is_waited_for_again() {
        let root = tempfile::tempdir().unwrap();
        let (files, fifo) = hanging(root.path());
        let shares = vec![(DeviceId::share("GPU-a", 0), owner("train-0"))];
        let mut looks = Looks::Idle(files);
        for _ in 0..2 {
            assert_eq!(looks.next(shares.clone(), Duration::from_millis(100)).await, None);
            assert!(matches!(looks, Looks::Running(_)));
        }
        // the look reads it, hence it opens at once
        fs::write(&fifo, "17\n").unwrap();
        assert_eq!(looks.next(shares, Duration::from_secs(10)).await, Some(Unserved::new()));
        assert!(matches!(looks, Looks::Idle(_)));
    }

    #[tokio::test]
    async fn sandboxes_are_reported_while_a_look_and_events_hang() {
        let root = tempfile::tempdir().unwrap();
        let (files, _fifo) = hanging(root.path());
        let limited = |number: i32| {
            let whole = device(number, SharingMode::Fraction, Some(1000), None);
            let share = whole.share.clone().map(|share| Share { limit_mib: Some(1000), ..share });
            Device { id: DeviceId::share("GPU-a", number), share, ..whole }
        };
        let devices: Vec<Device> = (0..3).map(limited).collect();
        let mut requests = PodRequests::default();
        for (pod, class) in [("train-0", None), ("boxed-0", Some("runsc")), ("boxed-1", Some("runsc"))] {
            let container = json!({"name": "main", "resources": {"limits": {"gputenancy.io/part": "1"}}});
            let pod: NodePod = serde_json::from_value(json!({
                "metadata": {"namespace": "team-a", "name": pod},
                "spec": {"containers": [container], "runtimeClassName": class},
            }))
            .unwrap();
            requests.apply(&pod, Instant::now());
        }
        let ids = devices.iter().map(|device| device.id.clone());
        let owners: Owners = ids.zip(["train-0", "boxed-0", "boxed-1"].map(owner)).collect();
        let limiters = Limiters { shim: ShimState::Served, ..Limiters::default() };
        let view = watch::Sender::new(DeviceView { devices, ..DeviceView::default() });
        let kubelet = watch::Sender::new(KubeletView { owners, limiters, ..KubeletView::default() });
        let (send, mut notices) = mpsc::unbounded_channel();
        let publish: Publish = std::sync::Arc::new(move |notice| {
            let _ = send.send(notice.regarding.name);
            Box::pin(std::future::pending())
        });
        let sandboxes = Sandboxes {
            handlers: ["runsc".to_owned()].into(),
            classes: watch::channel(Some(RuntimeClasses::default())).1,
            requests: watch::channel(Some(requests)).1,
            view: view.subscribe(),
            kubelet: kubelet.subscribe(),
        };
        let reporter = Reporter {
            view: view.subscribe(),
            kubelet: kubelet.subscribe(),
            sandboxes,
            publish,
            metrics: Metrics::default(),
            node: "gpu-1".into(),
        };
        tokio::spawn(reporter.run(files));
        for pod in ["boxed-0", "boxed-1"] {
            let notice = timeout(INTERVAL * 3, notices.recv()).await.unwrap();
            assert_eq!(notice.unwrap().as_deref(), Some(pod));
        }
    }

    #[test]
    fn container_with_musl_is_found_when_its_runtime_has_started_it() {
        let root = tempfile::tempdir().unwrap();
        let id = "a".repeat(64);
        let (cgroup, logs, proc_root) =
            (root.path().join("cgroup"), root.path().join("logs"), root.path().join("proc"));
        let (folder, files) = (cgroup.join(format!("kubepods/pod1/{id}")), proc_root.join("17/root/lib"));
        for path in [&folder, &logs, &files, &proc_root.join("17/root/lib64")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(cgroup.join("cgroup.controllers"), "").unwrap();
        fs::write(logs.join(format!("train-0_team-a_main-{id}.log")), "").unwrap();
        fs::write(folder.join("cgroup.procs"), "17\n").unwrap();
        let share = (DeviceId::share("GPU-a", 0), owner("train-0"));
        let cgroups = Cgroups::new(vec![cgroup], logs);
        let mut looks = Files::new(cgroups, proc_root.clone());
        // the runtime's own process has the files of the node
        fs::write(proc_root.join("17/root/lib64/libc.so.6"), "").unwrap();
        assert_eq!(looks.with_musl(vec![share.clone()]), Unserved::new());
        fs::remove_file(proc_root.join("17/root/lib64/libc.so.6")).unwrap();
        fs::write(files.join("ld-musl-x86_64.so.1"), "").unwrap();
        for _ in 0..3 {
            assert_eq!(looks.with_musl(vec![share.clone()]), [(share.clone(), Cause::Musl)].into());
        }
        assert_eq!(looks.with_musl(Vec::new()), Unserved::new());
        assert!(looks.looked.is_empty());
    }
}
