//! A small world around the machine: a scheduler, a kubelet and an API server with their measured delays.

use proptest::prelude::*;

use super::*;
use crate::kubelet::offer::Listed;

const R: &str = "nvidia.com/gpu";
/// One turn of the world.
const TICK: Duration = Duration::from_millis(50);

/// How much later, in ticks, one part sees what another did: a busy machine is slower than a quiet one.
#[derive(Debug, Clone, Copy)]
struct Lags {
    /// The scheduler, a change of the node.
    scheduler: usize,
    /// kubelet, a bound pod.
    binding: usize,
    /// kubelet, a list.
    list: usize,
    /// The API server, what kubelet counted for the node's status.
    status: usize,
    /// Between two of kubelet's writes of the node's status: ten seconds, here also less, so that they meet more.
    period: usize,
}

fn lags() -> impl Strategy<Value = Lags> {
    let quiet_or_busy = prop_oneof![(0..5_usize, Just(40_usize)), (0..30_usize, Just(200_usize))];
    (quiet_or_busy, 0..80_usize, 0..8_usize, 0..6_usize).prop_map(|((scheduler, period), binding, list, status)| Lags {
        scheduler,
        binding,
        list,
        status,
        period,
    })
}

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

struct World {
    lags: Lags,
    tick: usize,
    wanted: Offers,
    // agent
    memory: Memory,
    published: Offers,
    leaving: bool,
    away_until: usize,
    // kubelet
    lists: Vec<(usize, BTreeSet<DeviceId>)>,
    listed: BTreeSet<DeviceId>,
    /// When kubelet sees it, and whether the node had room when it was bound.
    bound: Vec<(usize, bool)>,
    held: Vec<DeviceId>,
    /// A status on its way: when it arrives, and what it says.
    status: Option<(usize, u64)>,
    // API server, the newest last
    node: Vec<u64>,
    lost: usize,
}

impl World {
    fn new(lags: Lags) -> Self {
        Self {
            lags,
            tick: 0,
            wanted: Offers::new(),
            memory: Memory::default(),
            published: Offers::new(),
            leaving: false,
            away_until: 0,
            lists: Vec::new(),
            listed: BTreeSet::new(),
            bound: Vec::new(),
            held: Vec::new(),
            status: None,
            node: vec![0; lags.scheduler + 1],
            lost: 0,
        }
    }

    fn turn(&mut self, start: Instant, news: &News) {
        self.tick += 1;
        match news {
            News::Want(ids) => {
                let listed = |n: &u32| (DeviceId::new(format!("GPU-{n}")), Listed { healthy: true, numa: None });
                self.wanted = [(R.to_owned(), ids.iter().map(listed).collect())].into();
            }
            News::Finish(n) if !self.held.is_empty() => {
                self.held.remove(n % self.held.len());
            }
            News::Create => self.schedule(),
            News::Restart if self.tick >= self.away_until => self.leaving = true,
            _ => {}
        }
        self.kubelet();
        self.agent(start);
        let node = *self.node.last().unwrap();
        self.node.push(node);
    }

    /// Binds when the node as the scheduler knows it has room.
    fn schedule(&mut self) {
        let seen = self.node[self.node.len() - 1 - self.lags.scheduler];
        if self.taken() >= seen {
            return;
        }
        let room = self.taken() < *self.node.last().unwrap();
        self.bound.push((self.tick + self.lags.binding, room));
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
        if self.tick.is_multiple_of(self.lags.period) {
            self.status = Some((self.tick + self.lags.status, self.listed.len() as u64));
        }
        if let Some((_, count)) = self.status.take_if(|(at, _)| *at <= self.tick) {
            let node = self.node.last_mut().unwrap();
            // a late number that is too low fails a pod just bound, and is kubelet's own doing: no agent can help that
            *node = count.max(*node);
        }
    }

    fn agent(&mut self, start: Instant) {
        let now = start + TICK * u32::try_from(self.tick).unwrap();
        if self.tick < self.away_until {
            return;
        }
        let stopping = self.leaving;
        let listening: BTreeSet<String> = self.published.keys().cloned().collect();
        let kubelet = [(R.to_owned(), self.listed.clone())].into();
        let node = [(R.to_owned(), *self.node.last().unwrap())].into();
        let taken = [(R.to_owned(), self.taken())].into();
        let flight = |(arrives, _): &(usize, bool)| Flight {
            count: self.bound.len() as u64,
            youngest: start + TICK * u32::try_from(arrives - self.lags.binding).unwrap(),
        };
        let in_flight = self.bound.last().map(|last| (R.to_owned(), flight(last))).into_iter().collect();
        let seen = Seen {
            wanted: &self.wanted,
            published: &self.published,
            listening: &listening,
            kubelet: Some(&kubelet),
            node: Some(&node),
            taken: Some(&taken),
            in_flight: &in_flight,
            stopping,
            settle: settling(TICK * u32::try_from(self.lags.scheduler).unwrap() / 3),
            now,
        };
        let (memory, step) = step(&self.memory, &seen);
        self.memory = memory;
        let may_go = step.may_go;
        for action in step.actions {
            match action {
                Action::Allocatable(counts) => *self.node.last_mut().unwrap() = counts[R],
                Action::Publish(resource, offer) => {
                    self.lists.push((self.tick + self.lags.list, usable(Some(&offer)).into_iter().cloned().collect()));
                    self.published.insert(resource, offer);
                }
                Action::Renew(_) => {}
            }
        }
        if may_go {
            // stopped: kubelet drops everything at once
            self.leaving = false;
            self.away_until = self.tick + 20;
            self.memory = Memory::default();
            self.published = Offers::new();
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
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_pod_is_lost_and_the_counts_agree_in_the_end(lags in lags(), story in proptest::collection::vec(news(), 1..300)) {
        let start = Instant::now();
        let mut world = World::new(lags);
        for news in &story {
            world.turn(start, news);
            prop_assert_eq!(world.lost, 0, "a pod was bound to a device that kubelet no longer gives");
        }
        for _ in 0..400 {
            world.turn(start, &News::Nothing);
        }
        prop_assert_eq!(world.lost, 0);
        prop_assert!(world.settled(), "node {:?}, kubelet {:?}, wanted {:?}", world.node.last(), world.listed, world.wanted);
    }
}
