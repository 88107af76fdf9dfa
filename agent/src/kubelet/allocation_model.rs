//! The rules of allocation against every order of events: pods that start, end or are deleted with force, kubelet that forgets an
//! allocation, restarts of the agent, time. No device is used by two pods, and no share is handed out twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proptest::{prelude::*, sample::Index};

use super::{device_list::device_lists, journal::AllocationJournal, owner_lookup::without_owner, preferred};
use crate::{
    device::{Device, DeviceId, DeviceView, Owners},
    gpu::Connections,
    handover::{
        Withdrawal,
        occupied::{
            Evidence, occupied, requested_last,
            tests::{container, inventory, mig, origin, share, slice, whole},
        },
        withdrawal::{Processes, UNREPORTED_OWNER},
    },
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
    /// Kubelet forgets a pod and its process runs on: deleted with force, or kubernetes/kubernetes#137534.
    Forget(Index),
    /// A forgotten process ends.
    Kill(Index),
    /// The agent reads all processes and publishes its lists.
    Scan,
    /// The agent restarts, without its memory.
    Restart,
    /// So many seconds pass.
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => proptest::option::of(any::<Index>()).prop_map(Event::Allocate),
        5 => any::<Index>().prop_map(Event::Start),
        2 => any::<Index>().prop_map(Event::End),
        3 => any::<Index>().prop_map(Event::Forget),
        2 => any::<Index>().prop_map(Event::Kill),
        6 => Just(Event::Scan),
        1 => Just(Event::Restart),
        2 => (1..12_u64).prop_map(Event::Wait),
    ]
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
struct Node {
    now: Instant,
    next: u32,
    devices: Vec<Device>,
    // agent
    journal: AllocationJournal,
    withdrawal: Withdrawal,
    // kubelet: pods by device
    owners: BTreeMap<DeviceId, u32>,
    // driver: devices by process
    running: BTreeMap<u32, DeviceId>,
}

impl Node {
    fn new(devices: Vec<Device>) -> Self {
        let mut node = Self {
            now: Instant::now(),
            next: FIRST,
            devices,
            journal: AllocationJournal::default(),
            withdrawal: Withdrawal::default(),
            owners: BTreeMap::new(),
            running: BTreeMap::new(),
        };
        node.scan();
        node
    }

    fn kubelet_owners(&self) -> Owners {
        self.owners.iter().map(|(id, pid)| (id.clone(), container(&format!("p{pid}")))).collect()
    }

    fn processes(&self) -> Vec<(u32, Option<u32>)> {
        let gi = |id: &DeviceId| self.devices.iter().find(|d| d.id == *id)?.mig.as_ref().map(|m| m.gi);
        self.running.iter().map(|(pid, id)| (*pid, gi(id))).collect()
    }

    fn scan(&mut self) {
        let (mut devices, owners) = (self.devices.clone(), self.kubelet_owners());
        let processes = Processes { origin: &origin, start: &|pid| Some(pid.into()) };
        self.withdrawal.cordon(&mut devices, &inventory(&self.processes()), &owners, &processes, self.now);
        self.journal.set_devices(&devices);
        let view = DeviceView { devices, ..DeviceView::default() };
        self.journal.publish(R, device_lists(&view).get(R).unwrap());
        self.journal.confirm(owners.into_keys().collect(), self.now, self.now);
        self.journal.end_withdrawal();
    }

    /// As kubelet and the plugin do it; true if a pod got a device.
    fn allocate(&mut self, any: Option<Index>) -> bool {
        let owners = self.kubelet_owners();
        let listed = self.journal.published().remove(R).unwrap_or_default();
        let free: Vec<DeviceId> = listed.into_keys().filter(|id| !owners.contains_key(id)).collect();
        if free.is_empty() {
            return false;
        }
        let (all, inventory) = (self.journal.devices(), inventory(&self.processes()));
        let evidence = Evidence { inventory: &inventory, owners: &owners, origin: &origin };
        let users = |requested: &[DeviceId]| occupied(all.values(), &evidence, &requested_last(requested));
        let allocated = owners.keys().cloned().collect();
        let candidates = self.journal.candidates(&free, &allocated, &users(&[]).into_keys().collect());
        let chosen = any.map_or_else(
            || preferred::choose(&candidates, &[], 1, self.journal.policy(), &Connections::default()),
            |index| vec![index.get(&free).clone()],
        );
        let clean = without_owner(&chosen, &owners).is_ok() && !chosen.iter().any(|id| users(&chosen).contains_key(id));
        if !clean || self.journal.allocate(R, &chosen, self.now).is_err() {
            return false;
        }
        let before = self.owners.insert(chosen[0].clone(), self.next);
        assert_eq!(before, None, "{} has an owner", chosen[0]);
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
                    self.running.remove(&pid);
                }
            }
            Event::Forget(index) => {
                self.pod(*index).and_then(|(id, _)| self.owners.remove(&id));
            }
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
        node.owners.clear();
        node.running.clear();
        node.scan();
        node.now += UNREPORTED_OWNER;
        node.scan();
        let again = (0..count).filter(|_| node.allocate(None)).count();
        prop_assert_eq!(again, count);
    }
}
