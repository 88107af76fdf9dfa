//! Simulation of scheduler, kubelet and API server with their measured delays.

use proptest::prelude::*;

use super::*;
use crate::kubelet::device_list::ListedDevice;

const R: &str = "nvidia.com/gpu";
/// One step of the simulation.
const TICK: Duration = Duration::from_millis(50);

/// Delays in ticks until one part sees a change of another. A busy machine is slower than an idle one.
#[derive(Debug, Clone, Copy)]
struct Delays {
    /// Node to scheduler.
    scheduler: usize,
    /// Bound pod to kubelet.
    binding: usize,
    /// Device list to kubelet.
    list: usize,
    /// Status of the node from kubelet to API server.
    status: usize,
    /// Interval of kubelet's writes of the node's status: ten seconds, here also less, for more conflicts.
    period: usize,
}

fn delays() -> impl Strategy<Value = Delays> {
    let idle_or_busy = prop_oneof![(0..5_usize, Just(40_usize)), (0..30_usize, Just(200_usize))];
    (idle_or_busy, 0..80_usize, 0..8_usize, 0..6_usize)
        .prop_map(|((scheduler, period), binding, list, status)| Delays { scheduler, binding, list, status, period })
}

/// An external event.
#[derive(Debug, Clone)]
enum Event {
    Want(BTreeSet<u32>),
    Create,
    Finish(usize),
    Restart,
    Nothing,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => proptest::collection::btree_set(0..5_u32, 0..=5).prop_map(Event::Want),
        4 => Just(Event::Create),
        2 => (0..8_usize).prop_map(Event::Finish),
        1 => Just(Event::Restart),
        12 => Just(Event::Nothing),
    ]
}

struct Simulation {
    delays: Delays,
    tick: usize,
    wanted: DeviceLists,
    // agent
    state: State,
    published: DeviceLists,
    stopping: bool,
    absent_until: usize,
    // kubelet
    lists: Vec<(usize, BTreeSet<DeviceId>)>,
    listed: BTreeSet<DeviceId>,
    /// When kubelet sees the pod, and whether the node had a free device when it was bound.
    bound: Vec<(usize, bool)>,
    allocated: Vec<DeviceId>,
    /// A status in transit: when it arrives, and its allocatable.
    pending_status: Option<(usize, u64)>,
    // API server, the newest last
    node: Vec<u64>,
    lost: usize,
}

impl Simulation {
    fn new(delays: Delays) -> Self {
        Self {
            delays,
            tick: 0,
            wanted: DeviceLists::new(),
            state: State::default(),
            published: DeviceLists::new(),
            stopping: false,
            absent_until: 0,
            lists: Vec::new(),
            listed: BTreeSet::new(),
            bound: Vec::new(),
            allocated: Vec::new(),
            pending_status: None,
            node: vec![0; delays.scheduler + 1],
            lost: 0,
        }
    }

    fn advance(&mut self, start: Instant, event: &Event) {
        self.tick += 1;
        match event {
            Event::Want(ids) => {
                let listed = |n: &u32| (DeviceId::new(format!("GPU-{n}")), ListedDevice { healthy: true, numa: None });
                self.wanted = [(R.to_owned(), ids.iter().map(listed).collect())].into();
            }
            Event::Finish(n) if !self.allocated.is_empty() => {
                self.allocated.remove(n % self.allocated.len());
            }
            Event::Create => self.schedule(),
            Event::Restart if self.tick >= self.absent_until => self.stopping = true,
            _ => {}
        }
        self.kubelet();
        self.agent(start);
        let node = *self.node.last().unwrap();
        self.node.push(node);
    }

    /// Binds a pod if the node has a free device, as the scheduler sees it.
    fn schedule(&mut self) {
        let seen = self.node[self.node.len() - 1 - self.delays.scheduler];
        if self.requested() >= seen {
            return;
        }
        let free = self.requested() < *self.node.last().unwrap();
        self.bound.push((self.tick + self.delays.binding, free));
    }

    fn requested(&self) -> u64 {
        (self.bound.len() + self.allocated.len()) as u64
    }

    /// kubelet fails a pod without a free device, and also if the node's allocatable is below the requests of bound pods. The latter cannot be
    /// prevented for a pod that the scheduler bound by an old count.
    fn kubelet(&mut self) {
        while self.lists.first().is_some_and(|(at, _)| *at <= self.tick) {
            self.listed = self.lists.remove(0).1;
        }
        while self.bound.first().is_some_and(|(at, _)| *at <= self.tick) {
            let (_, was_free) = self.bound.remove(0);
            let too_low = self.allocated.len() as u64 >= *self.node.last().unwrap();
            match self.listed.iter().find(|id| !self.allocated.contains(id)).cloned() {
                Some(free) if !too_low => self.allocated.push(free),
                Some(_) if !was_free => {}
                _ => self.lost += 1,
            }
        }
        if self.tick.is_multiple_of(self.delays.period) {
            self.pending_status = Some((self.tick + self.delays.status, self.listed.len() as u64));
        }
        if let Some((_, count)) = self.pending_status.take_if(|(at, _)| *at <= self.tick) {
            let node = self.node.last_mut().unwrap();
            // a late count that is too low fails a pod just bound; no agent can prevent that
            *node = count.max(*node);
        }
    }

    fn agent(&mut self, start: Instant) {
        let now = start + TICK * u32::try_from(self.tick).unwrap();
        if self.tick < self.absent_until {
            return;
        }
        let stopping = self.stopping;
        let watched: BTreeSet<String> = self.published.keys().cloned().collect();
        let kubelet = [(R.to_owned(), self.listed.clone())].into();
        let node = [(R.to_owned(), *self.node.last().unwrap())].into();
        let requested = [(R.to_owned(), self.requested())].into();
        let in_flight_pods = |(arrives, _): &(usize, bool)| InFlight {
            count: self.bound.len() as u64,
            newest: start + TICK * u32::try_from(arrives - self.delays.binding).unwrap(),
        };
        let in_flight = self.bound.last().map(|last| (R.to_owned(), in_flight_pods(last))).into_iter().collect();
        let seen = Observation {
            wanted: &self.wanted,
            published: &self.published,
            watched: &watched,
            kubelet: Some(&kubelet),
            node: Some(&node),
            requested: Some(&requested),
            in_flight: &in_flight,
            stopping,
            readmits: false,
            propagation: propagation(TICK * u32::try_from(self.delays.scheduler).unwrap() / 3),
            now,
        };
        let (state, step) = step(&self.state, &seen);
        self.state = state;
        let may_exit = step.may_exit;
        for action in step.actions {
            match action {
                Action::WriteAllocatable(counts) => *self.node.last_mut().unwrap() = counts[R],
                Action::Publish(resource, list) => {
                    self.lists
                        .push((self.tick + self.delays.list, healthy(Some(&list)).into_iter().cloned().collect()));
                    self.published.insert(resource, list);
                }
                Action::Register(_) => {}
            }
        }
        if may_exit {
            // stopped: kubelet drops the devices at once
            self.stopping = false;
            self.absent_until = self.tick + 20;
            self.state = State::default();
            self.published = DeviceLists::new();
            self.lists.clear();
            self.listed.clear();
        }
    }

    fn is_converged(&self) -> bool {
        let wanted = self.wanted.get(R).map_or(0, BTreeMap::len);
        *self.node.last().unwrap() == wanted as u64 && self.listed.len() == wanted
    }
}

proptest! {
    #[test]
    fn no_pod_fails_and_the_counts_converge(delays in delays(), events in proptest::collection::vec(event(), 1..300)) {
        let start = Instant::now();
        let mut simulation = Simulation::new(delays);
        for event in &events {
            simulation.advance(start, event);
            prop_assert_eq!(simulation.lost, 0, "a pod was bound to a device that kubelet no longer allocates");
        }
        for _ in 0..400 {
            simulation.advance(start, &Event::Nothing);
        }
        prop_assert_eq!(simulation.lost, 0);
        prop_assert!(simulation.is_converged(), "node {:?}, kubelet {:?}, wanted {:?}", simulation.node.last(), simulation.listed, simulation.wanted);
    }
}
