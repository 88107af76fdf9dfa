//! A kubelet that forgets what it is about to give, as its device manager does, and pods that come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use crate::{
    device::{Device, DeviceOwner},
    kubelet::{offer::Listed, preferred},
};

const R: &str = "nvidia.com/gpu";
const DEVICES: u32 = 4;

/// Where the pod that is being admitted stands; kubelet admits one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Admission {
    None,
    /// The plugin is asked what it prefers.
    Choosing {
        pod: u32,
        available: BTreeSet<DeviceId>,
    },
    /// The plugin is asked for a device.
    Asking {
        pod: u32,
        id: DeviceId,
    },
    /// The plugin has answered; kubelet has not written it down.
    Given {
        pod: u32,
        id: DeviceId,
    },
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The scheduler binds a pod, where a device is free.
    Bound,
    /// The admission goes one stage on.
    Advanced,
    /// The admission fails after the devices were given, because of something else.
    Failed,
    /// The pod with this number, of those that run, is over.
    Ended(u32),
    /// An exporter asks who has what.
    Exported,
    /// The agent asks who has what.
    Asked,
    /// The answer reaches the agent.
    Answered,
    /// The agent is replaced, and asks before it registers.
    Restarted,
}

struct World {
    /// Devices that kubelet counts as given away.
    allocated: BTreeSet<DeviceId>,
    /// What kubelet has written down.
    pods: BTreeMap<u32, DeviceId>,
    over: BTreeSet<u32>,
    admission: Admission,
    bound: u32,
    ledger: Ledger,
    answer: Option<(Instant, Owners)>,
    now: Instant,
    guarded: bool,
}

fn id(n: u32) -> DeviceId {
    DeviceId::new(format!("GPU-{n}"))
}

fn ledger() -> Ledger {
    let ledger = Ledger::default();
    let device = |n: u32| Device {
        id: id(n),
        resource: R.to_owned(),
        gpu_uuid: format!("GPU-{n}"),
        gpu_minor: n,
        mig: None,
        numa: None,
        cordoned: false,
        healthy: true,
    };
    ledger.learn(&(0..DEVICES).map(device).collect::<Vec<_>>());
    ledger.publish(R, &(0..DEVICES).map(|n| (id(n), Listed { healthy: true, numa: None })).collect());
    ledger
}

impl World {
    fn new(guarded: bool) -> Self {
        Self {
            allocated: BTreeSet::new(),
            pods: BTreeMap::new(),
            over: BTreeSet::new(),
            admission: Admission::None,
            bound: 0,
            ledger: ledger(),
            answer: None,
            now: Instant::now(),
            guarded,
        }
    }

    /// As kubelet does before it allocates and before it lists: the pods that are over go, and what is given away is counted anew.
    fn update(&mut self) {
        let before = self.pods.len();
        self.pods.retain(|pod, _| !self.over.contains(pod));
        if self.pods.len() < before {
            self.allocated = self.pods.values().cloned().collect();
        }
    }

    fn list(&mut self) -> Owners {
        self.update();
        let owner = |pod: &u32| DeviceOwner { namespace: "t".into(), pod: pod.to_string(), container: "c".into() };
        self.pods.iter().map(|(pod, id)| (id.clone(), owner(pod))).collect()
    }

    fn running(&self) -> Vec<u32> {
        self.pods.keys().filter(|pod| !self.over.contains(pod)).copied().collect()
    }

    fn happens(&mut self, event: Event) -> Result<(), TestCaseError> {
        self.now += Duration::from_millis(1);
        match event {
            Event::Bound => self.bind(),
            Event::Advanced => return self.advance(),
            Event::Failed if matches!(self.admission, Admission::Given { .. }) => {
                self.admission = Admission::None;
                self.allocated = self.pods.values().cloned().collect();
            }
            Event::Failed => {}
            Event::Ended(n) => {
                let running = self.running();
                self.over.extend(running.get(n as usize % running.len().max(1)));
            }
            Event::Exported => drop(self.list()),
            Event::Asked => self.answer = Some((self.now, self.list())),
            Event::Answered => {
                if let Some((asked, owners)) = self.answer.take() {
                    self.ledger.settle(owners.into_keys().collect(), asked, self.now);
                }
            }
            Event::Restarted => {
                let owned = self.list().into_keys().collect();
                (self.ledger, self.answer) = (ledger(), None);
                self.ledger.settle(owned, self.now, self.now);
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
                let taken = if self.guarded { self.list().into_keys().collect() } else { BTreeSet::new() };
                let chosen = preferred::choose(&self.ledger.candidates(&available, &taken), &[], 1);
                let id = chosen[0].clone();
                self.allocated.insert(id.clone());
                Admission::Asking { pod, id }
            }
            Admission::Asking { pod, id } => {
                if self.guarded {
                    let refused = unowned(std::slice::from_ref(&id), &self.list());
                    prop_assert_eq!(refused, Ok(()), "there was a free one to prefer");
                }
                self.ledger.grant(R, std::slice::from_ref(&id), self.now).unwrap();
                Admission::Given { pod, id }
            }
            Admission::Given { pod, id } => {
                let other = self.pods.iter().find(|(other, has)| **has == id && !self.over.contains(other));
                prop_assert_eq!(other, None, "pod {} has been given it too", pod);
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
        2 => Just(Event::Asked),
        2 => Just(Event::Answered),
        1 => Just(Event::Restarted),
    ]
}

fn plays(guarded: bool, events: &[Event]) -> Result<(), TestCaseError> {
    let mut world = World::new(guarded);
    events.iter().try_for_each(|event| world.happens(*event))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_device_is_given_twice_nor_refused_while_another_is_free(events in proptest::collection::vec(event(), 1..120)) {
        plays(true, &events)?;
    }
}

#[test]
fn without_this_kubelet_gives_one_twice() {
    use Event::{Advanced, Bound, Ended, Exported};
    let one = [Bound, Advanced, Advanced, Advanced];
    // the second pod ends while the third is being given the first one's device, and an exporter asks at that moment
    let third = [Ended(0), Bound, Advanced, Ended(0), Exported, Advanced, Advanced];
    let all = [&one[..], &one, &third, &one].concat();
    assert!(plays(false, &all).is_err());
    assert!(plays(true, &all).is_ok());
}

#[test]
fn what_a_container_has_is_refused_by_its_name() {
    let owner = DeviceOwner { namespace: "t".into(), pod: "p".into(), container: "c".into() };
    let owners: Owners = [(id(1), owner)].into();
    assert_eq!(unowned(&[id(0)], &owners), Ok(()));
    let refused = unowned(&[id(0), id(1)], &owners).unwrap_err().to_string();
    assert_eq!(
        refused,
        "device GPU-1 is held by container c of pod t/p, which kubelet has lost sight of (kubernetes/kubernetes#137534)"
    );
}
