//! Simulation of a kubelet that drops allocations in progress, as its device manager does, and of pods that start and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_crds::AllocationPolicy;
use proptest::prelude::*;

use super::*;
use crate::{
    device::{Device, DeviceOwner},
    gpu::Connections,
    kubelet::{device_list::ListedDevice, plugin::preferred},
};

const R: &str = "nvidia.com/gpu";
const DEVICES: u32 = 4;

/// Stage of the pod that is being admitted; kubelet admits one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Admission {
    None,
    /// kubelet queries the preferred allocation.
    Choosing {
        pod: u32,
        available: BTreeSet<DeviceId>,
    },
    /// kubelet allocates a device.
    Allocating {
        pod: u32,
        id: DeviceId,
    },
    /// The plugin has answered; kubelet has not recorded it.
    Answered {
        pod: u32,
        id: DeviceId,
    },
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The scheduler binds a pod, where a device is free.
    Bound,
    /// The admission advances by one stage.
    Advanced,
    /// The admission fails after the allocation, for another reason.
    Failed,
    /// The running pod with this number ends.
    Ended(u32),
    /// An exporter queries the owners.
    Exported,
    /// The agent queries the owners.
    Queried,
    /// The response reaches the agent.
    Received,
    /// The agent restarts, and queries the owners before it registers.
    Restarted,
}

struct Simulation {
    /// Devices that kubelet counts as allocated.
    allocated: BTreeSet<DeviceId>,
    /// Allocations that kubelet has recorded.
    pods: BTreeMap<u32, DeviceId>,
    ended: BTreeSet<u32>,
    admission: Admission,
    bound: u32,
    journal: AllocationJournal,
    response: Option<(Instant, Owners)>,
    now: Instant,
    checked: bool,
}

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("GPU-{n}"))
}

fn journal() -> AllocationJournal {
    let journal = AllocationJournal::default();
    let device = |n: u32| Device {
        id: id(n),
        resource: R.to_owned(),
        gpu_uuid: format!("GPU-{n}"),
        gpu_minor: n,
        mig: None,
        share: None,
        numa: None,
        cordoned: false,
        healthy: true,
    };
    journal.set_devices(&(0..DEVICES).map(device).collect::<Vec<_>>());
    journal.publish(R, &(0..DEVICES).map(|n| (id(n), ListedDevice { healthy: true, numa: None })).collect());
    journal
}

impl Simulation {
    fn new(checked: bool) -> Self {
        Self {
            allocated: BTreeSet::new(),
            pods: BTreeMap::new(),
            ended: BTreeSet::new(),
            admission: Admission::None,
            bound: 0,
            journal: journal(),
            response: None,
            now: Instant::now(),
            checked,
        }
    }

    /// Before it allocates and before it lists, kubelet removes ended pods and counts the allocated devices again.
    fn update(&mut self) {
        let before = self.pods.len();
        self.pods.retain(|pod, _| !self.ended.contains(pod));
        if self.pods.len() < before {
            self.allocated = self.pods.values().cloned().collect();
        }
    }

    fn list(&mut self) -> Owners {
        self.update();
        let owner = |pod: &u32| DeviceOwner { namespace: "t".into(), pod: pod.to_string(), container: "c".into() };
        self.pods.iter().map(|(pod, id)| (id.clone(), owner(pod))).collect()
    }

    /// Reads the owners, as before each answer for which they are not known, and returns the devices with an owner.
    fn check(&mut self, ids: &[DeviceId]) -> BTreeSet<DeviceId> {
        let owned: BTreeSet<DeviceId> = self.list().into_keys().collect();
        let all: Vec<DeviceId> = (0..DEVICES).map(id).collect();
        let allocated = self.journal.allocated(&all);
        let checked = all.into_iter().filter(|id| ids.contains(id) || !allocated.contains(id));
        self.journal.found_free(checked.filter(|id| !owned.contains(id)).collect(), Arc::default(), self.now);
        owned
    }

    fn running(&self) -> Vec<u32> {
        self.pods.keys().filter(|pod| !self.ended.contains(pod)).copied().collect()
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        self.now += Duration::from_millis(1);
        match event {
            Event::Bound => self.bind(),
            Event::Advanced => return self.advance(),
            Event::Failed if matches!(self.admission, Admission::Answered { .. }) => {
                self.admission = Admission::None;
                self.allocated = self.pods.values().cloned().collect();
            }
            Event::Failed => {}
            Event::Ended(n) => {
                let running = self.running();
                self.ended.extend(running.get(n as usize % running.len().max(1)));
            }
            Event::Exported => drop(self.list()),
            Event::Queried => self.response = Some((self.now, self.list())),
            Event::Received => {
                if let Some((queried, owners)) = self.response.take() {
                    self.journal.confirm(owners.into_keys().collect(), queried, self.now);
                }
            }
            Event::Restarted => {
                let owned = self.list().into_keys().collect();
                (self.journal, self.response) = (journal(), None);
                self.journal.confirm(owned, self.now, self.now);
            }
        }
        Ok(())
    }

    fn bind(&mut self) {
        if self.admission == Admission::None && self.running().len() < DEVICES as usize {
            self.bound += 1;
            self.update();
            let available = (0..DEVICES).map(id).filter(|id| !self.allocated.contains(id)).collect();
            self.admission = Admission::Choosing { pod: self.bound, available };
        }
    }

    fn advance(&mut self) -> Result<(), TestCaseError> {
        self.admission = match self.admission.clone() {
            Admission::None => Admission::None,
            Admission::Choosing { pod, available } => {
                let available: Vec<DeviceId> = available.into_iter().collect();
                let known = !self.checked || self.journal.known_free(&available, self.now).is_some();
                let allocated = if known { BTreeSet::new() } else { self.check(&available) };
                let chosen = preferred::choose(
                    &self.journal.candidates(&available, &allocated, &BTreeSet::new()),
                    &[],
                    1,
                    AllocationPolicy::Packed,
                    &Connections::default(),
                );
                let id = chosen[0].clone();
                self.allocated.insert(id.clone());
                Admission::Allocating { pod, id }
            }
            Admission::Allocating { pod, id } => {
                let requested = std::slice::from_ref(&id);
                let known = self.journal.allocate_free(R, requested, self.now).map(Result::unwrap);
                if known.is_none() {
                    if self.checked {
                        let owned = self.check(requested);
                        prop_assert!(!owned.contains(&id), "a free device could have been preferred");
                    }
                    self.journal.allocate(R, requested, self.now).unwrap();
                }
                Admission::Answered { pod, id }
            }
            Admission::Answered { pod, id } => {
                let other = self.pods.iter().find(|(other, has)| **has == id && !self.ended.contains(other));
                prop_assert_eq!(other, None, "pod {} has the device too", pod);
                self.pods.insert(pod, id);
                Admission::None
            }
        };
        Ok(())
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Bound),
        8 => Just(Event::Advanced),
        1 => Just(Event::Failed),
        4 => (0..DEVICES).prop_map(Event::Ended),
        4 => Just(Event::Exported),
        2 => Just(Event::Queried),
        2 => Just(Event::Received),
        1 => Just(Event::Restarted),
    ]
}

fn run(checked: bool, events: &[Event]) -> Result<(), TestCaseError> {
    let mut simulation = Simulation::new(checked);
    events.iter().try_for_each(|event| simulation.apply(*event))
}

proptest! {
    #[test]
    fn no_device_is_allocated_twice_or_refused_while_another_is_free(events in proptest::collection::vec(event(), 1..120)) {
        run(true, &events)?;
    }
}

#[test]
fn kubelet_without_the_check_allocates_a_device_twice() {
    use Event::{Advanced, Bound, Ended, Exported};
    let one = [Bound, Advanced, Advanced, Advanced];
    // the second pod ends while the third is allocated the first pod's device, and an exporter queries the owners at that moment
    let third = [Ended(0), Bound, Advanced, Ended(0), Exported, Advanced, Advanced];
    let all = [&one[..], &one, &third, &one].concat();
    assert!(run(false, &all).is_err());
    assert!(run(true, &all).is_ok());
}

#[test]
fn refusal_names_the_container() {
    let owner = DeviceOwner { namespace: "t".into(), pod: "p".into(), container: "c".into() };
    let owners: Owners = [(id(1), owner)].into();
    assert_eq!(without_owner(&[id(0)], &owners), Ok(()));
    let refusal = without_owner(&[id(0), id(1)], &owners).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "device GPU-1 is allocated to container c of pod t/p, and kubelet dropped that allocation (kubernetes/kubernetes#137534)"
    );
}
