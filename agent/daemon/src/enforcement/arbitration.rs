//! The loop of the compute limits: it relays between the shares of a GPU what each has run, grants idle time, and suspends the compute of pods.
//!
//! [`gputenancy_ledger::Arbiter`] decides; the files say which containers want what, and [`PodCompute`] what pods ask for.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{names::SUSPEND_COMPUTE, projection::NodePod, reasons};
use gputenancy_ledger::{Arbiter, Arbitrated, Limits, Mapped, Member, Usage, now};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::ShareFiles;
use crate::{
    device::{Device, DeviceOwner, DeviceView, KubeletView, Owners},
    event::{self, Publish},
    metrics::{ComputeFigures, Metrics},
    seen_pods::{PodName, pod_name},
};

/// Between two rounds while several shares of a GPU have work, or one has more than its part: its neighbours wait as long at most until it is taken back.
const BUSY: Duration = Duration::from_millis(2);
/// Between two rounds while one share of each GPU has work.
const ALONE: Duration = Duration::from_millis(20);
/// Between two rounds while nothing has work.
const IDLE: Duration = Duration::from_millis(50);
/// Between two updates of members, suspensions and metrics.
const UPDATE: Duration = Duration::from_secs(1);
/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

/// What pods of this node ask for their compute, without those that ask for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodCompute(BTreeMap<PodName, Wish>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wish {
    /// Value of the pod's `PriorityClass`.
    priority: i32,
    suspended: bool,
}

impl PodCompute {
    /// Records a pod; true if what it asks for changed.
    pub fn apply(&mut self, pod: &NodePod) -> bool {
        let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(SUSPEND_COMPUTE));
        let wish = Wish {
            priority: pod.spec.priority.unwrap_or(0),
            suspended: annotation.is_some_and(|value| value == "true"),
        };
        if wish == Wish::default() {
            return self.delete(pod);
        }
        self.0.insert(pod_name(pod), wish) != Some(wish)
    }

    /// Removes a pod; true if it was recorded.
    pub fn delete(&mut self, pod: &NodePod) -> bool {
        self.0.remove(&pod_name(pod)).is_some()
    }

    fn of(&self, owner: &DeviceOwner) -> Wish {
        self.0.get(&(owner.namespace.clone(), owner.pod.clone())).copied().unwrap_or_default()
    }
}

/// Arbitrates the shares of a node.
pub struct Arbitration {
    /// Folder of the shares' files.
    pub shares: PathBuf,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// What pods ask for; `None` before the first list of all pods.
    pub pods: watch::Receiver<Option<PodCompute>>,
    /// Publishes events.
    pub publish: Publish,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Name of the node.
    pub node: String,
}

/// A share with a container.
#[derive(Debug, Clone, PartialEq)]
struct Seat {
    device: Device,
    owner: DeviceOwner,
    files: ShareFiles,
    /// What its pod asks for; `None` before that is known.
    wish: Option<Wish>,
}

impl Seat {
    /// It takes part, if it has a part of the time.
    fn member(&self) -> Option<Member> {
        let pace = self.device.share.as_ref()?.pace?;
        let ShareFiles { limits, usage } = self.files.clone();
        Some(Member { limits, usage, pace, priority: self.wish.unwrap_or_default().priority })
    }
}

/// The shares of one GPU that have a part of its time.
struct Gpu {
    seats: Vec<Seat>,
    arbiter: Arbiter,
    found: Arbitrated,
}

impl Arbitration {
    /// Arbitrates for as long as it is polled.
    pub async fn run(mut self) {
        let mut gpus: BTreeMap<String, Gpu> = BTreeMap::new();
        let mut updated: Option<Instant> = None;
        loop {
            let changed = [
                self.view.has_changed().unwrap_or(false),
                self.kubelet.has_changed().unwrap_or(false),
                self.pods.has_changed().unwrap_or(false),
            ];
            if changed.contains(&true) || updated.is_none_or(|at| at.elapsed() >= UPDATE) {
                let seats = self.seats();
                let suspended = self.suspend(&seats);
                self.metrics.set_compute(figures(&gpus, &seats, &suspended));
                update(&mut gpus, seats);
                updated = Some(Instant::now());
            }
            for gpu in gpus.values_mut() {
                gpu.found = gpu.arbiter.arbitrate(now());
            }
            sleep(pause(gpus.values().map(|gpu| &gpu.found))).await;
        }
    }

    /// The shares that containers have.
    fn seats(&mut self) -> Vec<Seat> {
        let (view, kubelet) = (self.view.borrow_and_update(), self.kubelet.borrow_and_update());
        seats(&view.devices, &kubelet.owners, self.pods.borrow_and_update().as_ref(), &self.shares)
    }

    /// Suspends and resumes; returns for each share whether it is suspended. As long as the pods are not known, such as after a restart of the
    /// agent, each share stays as it is.
    fn suspend(&self, seats: &[Seat]) -> Vec<bool> {
        let apply = |seat: &Seat| {
            // before the container has its files there is nothing to suspend
            let Ok(limits) = Mapped::<Limits>::open(&seat.files.limits) else { return false };
            let suspended = limits.is_suspended();
            let wanted = seat.wish.map_or(suspended, |wish| wish.suspended);
            if suspended == wanted {
                return wanted;
            }
            let Ok(limits) = Mapped::<Limits>::open_writable(&seat.files.limits) else { return !wanted };
            limits.set_suspended(wanted);
            let Seat { device, owner, .. } = seat;
            tracing::info!(device = %device.id, namespace = owner.namespace, pod = owner.pod, suspended = wanted, "compute of a share suspended or resumed");
            tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(notice(&self.node, seat, wanted))));
            wanted
        };
        seats.iter().map(apply).collect()
    }
}

fn seats(devices: &[Device], owners: &Owners, pods: Option<&PodCompute>, folder: &Path) -> Vec<Seat> {
    let seat = |device: &Device| {
        let owner = owners.get(&device.id)?.clone();
        let files = ShareFiles::of(device, folder)?;
        Some(Seat { device: device.clone(), wish: pods.map(|pods| pods.of(&owner)), owner, files })
    };
    devices.iter().filter_map(seat).collect()
}

/// The GPUs with these shares. What is known of a share stays as long as a container has it.
fn update(gpus: &mut BTreeMap<String, Gpu>, seats: Vec<Seat>) {
    let mut of_gpu: BTreeMap<String, Vec<Seat>> = BTreeMap::new();
    for seat in seats.into_iter().filter(|seat| seat.member().is_some()) {
        of_gpu.entry(seat.device.gpu_uuid.clone()).or_default().push(seat);
    }
    gpus.retain(|gpu, _| of_gpu.contains_key(gpu));
    for (uuid, seats) in of_gpu {
        let members = || seats.iter().filter_map(Seat::member);
        match gpus.get_mut(&uuid) {
            Some(gpu) if gpu.seats == seats => {}
            Some(gpu) => {
                gpu.arbiter.update(members());
                gpu.seats = seats;
            }
            None => {
                let arbiter = Arbiter::new(members());
                gpus.insert(uuid, Gpu { seats, arbiter, found: Arbitrated::default() });
            }
        }
    }
}

/// Time until the next round.
fn pause<'a>(found: impl Iterator<Item = &'a Arbitrated>) -> Duration {
    let (busy, active) = found.fold((false, false), |(busy, active), found| {
        (busy || found.active > 1 || found.granted, active || found.active > 0)
    });
    match (busy, active) {
        (true, _) => BUSY,
        (false, true) => ALONE,
        (false, false) => IDLE,
    }
}

/// What the metrics show. Shares without a limit of their time can be suspended as well.
fn figures<'a>(
    gpus: &'a BTreeMap<String, Gpu>,
    seats: &'a [Seat],
    suspended: &'a [bool],
) -> impl Iterator<Item = ComputeFigures<'a>> {
    let arbitrated = |seat: &Seat| {
        let gpu = gpus.get(&seat.device.gpu_uuid)?;
        let at = gpu.seats.iter().position(|known| known.device.id == seat.device.id && known.owner == seat.owner)?;
        Some((*gpu.found.percents.get(at)?, *gpu.found.delayed.get(at)?))
    };
    seats.iter().zip(suspended).map(move |(seat, suspended)| {
        let found = arbitrated(seat);
        ComputeFigures {
            device: &seat.device,
            owner: &seat.owner,
            percent: found.map(|(percent, _)| percent),
            delayed: found.map(|(_, delayed)| Duration::from_nanos(delayed)),
            suspended: *suspended,
        }
    })
}

/// The event for the team whose pod is suspended or resumed.
fn notice(node: &str, Seat { device, owner, files, .. }: &Seat, suspended: bool) -> Notice {
    let (container, share) = (&owner.container, &device.id);
    let (reason, text) = if !suspended {
        let text = format!("container {container}: kernels are launched again on share {share} of node {node}");
        (reasons::COMPUTE_RESUMED, text)
    } else if Mapped::<Usage>::can_suspend(&files.usage) {
        let text = format!(
            "container {container}: no kernel is launched on share {share} of node {node} while annotation {SUSPEND_COMPUTE} is true; its memory stays allocated, and kernels that run go on to their end; remove the annotation to resume"
        );
        (reasons::COMPUTE_SUSPENDED, text)
    } else {
        // it has launched nothing, has no limit of its time, or has the library of an earlier release
        let text = format!(
            "container {container}: new launches on share {share} of node {node} wait while annotation {SUSPEND_COMPUTE} is true, but a program that started under an earlier release goes on to launch; restart the pod to stop such a program; remove the annotation to resume"
        );
        (reasons::COMPUTE_SUSPENDED, text)
    };
    Notice {
        regarding: event::pod(owner),
        event_type: EventType::Normal,
        reason,
        action: "Report".to_owned(),
        note: text,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use gputenancy_crds::SharingMode;
    use gputenancy_ledger::Pace;
    use serde_json::json;

    use super::*;
    use crate::{device::Share, mps::share::tests::device};

    fn fraction(number: i32, percent: u64) -> Device {
        let device = device(number, SharingMode::Fraction, Some(10), Some(30));
        let pace = Some(Pace { percent, turn: None, burst: true });
        Device { share: device.share.map(|share| Share { limit_mib: Some(10), pace, ..share }), ..device }
    }

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    fn pod(name: &str, priority: i32, suspended: Option<&str>) -> NodePod {
        let annotations: BTreeMap<_, _> = suspended.map(|value| (SUSPEND_COMPUTE, value)).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "team-a", "name": name, "annotations": annotations},
            "spec": {"containers": [], "priority": priority},
        }))
        .unwrap()
    }

    #[test]
    fn pods_ask_by_priority_class_and_annotation() {
        let mut pods = PodCompute::default();
        assert!(!pods.apply(&pod("one", 0, Some("no"))), "nothing");
        assert!(pods.apply(&pod("one", 1000, Some("true"))) && !pods.apply(&pod("one", 1000, Some("true"))));
        assert_eq!(pods.of(&owner("one")), Wish { priority: 1000, suspended: true });
        assert!(pods.apply(&pod("one", 0, None)) && pods == PodCompute::default());
        assert!(pods.apply(&pod("one", -5, None)) && pods.delete(&pod("one", -5, None)));
        assert_eq!(pods.of(&owner("one")), Wish::default());
    }

    #[tokio::test]
    async fn compute_is_suspended_and_resumed_with_one_event_each() {
        let root = tempfile::tempdir().unwrap();
        let share = fraction(0, 30);
        ShareFiles::of(&share, root.path()).unwrap().ensure(&share).unwrap();
        let (view, kubelet) = (watch::Sender::<DeviceView>::default(), watch::Sender::<KubeletView>::default());
        view.send_modify(|view| view.devices = vec![share.clone(), fraction(1, 40)]);
        let owners = [(share.id.clone(), owner("one"))];
        kubelet.send_modify(|kubelet| kubelet.owners = owners.into_iter().collect());
        let (pods, notes) = (watch::Sender::<Option<PodCompute>>::default(), Arc::new(Mutex::new(Vec::new())));
        let published = notes.clone();
        let mut arbitration = Arbitration {
            shares: root.path().to_owned(),
            view: view.subscribe(),
            kubelet: kubelet.subscribe(),
            pods: pods.subscribe(),
            publish: Arc::new(move |notice: Notice| {
                published.lock().unwrap().push((notice.reason.to_string(), notice.note));
                Box::pin(async {})
            }),
            metrics: Metrics::default(),
            node: "gpu-1".into(),
        };
        let limits = Mapped::<Limits>::open(&root.path().join("GPU-a/0/limits")).unwrap();
        let mut round = |wish: Option<&str>| {
            pods.send_modify(|pods| {
                pods.get_or_insert_default().apply(&pod("one", 0, wish));
            });
            let seats = arbitration.seats();
            assert_eq!(arbitration.suspend(&seats), [wish == Some("true")]);
            limits.is_suspended()
        };
        let usage = Mapped::<Usage>::open(&root.path().join("GPU-a/0/usage")).unwrap();
        usage.want(1);
        let states = [None, Some("true"), Some("true"), None].map(&mut round);
        assert_eq!(states, [false, true, true, false]);
        // nothing shows that its library can suspend launches
        usage.want(0);
        assert!(round(Some("true")));
        let notes = notes.lock().unwrap().clone();
        let reasons: Vec<&str> = notes.iter().map(|(reason, _)| reason.as_str()).collect();
        assert_eq!(reasons, ["ComputeSuspended", "ComputeResumed", "ComputeSuspended"]);
        insta::assert_snapshot!(notes[2].1, @"container main: new launches on share GPU-a::0 of node gpu-1 wait while annotation gputenancy.io/suspend-compute is true, but a program that started under an earlier release goes on to launch; restart the pod to stop such a program; remove the annotation to resume");
        insta::assert_snapshot!(notes[0].1, @"container main: no kernel is launched on share GPU-a::0 of node gpu-1 while annotation gputenancy.io/suspend-compute is true; its memory stays allocated, and kernels that run go on to their end; remove the annotation to resume");
    }

    #[tokio::test]
    async fn suspended_share_stays_suspended_until_the_pods_are_known() {
        let root = tempfile::tempdir().unwrap();
        let share = fraction(0, 30);
        ShareFiles::of(&share, root.path()).unwrap().ensure(&share).unwrap();
        let limits = Mapped::<Limits>::open_writable(&root.path().join("GPU-a/0/limits")).unwrap();
        limits.set_suspended(true);
        let owners = [(share.id.clone(), owner("one"))].into_iter().collect();
        let view = watch::Sender::new(DeviceView { devices: vec![share], ..DeviceView::default() });
        let kubelet = watch::Sender::new(KubeletView { owners, ..KubeletView::default() });
        let (pods, events) = (watch::Sender::<Option<PodCompute>>::default(), Arc::new(Mutex::new(0)));
        let published = events.clone();
        let mut arbitration = Arbitration {
            shares: root.path().to_owned(),
            view: view.subscribe(),
            kubelet: kubelet.subscribe(),
            pods: pods.subscribe(),
            publish: Arc::new(move |_| {
                *published.lock().unwrap() += 1;
                Box::pin(async {})
            }),
            metrics: Metrics::default(),
            node: "gpu-1".into(),
        };
        let mut round = || {
            let seats = arbitration.seats();
            (arbitration.suspend(&seats), limits.is_suspended(), *events.lock().unwrap())
        };
        assert_eq!(round(), (vec![true], true, 0));
        limits.set_suspended(false);
        assert_eq!(round(), (vec![false], false, 0));
        limits.set_suspended(true);
        pods.send_replace(Some(PodCompute::default()));
        assert_eq!(round(), (vec![false], false, 1));
    }

    #[test]
    fn shares_of_a_gpu_are_arbitrated_and_shown() {
        let root = tempfile::tempdir().unwrap();
        let devices = [fraction(0, 30), fraction(1, 40)];
        for device in &devices {
            ShareFiles::of(device, root.path()).unwrap().ensure(device).unwrap();
        }
        let owners: Owners = [0, 1].map(|at: usize| (devices[at].id.clone(), owner(&at.to_string()))).into();
        let seats = || seats(&devices, &owners, Some(&PodCompute::default()), root.path());
        let mut gpus = BTreeMap::new();
        update(&mut gpus, seats());
        let gpu = gpus.get_mut("GPU-a").unwrap();
        assert_eq!(pause(std::iter::once(&gpu.arbiter.arbitrate(now()))), IDLE);
        let usage = Mapped::<Usage>::open(&root.path().join("GPU-a/1/usage")).unwrap();
        usage.want(now());
        usage.count_delay(1_500_000_000);
        gpu.found = gpu.arbiter.arbitrate(now());
        assert_eq!(gpu.found.percents, [30, 100]);
        assert_eq!(pause(std::iter::once(&gpu.found)), BUSY);
        let metrics = Metrics::default();
        metrics.set_compute(figures(&gpus, &seats(), &[false, true]));
        let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
        let labels = r#"{gpu="GPU-a",share="GPU-a::1",resource="gputenancy.io/mps",namespace="team-a",pod="1",container="main"}"#;
        for (name, value) in [("compute_percent", "100"), ("launch_delay_seconds", "1.5"), ("compute_suspended", "1")] {
            let line = format!("gputenancy_agent_share_{name}{labels} {value}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
        // the container of one is gone
        let rest: Vec<Seat> = seats().into_iter().take(1).collect();
        update(&mut gpus, rest);
        assert_eq!(gpus["GPU-a"].seats.len(), 1);
        update(&mut gpus, Vec::new());
        assert!(gpus.is_empty());
    }
}
