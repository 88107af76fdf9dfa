//! The rules of allocation against every order of events: pods that start, end or are deleted with force, kubelet that forgets an
//! allocation, restarts of the agent and of kubelet with and without its checkpoint, sources that answer with nothing because they have just
//! started, time. No device is used by two pods, no share is handed out twice, and no device of a running pod is withdrawn.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::{prelude::*, sample::Index};

use super::{
    device_list::{DeviceList, device_lists},
    plugin::{journal::AllocationJournal, owner_lookup::without_owner, preferred},
};
use crate::{
    device::{Device, DeviceId, DeviceView, Owners},
    gpu::{Connections, Inventory},
    handover::{
        Withdrawal,
        check::free as unoccupied,
        occupied::{
            Evidence, occupied, requested_last,
            tests::{container, inventory, mig, origin, share, slice, whole},
        },
        withdrawal::{Processes, UNREPORTED_OWNER},
    },
    refusal::Refusal,
    seen_pods::PodName,
    warm_up::{DevicePods, WarmUp, absent},
};

/// Resource of all devices.
const R: &str = "r";
/// Id of the first process. A pod has one process, and the name of the pod has its id.
const FIRST: u32 = 10;

#[derive(Debug, Clone)]
enum Event {
    /// Kubelet allocates a device to a new pod: any that it may, or without an index the preferred one.
    Allocate(Option<Index>),
    /// A pod with a device starts its process.
    Start(Index),
    /// A pod ends, and kubelet forgets it.
    End(Index),
    /// A pod is deleted with force, and its process runs on.
    Forget(Index),
    /// Kubelet forgets the device of a pod that runs: kubernetes/kubernetes#137534.
    Drop(Index),
    /// Kubelet restarts: it reports no owners until it is ready, and without its checkpoint those of before never again.
    RestartKubelet { checkpoint: bool },
    /// Kubelet, the API server and NVML have answered completely.
    Ready,
    /// NVML lists its GPUs, and no process on them until it is ready.
    NoProcesses,
    /// The driver is loaded again: NVML lists no GPU until it is ready.
    ReloadDriver,
    /// A forgotten process ends.
    Kill(Index),
    /// The agent reads all processes and publishes its lists.
    Scan,
    /// The agent restarts, without its memory: it has not listed the pods yet.
    Restart,
    /// So many seconds pass.
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => proptest::option::of(any::<Index>()).prop_map(Event::Allocate),
        5 => any::<Index>().prop_map(Event::Start),
        2 => any::<Index>().prop_map(Event::End),
        2 => any::<Index>().prop_map(Event::Forget),
        1 => any::<Index>().prop_map(Event::Drop),
        2 => any::<bool>().prop_map(|checkpoint| Event::RestartKubelet { checkpoint }),
        4 => Just(Event::Ready),
        1 => Just(Event::ReloadDriver),
        2 => any::<Index>().prop_map(Event::Kill),
        6 => Just(Event::Scan),
        1 => Just(Event::Restart),
        2 => (1..12_u64).prop_map(Event::Wait),
    ]
}

/// As [`event`], also with NVML's lists of processes empty. A process of a pod that was deleted with force is known from nothing else, so the device of such
/// a pod may be handed out.
fn event_or_no_processes() -> impl Strategy<Value = Event> {
    prop_oneof![8 => event(), 1 => Just(Event::NoProcesses)]
}

fn devices() -> impl Strategy<Value = Vec<Device>> {
    prop_oneof![
        (1..8_u32).prop_map(|n| (0..n).map(mig).collect()),
        Just(vec![whole()]),
        (2..6_i32).prop_map(|n| (0..n).map(share).collect()),
        (1..4_u32, 2..4_i32).prop_map(|(n, of)| (0..n).flat_map(|gi| (0..of).map(move |k| slice(gi, k))).collect()),
    ]
}

/// One node: its agent, its kubelet and the processes on its GPU.
#[allow(clippy::struct_excessive_bools, reason = "each is the state of one source")]
struct Node {
    now: Instant,
    next: u32,
    devices: Vec<Device>,
    // agent
    journal: AllocationJournal,
    withdrawal: Withdrawal,
    warm_up: WarmUp,
    /// The agent has listed the pods.
    listed: bool,
    /// Owners in its status.
    reported: Owners,
    // kubelet: pods by device, as it knows them
    known: BTreeMap<DeviceId, u32>,
    /// It has read its checkpoint and its pods.
    ready: bool,
    // API server: pods with their device
    owners: BTreeMap<DeviceId, u32>,
    // driver: devices by process, and whether it lists its GPU
    running: BTreeMap<u32, DeviceId>,
    loaded: bool,
    /// It lists processes.
    lists_processes: bool,
}

/// Pods that have one device each.
struct Pods<'a>(&'a BTreeMap<DeviceId, u32>);

impl DevicePods for Pods<'_> {
    fn uid(&self, pod: &PodName) -> Option<&str> {
        // the name has the id of the process, which no other pod gets
        self.0.values().any(|pid| pod.1 == format!("p{pid}")).then_some("uid")
    }

    fn amount(&self, pod: &PodName) -> u64 {
        u64::from(self.uid(pod).is_some())
    }

    fn is_admitted(&self, pod: &PodName) -> bool {
        self.uid(pod).is_some()
    }
}

impl Node {
    fn new(devices: Vec<Device>) -> Self {
        let mut node = Self {
            now: Instant::now(),
            next: FIRST,
            devices,
            journal: AllocationJournal::default(),
            withdrawal: Withdrawal::default(),
            warm_up: WarmUp::default(),
            listed: true,
            reported: Owners::new(),
            known: BTreeMap::new(),
            ready: true,
            owners: BTreeMap::new(),
            running: BTreeMap::new(),
            loaded: true,
            lists_processes: true,
        };
        node.scan();
        node
    }

    /// Kubelet's answer as the agent believes it.
    fn believed_owners(&self) -> Owners {
        let owner = |(id, pid): (&DeviceId, &u32)| (id.clone(), container(&format!("p{pid}")));
        let answer = self.known.iter().filter(|_| self.ready).map(owner).collect();
        self.warm_up.owners(answer, self.listed.then_some(&Pods(&self.owners)), self.now)
    }

    fn inventory(&self) -> Inventory {
        if self.loaded { inventory(&self.processes()) } else { Inventory::default() }
    }

    fn processes(&self) -> Vec<(u32, Option<u32>)> {
        let gi = |id: &DeviceId| self.devices.iter().find(|d| d.id == *id)?.mig.as_ref().map(|m| m.gi);
        self.running.iter().filter(|_| self.lists_processes).map(|(pid, id)| (*pid, gi(id))).collect()
    }

    fn scan(&mut self) {
        let (inventory, owners) = (self.inventory(), self.believed_owners());
        let before: Vec<Device> = self.journal.devices().into_values().collect();
        let listed = self.devices.iter().filter(|device| inventory.gpu(&device.gpu_uuid).is_some()).cloned();
        let mut devices: Vec<Device> = listed.chain(absent(&before, &inventory, Some(&owners))).collect();
        let processes = Processes { origin: &origin, start: &|pid| Some(pid.into()) };
        self.withdrawal.cordon(&mut devices, &inventory, &owners, &processes, self.now);
        self.journal.set_devices(&devices);
        let view = DeviceView { devices, ..DeviceView::default() };
        self.journal.publish(R, device_lists(&view).get(R).unwrap_or(&DeviceList::new()));
        self.journal.confirm(owners.keys().cloned().collect(), self.now, self.now);
        self.journal.end_withdrawal();
        self.reported = owners;
    }

    /// As kubelet and the plugin do it; true if a pod got a device.
    fn allocate(&mut self, any: Option<Index>) -> bool {
        let owners = self.believed_owners();
        let listed = self.journal.published().remove(R).unwrap_or_default();
        let healthy = listed.into_iter().filter(|(_, device)| device.healthy).map(|(id, _)| id);
        let free: Vec<DeviceId> = healthy.filter(|id| !self.known.contains_key(id)).collect();
        // kubelet admits no new pod before it is ready
        if free.is_empty() || !self.ready || !self.loaded {
            return false;
        }
        let (all, inventory) = (self.journal.devices(), self.inventory());
        let evidence = Evidence { inventory: &inventory, owners: &owners, origin: &origin };
        let users = |requested: &[DeviceId]| occupied(all.values(), &evidence, &requested_last(requested));
        let found = |users: BTreeSet<DeviceId>| {
            self.journal.found_free(unoccupied(&all, &owners, &users), Arc::default(), self.now);
            users
        };
        let candidates = if self.journal.known_free(&free, self.now).is_some() {
            self.journal.candidates(&free, &BTreeSet::new(), &BTreeSet::new())
        } else {
            let occupied = found(users(&[]).into_keys().collect());
            self.journal.candidates(&free, &owners.keys().cloned().collect(), &occupied)
        };
        let chosen = any.map_or_else(
            || preferred::choose(&candidates, &[], 1, self.journal.policy(), &Connections::default()),
            |index| vec![index.get(&free).clone()],
        );
        let allocated = self.journal.allocate_free(R, &chosen, self.now).unwrap_or_else(|| {
            without_owner(&chosen, &owners)?;
            let occupied = found(users(&chosen).into_keys().collect());
            match chosen.iter().find(|id| occupied.contains(*id)) {
                Some(id) => Err(Refusal::InUse { id: id.clone(), process: String::new() }),
                None => self.journal.allocate(R, &chosen, self.now),
            }
        });
        if allocated.is_err() {
            return false;
        }
        let before = self.owners.insert(chosen[0].clone(), self.next);
        assert_eq!(before, None, "{} has an owner", chosen[0]);
        self.known.insert(chosen[0].clone(), self.next);
        self.next += 1;
        true
    }

    /// A pod that has a device.
    fn pod(&self, index: Index) -> Option<(DeviceId, u32)> {
        let pods: Vec<_> = self.owners.iter().map(|(id, pid)| (id.clone(), *pid)).collect();
        (!pods.is_empty()).then(|| index.get(&pods).clone())
    }

    fn forgotten(&self) -> Vec<u32> {
        self.running.keys().filter(|pid| !self.owners.values().any(|owner| owner == *pid)).copied().collect()
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Allocate(any) => drop(self.allocate(*any)),
            Event::Start(index) => self.running.extend(self.pod(*index).map(|(id, pid)| (pid, id))),
            Event::End(index) => {
                if let Some((id, pid)) = self.pod(*index) {
                    self.owners.remove(&id);
                    self.known.remove(&id);
                    self.running.remove(&pid);
                }
            }
            Event::Forget(index) => {
                if let Some((id, _)) = self.pod(*index) {
                    self.owners.remove(&id);
                    self.known.remove(&id);
                }
            }
            Event::Drop(index) => {
                self.scan();
                self.pod(*index).and_then(|(id, _)| self.known.remove(&id));
            }
            Event::RestartKubelet { checkpoint } => {
                // the agent queries kubelet each 100 ms while a pod starts
                self.scan();
                self.ready = false;
                if !checkpoint {
                    self.known.clear();
                }
            }
            Event::ReloadDriver => {
                self.running.clear();
                self.loaded = false;
            }
            Event::Ready => {
                (self.ready, self.listed, self.loaded, self.lists_processes) = (true, true, true, true);
            }
            Event::NoProcesses => (self.loaded, self.lists_processes) = (true, false),
            Event::Kill(index) => {
                let forgotten = self.forgotten();
                if !forgotten.is_empty() {
                    self.running.remove(index.get(&forgotten));
                }
            }
            Event::Scan => self.scan(),
            Event::Restart => {
                self.journal = AllocationJournal::default();
                self.withdrawal = Withdrawal::default();
                (self.warm_up, self.listed) = (WarmUp::default(), false);
                self.warm_up.recall(std::mem::take(&mut self.reported));
                self.scan();
            }
            Event::Wait(seconds) => self.now += Duration::from_secs(*seconds),
        }
    }

    /// Pods that own or use a device, by device; all shares are one, because the driver does not tell them apart.
    fn users(&self) -> BTreeMap<&str, BTreeSet<u32>> {
        let mut users: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        let owners = self.owners.iter().map(|(id, pid)| (id, *pid));
        for (id, pid) in owners.chain(self.running.iter().map(|(pid, id)| (id, *pid))) {
            users.entry(id.uuid()).or_default().insert(pid);
        }
        users
    }

    /// The agent lists the devices of all pods that it has seen and that exist, as healthy unless NVML does not list their GPU. A new agent knows no device of
    /// a GPU that NVML does not list.
    fn keeps_devices(&self) -> Result<(), TestCaseError> {
        let (published, devices) = (self.journal.published(), self.journal.devices());
        for (id, pid) in self.owners.iter().filter(|(id, _)| self.reported.contains_key(*id)) {
            let listed = published.get(R).and_then(|list| list.get(id));
            if self.loaded || devices.contains_key(id) {
                prop_assert!(listed.is_some_and(|device| device.healthy == self.loaded), "{id} of p{pid}: {listed:?}");
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (uuid, pods) in self.users() {
            let devices = self.devices.iter().filter(|device| device.id.uuid() == uuid).count();
            prop_assert!(pods.len() <= devices, "{uuid}: {devices} devices for pods {pods:?}");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_device_is_given_to_two_pods_in_any_order_of_events(
        devices in devices(),
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let count = devices.len();
        let mut node = Node::new(devices);
        for event in &events {
            node.apply(event);
            node.check()?;
        }
        // once all have ended, every device can be allocated again
        node.apply(&Event::Ready);
        node.owners.clear();
        node.known.clear();
        node.running.clear();
        node.scan();
        node.now += UNREPORTED_OWNER;
        node.scan();
        let again = (0..count).filter(|_| node.allocate(None)).count();
        prop_assert_eq!(again, count);
    }

    #[test]
    fn empty_answers_of_any_source_withdraw_no_device_of_a_running_pod(
        devices in devices(),
        events in proptest::collection::vec(event_or_no_processes(), 1..60),
    ) {
        let mut node = Node::new(devices);
        for event in &events {
            node.apply(event);
            node.scan();
            node.keeps_devices()?;
        }
    }
}
