//! How a tenant's budget lies on its namespaces, and how it moves: lower first, and raise only when the lower limit is in force.
//!
//! Admission compares with a quota's `status.hard`, which follows `spec.hard` a moment later, so what may still be granted under a
//! quota is the larger of the two. [`step`] keeps the sum of these over a tenant's namespaces within the budget, for each resource,
//! whatever becomes of the writes that it orders. [`step_under`] keeps what all devices of a tenant weigh within a cap as well.

mod cap_allocation;
mod cap_commitment;

mod target;
#[cfg(test)]
mod tests;
mod water_filling;
mod weight;
mod weighted_water_filling;
pub mod write_fence;

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::quantity::Amount;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use cap_allocation::{Line, allot};
use cap_commitment::Ceiling;
pub use target::Stage;
use target::{Seat, target};
pub use weight::{Cap, Weight, is_gpu_key};

/// Limits by quota key.
pub type Limits = BTreeMap<String, Quantity>;
/// Amounts by quota key.
pub type Amounts = BTreeMap<String, Amount>;

/// A quota as it stands: admission compares with `in_force`, which follows `written` a moment later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// `spec.hard`.
    pub written: Limits,
    /// `status.hard`.
    pub in_force: Limits,
    /// `status.used`.
    pub used: Limits,
}

/// What there is of a namespace and its quota.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// The namespace is about to be made, before any quota is written: nothing can run in it.
    Fresh,
    /// The namespace has no quota: what runs in it is not known.
    Bare,
    /// The quota as it stands. `firm`: no write of ours, or of a leader before us, can change it unseen.
    There {
        /// The quota.
        standing: Standing,
        /// Nobody can raise it unseen.
        firm: bool,
    },
    /// The namespace is on its way out, and its quota has gone already: nothing can be admitted there.
    Going,
}

/// What a controller of a namespace was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// For one pod.
    pub amounts: Amounts,
    /// How sure it is that this is still wanted.
    pub stage: Stage,
}

/// One namespace of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// It may get new work; false: it keeps what it uses.
    pub open: bool,
    /// Its quota.
    pub presence: Presence,
    /// No limit has come down in it so lately that pods may be under way which were admitted before, and are not counted yet.
    pub steady: bool,
    /// What its pods are seen to ask for: the quota controller may have counted before the last of them was there.
    pub held: Amounts,
    /// What its controllers were refused.
    pub wants: Vec<Wanted>,
}

/// What to do about one quota.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Nothing.
    Leave,
    /// Write these limits.
    Write(Limits),
    /// Write it as it is, so that nobody can change it unseen any more.
    Touch,
}

/// The decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// For each account.
    pub orders: Vec<Order>,
    /// The limits of each account in the end.
    pub targets: Vec<Limits>,
    /// What is used beyond the budget, by quota key.
    pub over: Amounts,
    /// What is used weighs so much beyond the cap, in whole GPUs.
    pub over_cap: Amount,
    /// A limit waits for namespaces to be steady, and for nothing else.
    pub waits: bool,
}

impl Account {
    fn standing(&self) -> Option<&Standing> {
        match &self.presence {
            Presence::There { standing, .. } => Some(standing),
            _ => None,
        }
    }

    fn used(&self, key: &str) -> Amount {
        let said = self.standing().and_then(|s| amount(&s.used, key)).unwrap_or_default();
        said.max(self.held.get(key).copied().unwrap_or_default())
    }

    /// The most that may be granted under this quota from now on, should nobody write it again.
    fn at_most(&self, key: &str) -> Amount {
        let Some(standing) = self.standing() else { return Amount::default() };
        let of = |limits: &Limits| amount(limits, key).unwrap_or_default();
        of(&standing.written).max(of(&standing.in_force))
    }

    /// Are its limit and its use of this resource known?
    fn settled(&self, key: &str) -> bool {
        match &self.presence {
            Presence::Fresh | Presence::Going => true,
            Presence::Bare => false,
            // limit and use come into the status together
            Presence::There { standing, .. } => standing.in_force.contains_key(key),
        }
    }

    fn firm(&self) -> bool {
        !matches!(self.presence, Presence::There { firm: false, .. })
    }

    fn seat(&self, key: &str, suspended: bool) -> Seat {
        let want = |w: &Wanted| Some(target::Want { amount: w.amounts.get(key)?.milli(), stage: w.stage });
        let wants: Vec<_> = self.wants.iter().filter_map(want).filter(|w| w.amount > 0).collect();
        let limit = self.standing().and_then(|s| amount(&s.written, key)).map(Amount::milli);
        Seat { open: self.open && !suspended, used: self.used(key).milli(), limit, wants }
    }
}

fn amount(limits: &Limits, key: &str) -> Option<Amount> {
    limits.get(key).and_then(Amount::parse)
}

/// Decides what to write now. `budget` has every resource that is limited; `suspended`: nobody gets anything new.
///
/// Limits are lowered at once. One is raised only when every other quota of the tenant is known in full, cannot be raised unseen,
/// and leaves room for the whole rise by what it may grant at most. GPU resources that a quota has beyond the budget stay, at zero:
/// a key that vanishes is a limit lifted.
pub fn step(budget: &Limits, accounts: &[Account], suspended: bool) -> Step {
    decide(budget, None, accounts, suspended)
}

/// As [`step`], and what may be granted of all GPU resources together weighs no more than `cap`. A limit then rises only when all
/// quotas are known in full of all these resources, and leave room under the cap: what one resource gives up is in force before
/// another gets it.
pub fn step_under(budget: &Limits, cap: &Cap, accounts: &[Account], suspended: bool) -> Step {
    // what nothing limits any more may still be in use
    let zero = || Amount::default().quantity();
    let gone = accounts.iter().flat_map(|a| beyond(a).into_keys()).map(|key| (key, zero()));
    let budget: Limits = gone.chain(budget.clone()).collect();
    decide(&budget, Some(cap), accounts, suspended)
}

fn decide(budget: &Limits, cap: Option<&Cap>, accounts: &[Account], suspended: bool) -> Step {
    let mut step = Step::default();
    let mut hard: Vec<Limits> = accounts.iter().map(beyond).collect();
    let mut unsure = BTreeSet::new();
    let mut read = Vec::new();
    for (key, text) in budget {
        let Some(whole) = Amount::parse(text) else {
            // not a quantity: the API server says so in its own words
            for limits in &mut hard {
                limits.insert(key.clone(), text.clone());
            }
            continue;
        };
        let seats: Vec<Seat> = accounts.iter().map(|a| a.seat(key, suspended)).collect();
        read.push((key, text, whole, seats));
    }
    let mut ceiling = cap.map(|cap| {
        let keys = read.iter().map(|(key, ..)| key.as_str()).filter(|key| is_gpu_key(key));
        Ceiling::of(cap, keys.collect(), accounts)
    });
    let allotted = cap.map(|cap| allotted(cap, &read)).unwrap_or_default();
    step.over_cap = ceiling.as_ref().map(Ceiling::over).unwrap_or_default();
    for (key, text, whole, seats) in read {
        let used: Amount = accounts.iter().map(|a| a.used(key)).sum();
        if used > whole {
            step.over.insert(key.clone(), used.less(whole));
        }
        let most = allotted.get(key).copied().unwrap_or(whole);
        let wanted: Vec<Amount> = target(most.milli(), unit(key), &seats).into_iter().map(Amount::of_milli).collect();
        let Now { limits: now, unsure: waits_for, waits } = key_now(key, whole, accounts, &wanted, &mut ceiling);
        step.waits |= waits;
        unsure.extend(waits_for);
        let write = |amount: Amount| if amount == whole { text.clone() } else { quantity(key, amount) };
        step.targets.resize(accounts.len(), Limits::new());
        for (limits, amount) in hard.iter_mut().zip(now) {
            limits.insert(key.clone(), write(amount));
        }
        for (limits, amount) in step.targets.iter_mut().zip(wanted) {
            limits.insert(key.clone(), write(amount));
        }
    }
    step.targets.resize(accounts.len(), Limits::new());
    let order = |(at, (account, limits)): (usize, (&Account, Limits))| match &account.presence {
        Presence::Going => Order::Leave,
        Presence::There { standing, .. } if same(&limits, &standing.written) => {
            if unsure.contains(&at) {
                Order::Touch
            } else {
                Order::Leave
            }
        }
        _ => Order::Write(limits),
    };
    step.orders = accounts.iter().zip(hard).enumerate().map(order).collect();
    step
}

/// What to write now for one resource.
struct Now {
    limits: Vec<Amount>,
    /// Quotas that have to be made firm before others can rise.
    unsure: BTreeSet<usize>,
    /// A limit waits for namespaces to be steady.
    waits: bool,
}

/// A key of the budget, as written and as an amount, and its namespaces.
type Entry<'a> = (&'a String, &'a Quantity, Amount, Vec<Seat>);

/// The budget of each GPU resource while the cap lies as it does.
fn allotted(cap: &Cap, read: &[Entry<'_>]) -> Amounts {
    let held: Vec<&Entry<'_>> = read.iter().filter(|(key, ..)| is_gpu_key(key)).collect();
    let line = |(key, _, whole, seats): &&Entry<'_>| Line {
        weight: cap.device(key),
        most: whole.milli(),
        seats: seats.clone(),
    };
    let lines: Vec<Line> = held.iter().map(line).collect();
    let budgets = allot(cap.limit(), &lines).into_iter().map(Amount::of_milli);
    held.into_iter().map(|(key, ..)| (*key).clone()).zip(budgets).collect()
}

fn key_now(
    key: &str,
    budget: Amount,
    accounts: &[Account],
    wanted: &[Amount],
    ceiling: &mut Option<Ceiling<'_>>,
) -> Now {
    let mut ceiling = ceiling.as_mut().filter(|_| is_gpu_key(key));
    let written = |a: &Account| a.standing().and_then(|s| amount(&s.written, key));
    // first what is certainly safe: no more than may be granted already
    let safe = |(a, wanted): (&Account, &Amount)| {
        if *wanted <= a.at_most(key) { *wanted } else { written(a).unwrap_or_default() }
    };
    let limits = accounts.iter().zip(wanted).map(safe).collect();
    let mut now = Now { limits, unsure: BTreeSet::new(), waits: false };
    for (at, (account, wanted)) in accounts.iter().zip(wanted).enumerate() {
        let others = || accounts.iter().enumerate().filter(move |(index, _)| *index != at);
        if *wanted <= account.at_most(key) || !account.settled(key) || !others().all(|(_, a)| a.settled(key)) {
            continue;
        }
        if ceiling.as_ref().is_some_and(|ceiling| !ceiling.is_settled()) {
            continue;
        }
        let fresh = matches!(account.presence, Presence::Fresh);
        // another may be making it just now: first it has to be there
        if !fresh && others().any(|(_, a)| a.presence == Presence::Fresh) {
            continue;
        }
        let unsure: BTreeSet<usize> = others().filter(|(_, a)| !a.firm()).map(|(index, _)| index).collect();
        if !unsure.is_empty() {
            now.unsure.extend(unsure);
            continue;
        }
        let granted = |(index, a): (usize, &Account)| {
            let ordered = now.limits.get(index).copied().unwrap_or_default();
            a.at_most(key).max(ordered).max(a.used(key))
        };
        let room = budget.less(others().map(granted).sum());
        let room = ceiling.as_ref().map_or(room, |ceiling| room.min(ceiling.room(key, at)));
        if room < *wanted && !fresh {
            continue;
        }
        // under a cap one resource rises beside another in the same namespace
        let beside = ceiling.is_some() && !account.steady;
        if !fresh && (beside || others().any(|(_, a)| !a.steady)) {
            now.waits = true;
            continue;
        }
        let order = (*wanted).min(room);
        if let Some(limit) = now.limits.get_mut(at) {
            *limit = order;
        }
        if let Some(ceiling) = &mut ceiling {
            ceiling.order(key, at, order);
        }
    }
    now
}

/// GPU resources that a quota has and nothing limits any more: they stay, at zero.
fn beyond(account: &Account) -> Limits {
    let keys = account.standing().into_iter().flat_map(|s| s.written.keys());
    let gpus = keys.filter(|key| is_gpu_key(key));
    gpus.map(|key| (key.clone(), Amount::default().quantity())).collect()
}

/// The smallest amount that is moved, in thousandths: bytes go by the MiB, CPU by the thousandth, all else by whole numbers.
fn unit(key: &str) -> i128 {
    if is_bytes(key) {
        1000 << 20
    } else if key.ends_with("cpu") {
        1
    } else {
        1000
    }
}

fn is_bytes(key: &str) -> bool {
    key.ends_with("memory") || key.ends_with("storage") || key.contains("hugepages-")
}

/// The amount in the form that suits the resource.
pub fn quantity(key: &str, amount: Amount) -> Quantity {
    if is_bytes(key) { amount.binary() } else { amount.quantity() }
}

/// The same limits, however they are written?
pub fn same(a: &Limits, b: &Limits) -> bool {
    a.len() == b.len()
        && a.iter().all(|(key, x)| {
            b.get(key).is_some_and(|y| x == y || (Amount::parse(x).is_some() && Amount::parse(x) == Amount::parse(y)))
        })
}

/// Keys whose limits differ from these targets, or are not in force yet.
pub fn unreached<'a>(target: &'a Limits, standing: &Standing) -> BTreeSet<&'a str> {
    let there = |limits: &Limits, key: &str, wanted: &Quantity| {
        limits.get(key).is_some_and(|have| have == wanted || Amount::parse(have) == Amount::parse(wanted))
    };
    let reached = |(key, wanted): &(&'a String, &Quantity)| {
        there(&standing.written, key, wanted) && there(&standing.in_force, key, wanted)
    };
    target.iter().filter(|entry| !reached(entry)).map(|(key, _)| key.as_str()).collect()
}
