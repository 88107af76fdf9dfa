//! Schedules of writes: two leaders at once, lagging caches, writes that arrive late, out of order or never, lost answers, restarts, a
//! quota that a user deletes. After every write the sum is within the budget, and under a cap its weight is within the cap.

use std::collections::HashMap;

use super::{
    write_fence::{FencingToken, WriteFence},
    *,
};

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
    token: FencingToken,
    written: Counts,
    enforced: Option<Counts>,
}

/// A write in flight.
#[derive(Clone, Debug)]
struct InFlight {
    leader: usize,
    at: usize,
    /// The version it was decided on; 0: there must be none.
    decided_on: u64,
    token: FencingToken,
    limit: Counts,
}

struct Leader {
    fence: WriteFence,
    /// The cached namespaces and quotas.
    cache: Vec<Cached>,
    waits_for: Option<(usize, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Cached {
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
    in_flight: Vec<InFlight>,
    /// By namespace and resource.
    demands: HashMap<(usize, usize), (i128, DemandStage)>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A leader decides and sends its writes.
    Decide(usize),
    /// A write arrives; false: its answer is lost.
    Arrive(usize, bool),
    /// A write is lost.
    Lose(usize),
    /// A leader stops waiting for its cache to show its last write.
    StopWaiting(usize),
    /// A leader's cache is updated for a namespace.
    Update(usize, usize),
    /// The quota controller enforces the limits.
    Enforce(usize),
    /// A pod is created, or refused: in a namespace, of a resource.
    Admit(usize, usize, i128),
    /// Pods end.
    End(usize, usize, i128),
    /// Controllers are refused.
    Refuse(usize, usize, i128, DemandStage),
    /// Another process becomes leader; the old one has not noticed.
    ChangeLeader,
    /// A user deletes a quota.
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
            in_flight: Vec::new(),
            demands: HashMap::new(),
        };
        world.change_leader();
        world
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn change_leader(&mut self) {
        self.term = self.next();
        let cache = (0..self.there.len()).map(|at| self.cached(at)).collect();
        self.leaders.push(Leader { fence: WriteFence::new(self.term), cache, waits_for: None });
    }

    fn cached(&self, at: usize) -> Cached {
        Cached { there: self.there[at], quota: self.quotas[at].clone(), used: self.used[at].clone() }
    }

    /// The current leader or the one before it.
    fn leader(&self, which: usize) -> usize {
        self.leaders.len() - 1 - which.min(self.leaders.len() - 1).min(1)
    }

    fn decide(&mut self, which: usize) {
        let index = self.leader(which);
        let leader = &mut self.leaders[index];
        // as the controller does: the cache has to show its own last write first
        if let Some((at, version)) = leader.waits_for {
            if leader.cache[at].quota.as_ref().is_none_or(|q| q.version < version) {
                return;
            }
            leader.waits_for = None;
        }
        if leader
            .cache
            .iter()
            .any(|s| s.quota.as_ref().is_some_and(|q| leader.fence.is_superseded(q.version, Some(q.token))))
        {
            return;
        }
        let unseen = leader.fence.unseen("t", |name| name.parse().is_ok_and(|at: usize| leader.cache[at].there));
        let namespaces: Vec<NamespaceQuota> = leader
            .cache
            .iter()
            .enumerate()
            .map(|(at, cached)| {
                let presence = match &cached.quota {
                    Some(q) => Presence::Quota {
                        state: QuotaState {
                            written: hard(&q.written),
                            enforced: q.enforced.as_deref().map(hard).unwrap_or_default(),
                            used: q.enforced.as_ref().map(|_| hard(&cached.used)).unwrap_or_default(),
                        },
                        fenced: leader.fence.is_fenced("t", &at.to_string(), q.version, Some(q.token)),
                    },
                    None if cached.there || unseen.contains(&at.to_string()) => Presence::NoQuota,
                    None => Presence::NewNamespace,
                };
                let wanted = |((_, key), (n, stage)): (&(usize, usize), &(i128, DemandStage))| PodDemand {
                    amounts: [(KEYS[*key].to_owned(), Amount::of_milli(n * 1000))].into(),
                    stage: *stage,
                };
                let demands = self.demands.iter().filter(|((ns, _), _)| *ns == at).map(wanted).collect();
                NamespaceQuota { open: true, presence, counted: true, pod_requests: Amounts::new(), demands }
            })
            .collect();
        let budget = hard(&self.budget);
        let actions = decide(&budget, self.cap.as_ref(), &namespaces, false).actions;
        // missing namespaces are created first; a conflict ends the reconcile
        for at in 0..self.there.len() {
            if !leader.cache[at].there && std::mem::replace(&mut self.there[at], true) {
                return;
            }
        }
        for (at, action) in actions.into_iter().enumerate() {
            let cached = leader.cache[at].clone();
            let limit = match action {
                QuotaAction::Keep => continue,
                QuotaAction::Touch => cached.quota.as_ref().unwrap().written.clone(),
                QuotaAction::Write(limits) => {
                    (0..self.budget.len()).map(|key| limits[KEYS[key]].0.parse().unwrap()).collect()
                }
            };
            let decided_on = cached.quota.as_ref().map_or(0, |q| q.version);
            let token = leader.fence.begin("t", &at.to_string(), decided_on);
            self.in_flight.push(InFlight { leader: index, at, decided_on, token, limit });
        }
    }

    fn arrive(&mut self, which: usize, answered: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let which = which % self.in_flight.len();
        let InFlight { leader, at, decided_on, token, limit } = self.in_flight.swap_remove(which);
        let present = self.quotas[at].as_ref().map_or(0, |q| q.version);
        if present != decided_on {
            return;
        }
        let version = self.next();
        let enforced = self.quotas[at].as_ref().and_then(|q| q.enforced.clone());
        self.quotas[at] = Some(Quota { version, token, written: limit, enforced });
        if answered {
            self.leaders[leader].fence.done("t", &at.to_string(), version);
            self.leaders[leader].waits_for = Some((at, version));
        }
    }

    fn apply(&mut self, step: &Step) {
        let (n, keys) = (self.there.len(), self.budget.len());
        match *step {
            Step::Decide(which) => self.decide(which),
            Step::Arrive(which, answered) => self.arrive(which, answered),
            Step::Lose(which) if !self.in_flight.is_empty() => {
                let which = which % self.in_flight.len();
                self.in_flight.swap_remove(which);
            }
            Step::Lose(_) => {}
            Step::StopWaiting(which) => {
                let index = self.leader(which);
                self.leaders[index].waits_for = None;
            }
            Step::Update(which, at) => {
                let cached = self.cached(at % n);
                let index = self.leader(which);
                self.leaders[index].cache[at % n] = cached;
            }
            Step::Enforce(at) => {
                let version = self.next();
                if let Some(quota) = &mut self.quotas[at % n]
                    && quota.enforced.as_ref() != Some(&quota.written)
                {
                    quota.enforced = Some(quota.written.clone());
                    quota.version = version;
                }
            }
            Step::Admit(at, key, amount) => {
                let used = self.used[at % n][key % keys] + amount;
                let version = self.next();
                if let Some(quota) = &mut self.quotas[at % n]
                    && quota.enforced.as_ref().is_some_and(|hard| used <= hard[key % keys])
                {
                    self.used[at % n][key % keys] = used;
                    quota.version = version;
                }
            }
            Step::End(at, key, amount) => {
                let version = self.next();
                let used = &mut self.used[at % n][key % keys];
                *used = (*used - amount).max(0);
                if let Some(quota) = &mut self.quotas[at % n] {
                    quota.version = version;
                }
            }
            Step::Refuse(at, key, amount, stage) => _ = self.demands.insert((at % n, key % keys), (amount, stage)),
            Step::ChangeLeader => self.change_leader(),
            Step::Delete(at) => {
                self.quotas[at % n] = None;
                // creations that were sent before the deletion are over: no request takes longer than a minute
                self.in_flight.retain(|flight| flight.at != at % n || flight.decided_on != 0);
            }
        }
    }

    /// The most that may be granted of each resource.
    fn granted(&self) -> Counts {
        let most = |at: usize, key: usize| {
            let quota = self.quotas[at].as_ref();
            let limit = quota.map_or(0, |q| q.written[key].max(q.enforced.as_ref().map_or(0, |hard| hard[key])));
            limit.max(self.used[at][key])
        };
        (0..self.budget.len()).map(|key| (0..self.there.len()).map(|at| most(at, key)).sum()).collect()
    }

    /// Without a cap there is one resource.
    fn most(&self) -> i128 {
        self.granted()[0]
    }

    /// What that leaves of the cap, in thousandths of its parts; negative: exceeded.
    fn free(&self) -> i128 {
        let cap = self.cap.as_ref().unwrap();
        let weighs = self.granted().iter().zip(KEYS).map(|(n, key)| n * 1000 * cap.device(key)).sum::<i128>();
        cap.limit() - weighs
    }

    fn is_within(&self) -> bool {
        let each = self.granted().iter().zip(&self.budget).all(|(granted, budget)| granted <= budget);
        each && (self.cap.is_none() || self.free() >= 0)
    }

    /// All caches are current and all writes arrive; returns the number of writes until the leader has converged.
    fn converge(&mut self) -> usize {
        let mut writes = 0;
        for _ in 0..40 {
            self.apply(&Step::StopWaiting(0));
            for at in 0..self.there.len() {
                self.apply(&Step::Enforce(at));
                self.apply(&Step::Update(0, at));
            }
            self.decide(0);
            if self.in_flight.is_empty() {
                return writes;
            }
            while !self.in_flight.is_empty() {
                self.arrive(0, true);
                writes += 1;
            }
        }
        panic!("the leader does not converge: {:?} {:?}", self.quotas, self.used)
    }
}

fn any_stage() -> impl Strategy<Value = DemandStage> {
    prop_oneof![4 => Just(DemandStage::Waiting), 1 => Just(DemandStage::Reserved), 1 => Just(DemandStage::Settling)]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize).prop_map(Step::Decide),
        8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, answered)| Step::Arrive(which, answered)),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => (0..2_usize).prop_map(Step::StopWaiting),
        8 => (prop::bool::weighted(0.3), 0..4_usize).prop_map(|(old, at)| Step::Update(usize::from(old), at)),
        6 => (0..4_usize).prop_map(Step::Enforce),
        5 => (0..4_usize, 0..3_usize, 1..4_i128).prop_map(|(at, key, n)| Step::Admit(at, key, n)),
        2 => (0..4_usize, 0..3_usize, 1..4_i128).prop_map(|(at, key, n)| Step::End(at, key, n)),
        3 => (0..4_usize, 0..3_usize, 0..5_i128, any_stage()).prop_map(|(at, key, n, stage)| Step::Refuse(at, key, n, stage)),
        1 => Just(Step::ChangeLeader),
        1 => (0..4_usize).prop_map(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(10_000), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn sum_stays_within_the_budget_under_any_schedule_of_writes(
        budget in 0..12_i128, namespaces in 1..5_usize, steps in prop::collection::vec(any_step(), 1..60)
    ) {
        let mut world = World::new(budget, namespaces);
        for (at, step) in steps.iter().enumerate() {
            world.apply(step);
            prop_assert!(world.most() <= budget, "after {step:?} (number {at}): {:?}, used {:?}", world.quotas, world.used);
        }
        // all of the budget is granted in the end
        world.demands.clear();
        world.converge();
        prop_assert_eq!(world.most(), budget, "a part of the budget is not granted: {:?}", world.quotas);
        prop_assert_eq!(world.converge(), 0, "a converged tenant is not written");
    }

    /// Once converged, a namespace with demand for the whole budget gets it with one write for each other namespace and one of its own; a
    /// new leader touches quotas to fence them.
    #[test]
    fn any_one_namespace_can_get_the_whole_budget(
        budget in 1..30_i128, namespaces in 1..6_usize, at in 0..6_usize, new_leader in any::<bool>()
    ) {
        let mut world = World::new(budget, namespaces);
        world.converge();
        if new_leader {
            world.change_leader();
        }
        let at = at % namespaces;
        world.demands.insert((at, 0), (budget, DemandStage::Waiting));
        let writes = world.converge();
        prop_assert_eq!(world.quotas[at].as_ref().unwrap().enforced.as_deref(), Some(&[budget][..]));
        prop_assert!(writes <= namespaces, "{} writes", writes);
    }

    #[test]
    fn weight_stays_within_the_cap_under_any_schedule_of_writes(
        (budget, cap) in any_cap(), namespaces in 1..5_usize, steps in prop::collection::vec(any_step(), 1..60)
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        for (at, step) in steps.iter().enumerate() {
            world.apply(step);
            prop_assert!(world.is_within(), "after {step:?} (number {at}): {:?}, used {:?}", world.quotas, world.used);
        }
        world.demands.clear();
        world.converge();
        for (key, granted) in world.granted().into_iter().enumerate() {
            let fits = cap.device(KEYS[key]) * 1000 <= world.free();
            prop_assert!(granted == budget[key] || !fits, "{} has headroom left: {:?}", KEYS[key], world.quotas);
        }
        prop_assert_eq!(world.converge(), 0, "a converged tenant is not written");
    }

    /// Once converged, one resource of one namespace can get the whole cap, with one write for each other quota and two of its own.
    #[test]
    fn any_one_resource_of_one_namespace_can_get_the_whole_cap(
        (budget, cap) in any_cap(), namespaces in 1..6_usize, at in 0..6_usize, key in 0..3_usize, new_leader in any::<bool>()
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        world.converge();
        if new_leader {
            world.change_leader();
        }
        let at = at % namespaces;
        let most = budget[key].min(cap.limit() / cap.device(KEYS[key]) / 1000);
        world.demands.insert((at, key), (most, DemandStage::Waiting));
        let writes = world.converge();
        prop_assert_eq!(world.quotas[at].as_ref().unwrap().enforced.as_ref().unwrap()[key], most);
        prop_assert!(writes <= namespaces + 1, "{} writes", writes);
    }

    /// Pods that are created one by one, each refused first, get all that others do not use.
    #[test]
    fn pods_created_one_by_one_get_all_unused_devices(
        (budget, cap) in any_cap(), namespaces in 1..4_usize, at in 0..4_usize, key in 0..3_usize,
        before in prop::collection::vec((0..4_usize, 0..3_usize, 1..4_i128), 0..6)
    ) {
        let mut world = World::under(budget.clone(), Some(cap.clone()), namespaces);
        world.converge();
        for (ns, key, n) in before {
            world.apply(&Step::Admit(ns, key, n));
        }
        let at = at % namespaces;
        loop {
            world.demands.insert((at, key), (1, DemandStage::Waiting));
            world.converge();
            let used = world.used[at][key];
            world.apply(&Step::Admit(at, key, 1));
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
