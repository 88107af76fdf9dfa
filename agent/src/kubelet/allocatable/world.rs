//! A small world around the machine: a scheduler, a kubelet and an API server with their measured delays.

use proptest::prelude::*;

use super::*;
use crate::kubelet::offer::Listed;

const R: &str = "nvidia.com/gpu";
/// One turn of the world.
const TICK: Duration = Duration::from_millis(50);
/// kubelet writes the node's status, in ticks.
const STATUS_PERIOD: usize = 40;
/// The scheduler sees a change of the node so much later, in ticks.
const SCHEDULER_LAG: usize = 2;
/// kubelet sees a bound pod so much later, in ticks.
const BINDING_LAG: usize = 2;
/// kubelet takes a list over so much later, in ticks.
const LIST_LAG: usize = 4;

/// What happens to the world from outside.
#[derive(Debug, Clone)]
enum News {
    Want(BTreeSet<u32>),
    Create,
    Finish(usize),
    Restart,
    Nothing,
}

fn news() -> impl Strategy<Value = News> {
    prop_oneof![
        2 => proptest::collection::btree_set(0..5_u32, 0..=5).prop_map(News::Want),
        4 => Just(News::Create),
        2 => (0..8_usize).prop_map(News::Finish),
        1 => Just(News::Restart),
        12 => Just(News::Nothing),
    ]
}

#[derive(Default)]
struct World {
    tick: usize,
    wanted: Offers,
    // agent
    memory: Memory,
    published: Offers,
    leaving: Option<usize>,
    away_until: usize,
    // kubelet
    lists: Vec<(usize, BTreeSet<DeviceId>)>,
    listed: BTreeSet<DeviceId>,
    /// When kubelet sees it, and whether the node had room when it was bound.
    bound: Vec<(usize, bool)>,
    held: Vec<DeviceId>,
    // API server, the newest last
    node: Vec<u64>,
    lost: usize,
}

impl World {
    fn new() -> Self {
        Self { node: vec![0; SCHEDULER_LAG + 1], ..Self::default() }
    }

    fn turn(&mut self, start: Instant, news: &News) {
        self.tick += 1;
        match news {
            News::Want(ids) => {
                let listed = |n: &u32| (DeviceId::whole(&format!("GPU-{n}")), Listed { healthy: true, numa: None });
                self.wanted = [(R.to_owned(), ids.iter().map(listed).collect())].into();
            }
            News::Finish(n) if !self.held.is_empty() => {
                self.held.remove(n % self.held.len());
            }
            News::Create => self.schedule(),
            News::Restart if self.tick >= self.away_until => self.leaving = self.leaving.or(Some(self.tick)),
            _ => {}
        }
        self.kubelet();
        self.agent(start + TICK * u32::try_from(self.tick).unwrap());
        let node = *self.node.last().unwrap();
        self.node.push(node);
    }

    /// Binds when the node as the scheduler knows it has room.
    fn schedule(&mut self) {
        let seen = self.node[self.node.len() - 1 - SCHEDULER_LAG];
        if self.taken() >= seen {
            return;
        }
        let room = self.taken() < *self.node.last().unwrap();
        self.bound.push((self.tick + BINDING_LAG, room));
    }

    fn taken(&self) -> u64 {
        (self.bound.len() + self.held.len()) as u64
    }

    /// kubelet fails a pod for want of a device, and also when the node's allocatable has sunk below what is bound.
    /// The latter cannot be helped for one that the scheduler bound by an old number.
    fn kubelet(&mut self) {
        while self.lists.first().is_some_and(|(at, _)| *at <= self.tick) {
            self.listed = self.lists.remove(0).1;
        }
        while self.bound.first().is_some_and(|(at, _)| *at <= self.tick) {
            let (_, room) = self.bound.remove(0);
            let sunk = self.held.len() as u64 >= *self.node.last().unwrap();
            match self.listed.iter().find(|id| !self.held.contains(id)).cloned() {
                Some(free) if !sunk => self.held.push(free),
                Some(_) if !room => {}
                _ => self.lost += 1,
            }
        }
        if self.tick.is_multiple_of(STATUS_PERIOD) {
            *self.node.last_mut().unwrap() = self.listed.len() as u64;
        }
    }

    fn agent(&mut self, now: Instant) {
        if self.tick < self.away_until {
            return;
        }
        let stopping = self.leaving.is_some();
        let listening: BTreeSet<String> = self.published.keys().cloned().collect();
        let kubelet = [(R.to_owned(), self.listed.clone())].into();
        let node = [(R.to_owned(), *self.node.last().unwrap())].into();
        let taken = [(R.to_owned(), self.taken())].into();
        let in_flight = [(R.to_owned(), self.bound.len() as u64)].into();
        let seen = Seen {
            wanted: &self.wanted,
            published: &self.published,
            listening: &listening,
            kubelet: Some(&kubelet),
            node: Some(&node),
            taken: Some(&taken),
            in_flight: &in_flight,
            stopping,
            now,
        };
        let (memory, step) = step(&self.memory, &seen);
        self.memory = memory;
        let low = *self.node.last().unwrap() == 0 && step.actions.is_empty();
        if stopping && !low {
            self.leaving = Some(self.tick);
        }
        for action in step.actions {
            match action {
                Action::Allocatable(counts) => *self.node.last_mut().unwrap() = counts[R],
                Action::Publish(resource, offer) => {
                    self.lists.push((self.tick + LIST_LAG, offer.keys().cloned().collect()));
                    self.published.insert(resource, offer);
                }
                Action::Renew(_) => {}
            }
        }
        let settle = usize::try_from(SETTLE.as_millis().div_ceil(TICK.as_millis())).unwrap();
        if self.leaving.is_some_and(|since| self.tick > since + settle) {
            // stopped: kubelet drops everything at once
            let away_until = self.tick + 20;
            *self = Self {
                leaving: None,
                away_until,
                memory: Memory::default(),
                published: Offers::new(),
                ..std::mem::take(self)
            };
            self.lists.clear();
            self.listed.clear();
        }
    }

    fn settled(&self) -> bool {
        let wanted = self.wanted.get(R).map_or(0, BTreeMap::len);
        *self.node.last().unwrap() == wanted as u64 && self.listed.len() == wanted
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_pod_is_lost_and_the_counts_agree_in_the_end(story in proptest::collection::vec(news(), 1..200)) {
        let start = Instant::now();
        let mut world = World::new();
        for news in &story {
            world.turn(start, news);
            prop_assert_eq!(world.lost, 0, "a pod was bound to a device that kubelet no longer gives");
        }
        for _ in 0..100 {
            world.turn(start, &News::Nothing);
        }
        prop_assert_eq!(world.lost, 0);
        prop_assert!(world.settled(), "node {:?}, kubelet {:?}, wanted {:?}", world.node.last(), world.listed, world.wanted);
    }
}
