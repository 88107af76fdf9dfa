//! Schedules of writes: two leaders that believe in themselves, views that lag, writes that arrive late, out of order or never,
//! answers that are lost, restarts, a quota that is deleted by hand. After every single write the sum is within the budget, and under a
//! cap what all of it weighs is within the cap.

use std::collections::HashMap;

use super::*;
use crate::quota::write_fence::{Fence, Stamp};

/// Resources that count against a cap; without one there is the first.
const KEYS: [&str; 3] = [GPU, "requests.nvidia.com/mig-1g.10gb", "requests.nvidia.com/mig-3g.40gb"];

/// Devices by resource, in the order of [`KEYS`].
type Counts = Vec<i128>;

fn hard(counts: &[i128]) -> Limits {
    KEYS.iter().zip(counts).map(|(key, n)| ((*key).to_owned(), Quantity(n.to_string()))).collect()
}

/// A quota as the API server has it.
#[derive(Clone, Debug)]
struct Quota {
    version: u64,
    stamp: Stamp,
    written: Counts,
    in_force: Option<Counts>,
}

/// A write on its way.
#[derive(Clone, Debug)]
struct Flight {
    leader: usize,
    at: usize,
    /// The version it was decided on; 0: there must be none.
    decided_on: u64,
    stamp: Stamp,
    limit: Counts,
}

struct Leader {
    fence: Fence,
    /// What its caches show of each namespace: whether it is there, and the quota.
    sees: Vec<Sight>,
    waits_for: Option<(usize, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Sight {
    there: bool,
    quota: Option<Quota>,
    used: Counts,
}

struct World {
    budget: Counts,
    cap: Option<Cap>,
    version: u64,
    term: u64,
    there: Vec<bool>,
    quotas: Vec<Option<Quota>>,
    used: Vec<Counts>,
    leaders: Vec<Leader>,
    flights: Vec<Flight>,
    /// By namespace and resource.
    wants: HashMap<(usize, usize), (i128, Stage)>,
}

#[derive(Clone, Debug)]
enum Act {
    /// A leader decides and sends its writes.
    Decide(usize),
    /// A write arrives; false: its answer is lost.
    Arrive(usize, bool),
    /// A write is lost.
    Lose(usize),
    /// A leader waits no longer for its cache to show its last write.
    Impatience(usize),
    /// A leader's cache sees a namespace as it is.
    See(usize, usize),
    /// The quota controller follows.
    Follow(usize),
    /// A pod is created, or refused: in a namespace, of a resource.
    Admit(usize, usize, i128),
    /// Pods end.
    End(usize, usize, i128),
    /// Controllers wait, or not.
    Want(usize, usize, i128, Stage),
    /// Another process leads from now on; the old one has not noticed.
    Succeed,
    /// Somebody deletes a quota.
    Delete(usize),
}

impl World {
    fn new(budget: i128, namespaces: usize) -> Self {
        Self::under(vec![budget], None, namespaces)
    }

    fn under(budget: Counts, cap: Option<Cap>, namespaces: usize) -> Self {
        let used = vec![vec![0; budget.len()]; namespaces];
        let mut world = Self {
            budget,
            cap,
            version: 10,
            term: 0,
            there: vec![false; namespaces],
            quotas: vec![None; namespaces],
            used,
            leaders: Vec::new(),
            flights: Vec::new(),
            wants: HashMap::new(),
        };
        world.succeed();
        world
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn succeed(&mut self) {
        self.term = self.next();
        let sees = (0..self.there.len()).map(|at| self.sight(at)).collect();
        self.leaders.push(Leader { fence: Fence::new(self.term), sees, waits_for: None });
    }

    fn sight(&self, at: usize) -> Sight {
        Sight { there: self.there[at], quota: self.quotas[at].clone(), used: self.used[at].clone() }
    }

    /// Two at most: the one that leads and the one that did.
    fn leader(&self, which: usize) -> usize {
        self.leaders.len() - 1 - which.min(self.leaders.len() - 1).min(1)
    }

    fn decide(&mut self, which: usize) {
        let index = self.leader(which);
        let leader = &mut self.leaders[index];
        // as the controller does: its own last write has to be seen first
        if let Some((at, version)) = leader.waits_for {
            if leader.sees[at].quota.as_ref().is_none_or(|q| q.version < version) {
                return;
            }
            leader.waits_for = None;
        }
        if leader
            .sees
            .iter()
            .any(|s| s.quota.as_ref().is_some_and(|q| leader.fence.is_outranked(q.version, Some(q.stamp))))
        {
            return;
        }
        let unseen = leader.fence.unseen("t", |name| name.parse().is_ok_and(|at: usize| leader.sees[at].there));
        let accounts: Vec<Account> = leader
            .sees
            .iter()
            .enumerate()
            .map(|(at, sight)| {
                let presence = match &sight.quota {
                    Some(q) => Presence::There {
                        standing: Standing {
                            written: hard(&q.written),
                            in_force: q.in_force.as_deref().map(hard).unwrap_or_default(),
                            used: q.in_force.as_ref().map(|_| hard(&sight.used)).unwrap_or_default(),
                        },
                        firm: leader.fence.is_firm("t", &at.to_string(), q.version, Some(q.stamp)),
                    },
                    None if sight.there || unseen.contains(&at.to_string()) => Presence::Bare,
                    None => Presence::Fresh,
                };
                let wanted = |((_, key), (n, stage)): (&(usize, usize), &(i128, Stage))| Wanted {
                    amounts: [(KEYS[*key].to_owned(), Amount::of_milli(n * 1000))].into(),
                    stage: *stage,
                };
                let wants = self.wants.iter().filter(|((ns, _), _)| *ns == at).map(wanted).collect();
                Account { open: true, presence, steady: true, held: Amounts::new(), wants }
            })
            .collect();
        let budget = hard(&self.budget);
        let orders = match &self.cap {
            None => step(&budget, &accounts, false).orders,
            Some(cap) => step_under(&budget, cap, &accounts, false).orders,
        };
        // namespaces that are not seen are made first, which fails when one is there: then the decision is over
        for at in 0..self.there.len() {
            if !leader.sees[at].there && std::mem::replace(&mut self.there[at], true) {
                return;
            }
        }
        for (at, order) in orders.into_iter().enumerate() {
            let sight = leader.sees[at].clone();
            let limit = match order {
                Order::Leave => continue,
                Order::Touch => sight.quota.as_ref().unwrap().written.clone(),
                Order::Write(limits) => {
                    (0..self.budget.len()).map(|key| limits[KEYS[key]].0.parse().unwrap()).collect()
                }
            };
            let decided_on = sight.quota.as_ref().map_or(0, |q| q.version);
            let stamp = leader.fence.begin("t", &at.to_string(), decided_on);
            self.flights.push(Flight { leader: index, at, decided_on, stamp, limit });
        }
    }

    fn arrive(&mut self, which: usize, answered: bool) {
        if self.flights.is_empty() {
            return;
        }
        let which = which % self.flights.len();
        let Flight { leader, at, decided_on, stamp, limit } = self.flights.swap_remove(which);
        let present = self.quotas[at].as_ref().map_or(0, |q| q.version);
        if present != decided_on {
            return;
        }
        let version = self.next();
        let in_force = self.quotas[at].as_ref().and_then(|q| q.in_force.clone());
        self.quotas[at] = Some(Quota { version, stamp, written: limit, in_force });
        if answered {
            self.leaders[leader].fence.done("t", &at.to_string(), version);
            self.leaders[leader].waits_for = Some((at, version));
        }
    }

    fn act(&mut self, act: &Act) {
        let (n, keys) = (self.there.len(), self.budget.len());
        match *act {
            Act::Decide(which) => self.decide(which),
            Act::Arrive(which, answered) => self.arrive(which, answered),
            Act::Lose(which) if !self.flights.is_empty() => {
                let which = which % self.flights.len();
                self.flights.swap_remove(which);
            }
            Act::Lose(_) => {}
            Act::Impatience(which) => {
                let index = self.leader(which);
                self.leaders[index].waits_for = None;
            }
            Act::See(which, at) => {
                let sight = self.sight(at % n);
                let index = self.leader(which);
                self.leaders[index].sees[at % n] = sight;
            }
            Act::Follow(at) => {
                let version = self.next();
                if let Some(quota) = &mut self.quotas[at % n]
                    && quota.in_force.as_ref() != Some(&quota.written)
                {
                    quota.in_force = Some(quota.written.clone());
                    quota.version = version;
                }
            }
            Act::Admit(at, key, amount) => {
                let used = self.used[at % n][key % keys] + amount;
                let version = self.next();
                if let Some(quota) = &mut self.quotas[at % n]
                    && quota.in_force.as_ref().is_some_and(|hard| used <= hard[key % keys])
                {
                    self.used[at % n][key % keys] = used;
                    quota.version = version;
                }
            }
            Act::End(at, key, amount) => {
                let version = self.next();
                let used = &mut self.used[at % n][key % keys];
                *used = (*used - amount).max(0);
                if let Some(quota) = &mut self.quotas[at % n] {
                    quota.version = version;
                }
            }
            Act::Want(at, key, amount, stage) => _ = self.wants.insert((at % n, key % keys), (amount, stage)),
            Act::Succeed => self.succeed(),
            Act::Delete(at) => {
                self.quotas[at % n] = None;
                // one that was to make the quota before somebody deleted it is long over: no request lives longer than a minute. If it
                // did, the quota would come back with its first limit, where without it there is none
                self.flights.retain(|flight| flight.at != at % n || flight.decided_on != 0);
            }
        }
    }

    /// The most that may be granted of each resource.
    fn granted(&self) -> Counts {
        let most = |at: usize, key: usize| {
            let quota = self.quotas[at].as_ref();
            let limit = quota.map_or(0, |q| q.written[key].max(q.in_force.as_ref().map_or(0, |hard| hard[key])));
            limit.max(self.used[at][key])
        };
        (0..self.budget.len()).map(|key| (0..self.there.len()).map(|at| most(at, key)).sum()).collect()
    }

    /// Without a cap there is one resource.
    fn most(&self) -> i128 {
        self.granted()[0]
    }

    /// What that leaves free of the cap, in thousandths of its parts; below zero it is exceeded.
    fn free(&self) -> i128 {
        let cap = self.cap.as_ref().unwrap();
        let weighs = self.granted().iter().zip(KEYS).map(|(n, key)| n * 1000 * cap.device(key)).sum::<i128>();
        cap.limit() - weighs
    }

    fn is_within(&self) -> bool {
        let each = self.granted().iter().zip(&self.budget).all(|(granted, budget)| granted <= budget);
        each && (self.cap.is_none() || self.free() >= 0)
    }

    /// Everybody sees everything and all writes arrive: how many writes until nothing is left to do.
    fn settle(&mut self) -> usize {
        let mut writes = 0;
        for _ in 0..40 {
            self.act(&Act::Impatience(0));
            for at in 0..self.there.len() {
                self.act(&Act::Follow(at));
                self.act(&Act::See(0, at));
            }
            self.decide(0);
            if self.flights.is_empty() {
                return writes;
            }
            while !self.flights.is_empty() {
                self.arrive(0, true);
                writes += 1;
            }
        }
        panic!("it never comes to rest: {:?} {:?}", self.quotas, self.used)
    }
}

fn any_stage() -> impl Strategy<Value = Stage> {
    prop_oneof![4 => Just(Stage::Open), 1 => Just(Stage::Held), 1 => Just(Stage::Lingering)]
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..2_usize).prop_map(Act::Decide),
        8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, answered)| Act::Arrive(which, answered)),
        1 => any::<usize>().prop_map(Act::Lose),
        1 => (0..2_usize).prop_map(Act::Impatience),
        8 => (prop::bool::weighted(0.3), 0..4_usize).prop_map(|(old, at)| Act::See(usize::from(old), at)),
        6 => (0..4_usize).prop_map(Act::Follow),
        5 => (0..4_usize, 0..3_usize, 1..4_i128).prop_map(|(at, key, n)| Act::Admit(at, key, n)),
        2 => (0..4_usize, 0..3_usize, 1..4_i128).prop_map(|(at, key, n)| Act::End(at, key, n)),
        3 => (0..4_usize, 0..3_usize, 0..5_i128, any_stage()).prop_map(|(at, key, n, stage)| Act::Want(at, key, n, stage)),
        1 => Just(Act::Succeed),
        1 => (0..4_usize).prop_map(Act::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(10_000), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_sum_never_exceeds_the_budget_whatever_becomes_of_the_writes(
        budget in 0..12_i128, namespaces in 1..5_usize, acts in prop::collection::vec(any_act(), 1..60)
    ) {
        let mut world = World::new(budget, namespaces);
        for (at, act) in acts.iter().enumerate() {
            world.act(act);
            prop_assert!(world.most() <= budget, "after {act:?} (number {at}): {:?}, used {:?}", world.quotas, world.used);
        }
        // and it does not stop short either
        world.wants.clear();
        world.settle();
        prop_assert_eq!(world.most(), budget, "all of it is somewhere: {:?}", world.quotas);
        prop_assert_eq!(world.settle(), 0, "at rest nothing is written");
    }

    /// From rest, a namespace that waits for all that is free gets it with as few writes as there are namespaces that give, one of
    /// its own, and a touch where a new leader must make sure.
    #[test]
    fn the_whole_budget_can_be_had_in_any_one_namespace(
        budget in 1..30_i128, namespaces in 1..6_usize, at in 0..6_usize, new_leader in any::<bool>()
    ) {
        let mut world = World::new(budget, namespaces);
        world.settle();
        if new_leader {
            world.succeed();
        }
        let at = at % namespaces;
        world.wants.insert((at, 0), (budget, Stage::Open));
        let writes = world.settle();
        prop_assert_eq!(world.quotas[at].as_ref().unwrap().in_force.as_deref(), Some(&[budget][..]));
        prop_assert!(writes <= namespaces, "{} writes", writes);
    }

    #[test]
    fn what_all_resources_weigh_never_exceeds_the_cap_whatever_becomes_of_the_writes(
        (budget, cap) in any_cap(), namespaces in 1..5_usize, acts in prop::collection::vec(any_act(), 1..60)
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        for (at, act) in acts.iter().enumerate() {
            world.act(act);
            prop_assert!(world.is_within(), "after {act:?} (number {at}): {:?}, used {:?}", world.quotas, world.used);
        }
        world.wants.clear();
        world.settle();
        for (key, granted) in world.granted().into_iter().enumerate() {
            let fits = cap.device(KEYS[key]) * 1000 <= world.free();
            prop_assert!(granted == budget[key] || !fits, "{} is free: {:?}", KEYS[key], world.quotas);
        }
        prop_assert_eq!(world.settle(), 0, "at rest nothing is written");
    }

    /// From rest, the whole cap goes to one resource of one namespace, with one write for each quota that gives, and two for its own.
    #[test]
    fn the_whole_cap_can_be_had_by_one_resource_of_one_namespace(
        (budget, cap) in any_cap(), namespaces in 1..6_usize, at in 0..6_usize, key in 0..3_usize, new_leader in any::<bool>()
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        world.settle();
        if new_leader {
            world.succeed();
        }
        let at = at % namespaces;
        let most = budget[key].min(cap.limit() / cap.device(KEYS[key]) / 1000);
        world.wants.insert((at, key), (most, Stage::Open));
        let writes = world.settle();
        prop_assert_eq!(world.quotas[at].as_ref().unwrap().in_force.as_ref().unwrap()[key], most);
        prop_assert!(writes <= namespaces + 1, "{} writes", writes);
    }

    /// Pods that come one by one, each announced by its controller, get all that others do not use.
    #[test]
    fn pods_that_come_one_by_one_get_all_that_is_not_used(
        (budget, cap) in any_cap(), namespaces in 1..4_usize, at in 0..4_usize, key in 0..3_usize,
        before in prop::collection::vec((0..4_usize, 0..3_usize, 1..4_i128), 0..6)
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        world.settle();
        for (ns, key, n) in before {
            world.act(&Act::Admit(ns, key, n));
        }
        let at = at % namespaces;
        loop {
            world.wants.insert((at, key), (1, Stage::Open));
            world.settle();
            let used = world.used[at][key];
            world.act(&Act::Admit(at, key, 1));
            prop_assert!(world.is_within());
            if world.used[at][key] == used {
                break;
            }
        }
        let weighs = |world: &World| (0..3).map(|k| world.used.iter().map(|u| u[k]).sum::<i128>() * 1000 * cap.device(KEYS[k])).sum::<i128>();
        let all: i128 = world.used.iter().map(|u| u[key]).sum();
        let fits = weighs(&world) + 1000 * cap.device(KEYS[key]) <= cap.limit();
        prop_assert!(all == budget[key] || !fits, "one more would fit: {:?} used {:?}", world.quotas, world.used);
    }
}

/// Budgets of three resources, and a cap that holds all of them, some of them, or nothing.
fn any_cap() -> impl Strategy<Value = (Counts, Cap)> {
    let weight =
        prop_oneof![Just((1, 1)), Just((1, 8)), Just((4, 8)), Just((2, 4)), Just((1, 3)), Just((3, 4)), Just((1, 7))];
    let weights = prop::collection::vec(weight, 2).prop_map(|weights| {
        // a whole GPU is not listed, and weighs the most
        let keys = KEYS[1..].iter().map(|key| (*key).to_owned());
        keys.zip(weights).filter_map(|(key, (slices, of))| Some((key, Weight::new(slices, of)?))).collect()
    });
    (prop::collection::vec(0..12_i128, 3), 0..7000_i128, prop_oneof![Just(1_i128), Just(500)], weights).prop_map(
        |(budget, milli, round, weights)| (budget, Cap { whole: Amount::of_milli(milli / round * round), weights }),
    )
}
