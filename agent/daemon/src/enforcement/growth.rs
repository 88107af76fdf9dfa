//! Ledgers that their containers make larger. The file is in the node's `/run`, whose space kubelet and the container runtime need for each pod: a container
//! that fills it would keep all pods of the node from starting. No program of the library writes beyond the file, so the container is stopped at once.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::PathBuf,
    time::{Duration, Instant},
};

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons;
use gputenancy_ledger::paths::USAGE;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{sync::watch, time::timeout};

use super::ShareFiles;
use crate::{
    device::{Device, DeviceOwner, DeviceView, KubeletView},
    event::{self, Publish},
    gpu::processes::process_origin::{Origin, Origins},
};

/// Interval of the check: a container fills a `/run` of 256 MiB in milliseconds, so that this is how long it can stay full. A check is one `stat` for each
/// share with an owner.
const INTERVAL: Duration = Duration::from_millis(200);
/// A container that is restarted and does it again has one event in this time.
const QUIET: Duration = Duration::from_mins(5);
/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

/// Stops containers that make their ledger larger.
pub struct GrowthWatch {
    /// Folder of the shares' files.
    pub shares: PathBuf,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// Where processes come from.
    pub origins: Origins,
    /// Publishes events.
    pub publish: Publish,
    /// Name of the node.
    pub node: String,
}

impl GrowthWatch {
    /// Checks for as long as it is polled.
    pub async fn run(self) {
        let mut published: BTreeMap<DeviceOwner, Instant> = BTreeMap::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            for (device, owner) in self.larger() {
                let (origins, of) = (self.origins.clone(), owner.clone());
                // reading the files of thousands of processes blocks
                let killed = tokio::task::spawn_blocking(move || kill_container(&origins, &of)).await.unwrap_or(0);
                tracing::warn!(device = %device.id, namespace = owner.namespace, pod = owner.pod, container = owner.container, killed, "container stopped: it made its ledger larger");
                published.retain(|_, at| at.elapsed() < QUIET);
                let event = notice(&self.node, &device, &owner);
                if let Entry::Vacant(first) = published.entry(owner) {
                    first.insert(Instant::now());
                    tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(event)));
                }
            }
        }
    }

    /// Cuts back ledgers that are larger than they are made, and returns whose they are.
    fn larger(&self) -> Vec<(Device, DeviceOwner)> {
        let (view, kubelet) = (self.view.borrow(), self.kubelet.borrow());
        let owned = view.devices.iter().filter_map(|device| Some((device, kubelet.owners.get(&device.id)?)));
        let larger = owned.filter(|(device, _)| {
            ShareFiles::of(device, &self.shares).is_some_and(|files| files.cut_back().unwrap_or(false))
        });
        larger.map(|(device, owner)| (device.clone(), owner.clone())).collect()
    }
}

/// Kills all processes of a container; returns how many.
fn kill_container(origins: &Origins, container: &DeviceOwner) -> usize {
    let folders = std::fs::read_dir(&origins.proc_root).into_iter().flatten().map_while(Result::ok);
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
    let of_container = pids.filter(|pid| origins.of(*pid) == Origin::Pod(Some(container.clone())));
    let killed = of_container
        .filter(|pid| i32::try_from(*pid).is_ok_and(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()));
    killed.count()
}

fn notice(node: &str, device: &Device, owner: &DeviceOwner) -> Notice {
    Notice {
        regarding: event::pod(owner),
        event_type: EventType::Warning,
        reason: reasons::MEMORY_LIMIT_BYPASSED,
        action: "Stop".to_owned(),
        note: format!(
            "container {} made {USAGE}, the file that counts the memory of share {} of node {node}, larger, which takes space of the node that all pods need: it is stopped each time; let no program write to that file",
            owner.container, device.id,
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command},
        sync::{Arc, Mutex},
    };

    use gputenancy_crds::SharingMode;

    use super::*;
    use crate::{mps::share::tests::device, seen_pods::SeenPods};

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// A process that `/proc` of the test shows as one of this container.
    fn process(origins: &Origins, id: &str) -> Child {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let folder = origins.proc_root.join(child.id().to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("stat"), format!("{} (sleep) S 1", child.id())).unwrap();
        let cgroup = format!("0::/kubepods/podb6f3a9c2-0000-4000-8000-000000000001/{id}\n");
        std::fs::write(folder.join("cgroup"), cgroup).unwrap();
        child
    }

    #[tokio::test]
    async fn container_that_makes_its_ledger_larger_is_stopped_and_its_neighbour_is_not() {
        let root = tempfile::tempdir().unwrap();
        let origins =
            Origins { proc_root: root.path().join("proc"), logs: root.path().join("logs"), pods: SeenPods::default() };
        std::fs::create_dir_all(&origins.logs).unwrap();
        let other = ID.replace('0', "f");
        for (pod, id) in [("evil", ID), ("good", other.as_str())] {
            std::fs::write(origins.logs.join(format!("{pod}_team_main-{id}.log")), "").unwrap();
        }
        let (mut evil, mut good) = (process(&origins, ID), process(&origins, &other));
        let owner = |pod: &str| DeviceOwner { namespace: "team".into(), pod: pod.into(), container: "main".into() };
        let limited = |number| {
            let device = device(number, SharingMode::Fraction, Some(10), None);
            let share = crate::device::Share { limit_mib: Some(10), ..device.share.clone().unwrap() };
            Device { id: crate::device::DeviceId::share("GPU-a", number), share: Some(share), ..device }
        };
        let devices = vec![limited(0), limited(1)];
        let files: Vec<ShareFiles> =
            devices.iter().map(|device| ShareFiles::of(device, root.path()).unwrap()).collect();
        for (files, device) in files.iter().zip(&devices) {
            files.renew(device).unwrap();
        }
        let owners = [(devices[0].id.clone(), owner("evil")), (devices[1].id.clone(), owner("good"))];
        let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let published = notices.clone();
        let watch = GrowthWatch {
            shares: root.path().into(),
            view: watch::channel(DeviceView { devices, ..DeviceView::default() }).1,
            kubelet: watch::channel(KubeletView { owners: owners.into(), ..KubeletView::default() }).1,
            origins,
            publish: Arc::new(move |notice| {
                published.lock().unwrap().push(notice);
                Box::pin(async {})
            }),
            node: "n".into(),
        };
        let usage = files[0].usage.clone();
        let size = std::fs::metadata(&usage).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&usage).unwrap().set_len(size + 1).unwrap();
        let watching = tokio::spawn(watch.run());
        while notices.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        watching.abort();
        assert!(!evil.wait().unwrap().success());
        assert_eq!(std::fs::metadata(&usage).unwrap().len(), size);
        assert!(good.try_wait().unwrap().is_none(), "the neighbour runs on");
        good.kill().unwrap();
        good.wait().unwrap();
        let notices = notices.lock().unwrap();
        assert_eq!(notices.len(), 1);
        assert!(notices[0].note.contains(USAGE), "{}", notices[0].note);
    }
}
