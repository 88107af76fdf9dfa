//! Schedules of writes: two leaders that believe in themselves, views that lag, writes that arrive late, out of order or never,
//! answers that are lost, restarts, a quota that is deleted by hand. After every single write the sum is within the budget.

use std::collections::HashMap;

use super::*;
use crate::tenant::fence::{Fence, Stamp};

/// A quota as the API server has it.
#[derive(Clone, Debug)]
struct Quota {
    version: u64,
    stamp: Stamp,
    written: i128,
    in_force: Option<i128>,
}

/// A write on its way.
#[derive(Clone, Debug)]
struct Flight {
    leader: usize,
    at: usize,
    /// The version it was decided on; 0: there must be none.
    decided_on: u64,
    stamp: Stamp,
    limit: i128,
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
    used: i128,
}

struct World {
    budget: i128,
    version: u64,
    term: u64,
    there: Vec<bool>,
    quotas: Vec<Option<Quota>>,
    used: Vec<i128>,
    leaders: Vec<Leader>,
    flights: Vec<Flight>,
    wants: HashMap<usize, i128>,
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
    /// A pod is created, or refused.
    Admit(usize, i128),
    /// Pods end.
    End(usize, i128),
    /// Controllers wait, or not.
    Want(usize, i128),
    /// Another process leads from now on; the old one has not noticed.
    Succeed,
    /// Somebody deletes a quota.
    Delete(usize),
}

impl World {
    fn new(budget: i128, namespaces: usize) -> Self {
        let mut world = Self {
            budget,
            version: 10,
            term: 0,
            there: vec![false; namespaces],
            quotas: vec![None; namespaces],
            used: vec![0; namespaces],
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
        Sight { there: self.there[at], quota: self.quotas[at].clone(), used: self.used[at] }
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
                            written: limits(q.written),
                            in_force: q.in_force.map(limits).unwrap_or_default(),
                            used: q.in_force.map(|_| limits(sight.used)).unwrap_or_default(),
                        },
                        firm: leader.fence.is_firm("t", &at.to_string(), q.version, Some(q.stamp)),
                    },
                    None if sight.there || unseen.contains(&at.to_string()) => Presence::Bare,
                    None => Presence::Fresh,
                };
                let wants = self.wants.get(&at).map(|n| Wanted {
                    amounts: [(GPU.to_owned(), Amount::of_milli(n * 1000))].into(),
                    stage: Stage::Open,
                });
                Account { open: true, presence, steady: true, held: Amounts::new(), wants: wants.into_iter().collect() }
            })
            .collect();
        let orders = step(&limits(self.budget), &accounts, false).orders;
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
                Order::Touch => sight.quota.as_ref().unwrap().written,
                Order::Write(limits) => limits[GPU].0.parse().unwrap(),
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
        let in_force = self.quotas[at].as_ref().and_then(|q| q.in_force);
        self.quotas[at] = Some(Quota { version, stamp, written: limit, in_force });
        if answered {
            self.leaders[leader].fence.done("t", &at.to_string(), version);
            self.leaders[leader].waits_for = Some((at, version));
        }
    }

    fn act(&mut self, act: &Act) {
        let n = self.there.len();
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
                    && quota.in_force != Some(quota.written)
                {
                    quota.in_force = Some(quota.written);
                    quota.version = version;
                }
            }
            Act::Admit(at, amount) => {
                let used = self.used[at % n] + amount;
                let version = self.next();
                if let Some(quota) = &mut self.quotas[at % n]
                    && quota.in_force.is_some_and(|hard| used <= hard)
                {
                    self.used[at % n] = used;
                    quota.version = version;
                }
            }
            Act::End(at, amount) => {
                let version = self.next();
                self.used[at % n] = (self.used[at % n] - amount).max(0);
                if let Some(quota) = &mut self.quotas[at % n] {
                    quota.version = version;
                }
            }
            Act::Want(at, amount) => _ = self.wants.insert(at % n, amount),
            Act::Succeed => self.succeed(),
            Act::Delete(at) => self.quotas[at % n] = None,
        }
    }

    fn most(&self) -> i128 {
        let most = |(quota, used): (&Option<Quota>, &i128)| {
            let limit = quota.as_ref().map_or(0, |q| q.written.max(q.in_force.unwrap_or(0)));
            limit.max(*used)
        };
        self.quotas.iter().zip(&self.used).map(most).sum()
    }

    /// Everybody sees everything and all writes arrive: how many writes until nothing is left to do.
    fn settle(&mut self) -> usize {
        let mut writes = 0;
        for _ in 0..20 {
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

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..2_usize).prop_map(Act::Decide),
        8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, answered)| Act::Arrive(which, answered)),
        1 => any::<usize>().prop_map(Act::Lose),
        1 => (0..2_usize).prop_map(Act::Impatience),
        8 => (prop::bool::weighted(0.3), 0..4_usize).prop_map(|(old, at)| Act::See(usize::from(old), at)),
        6 => (0..4_usize).prop_map(Act::Follow),
        5 => (0..4_usize, 1..4_i128).prop_map(|(at, n)| Act::Admit(at, n)),
        2 => (0..4_usize, 1..4_i128).prop_map(|(at, n)| Act::End(at, n)),
        3 => (0..4_usize, 0..5_i128).prop_map(|(at, n)| Act::Want(at, n)),
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
        world.wants.insert(at, budget);
        let writes = world.settle();
        prop_assert_eq!(world.quotas[at].as_ref().unwrap().in_force, Some(budget));
        prop_assert!(writes <= namespaces, "{} writes", writes);
    }
}
