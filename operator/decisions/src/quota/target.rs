//! The limits of one resource in the namespaces of a tenant, once all writes are enforced.
//!
//! Used devices stay where they are. The rest of the budget is headroom. Headroom goes to namespaces with waiting pods. While no pod
//! waits, it is distributed over all namespaces, so that a pod without a refused predecessor fits in any of them. Limits move only when
//! a namespace has become short, and then in one step, so that the quotas of a converged tenant are not written.

use super::water_filling::{lower_highest, raise_lowest};

/// How current the demand of a refused controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandStage {
    /// A controller was refused and there is no headroom yet, or it has just used all of it.
    Waiting,
    /// Headroom is there, and the controller has not retried yet.
    Reserved,
    /// The controller has used its headroom, and may go on.
    Settling,
}

/// Demand of refused pods in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// For one pod.
    pub amount: i128,
    /// How current it is.
    pub stage: DemandStage,
}

/// Use and limit of one resource in one namespace. All amounts have the same small unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// New pods are admitted; false: the namespace keeps what it uses and gets no headroom.
    pub open: bool,
    /// Granted to its pods.
    pub used: i128,
    /// The limit that was written last, if any.
    pub limit: Option<i128>,
    /// Demand beyond `used`.
    pub demands: Vec<Demand>,
}

impl NamespaceUsage {
    /// Amount that the written limit grants, never less than its use.
    fn granted(&self) -> i128 {
        self.limit.unwrap_or(0).max(self.used)
    }

    /// Amount that it may use beyond `used` by the written limit.
    pub fn headroom(&self) -> i128 {
        self.granted() - self.used
    }

    /// Headroom reserved for a pod that is still expected, as long as it is there in full.
    pub fn reserved(&self) -> i128 {
        self.largest_demand(DemandStage::Reserved, self.headroom()).unwrap_or(0)
    }

    /// Has it demand of this stage?
    pub fn has_demand(&self, stage: DemandStage) -> bool {
        self.demands.iter().any(|demand| demand.stage == stage)
    }

    fn largest_demand(&self, stage: DemandStage, at_most: i128) -> Option<i128> {
        let fitting = self.demands.iter().filter(|d| d.stage == stage && d.amount <= at_most);
        fitting.map(|d| d.amount).max()
    }
}

/// The limit of each namespace. Together with the use of closed namespaces they equal the budget if any namespace is open, and never
/// exceed it. `unit`: limits that change are multiples of it, as far as budget and use are.
pub fn target_limits(budget: i128, unit: i128, namespaces: &[NamespaceUsage]) -> Vec<i128> {
    let used: i128 = namespaces.iter().map(|n| n.used).sum();
    let slack = budget.max(0) - used;
    if slack <= 0 {
        return admit_nothing(slack.saturating_neg(), namespaces);
    }
    let served = servable(slack, namespaces);
    if served.is_empty() {
        rebalance(slack, unit.max(1), namespaces)
    } else {
        serve(slack, unit.max(1), namespaces, &served)
    }
}

/// No headroom is left. `over`: use beyond the budget. A limit stays so far below the use of its namespace that no pod is admitted after
/// another ended, until the tenant is within its budget again.
fn admit_nothing(over: i128, namespaces: &[NamespaceUsage]) -> Vec<i128> {
    let limit = |n: &NamespaceUsage| {
        let most = (n.used - over).max(0);
        if over == 0 { most } else { n.limit.unwrap_or(0).clamp(0, most) }
    };
    namespaces.iter().map(|n| if n.open { limit(n) } else { 0 }).collect()
}

/// Namespaces whose waiting demand fits in full, with the headroom for it: the lowest use first. A demand that does not fit is skipped,
/// so that an impossible one takes nothing from other namespaces.
pub fn servable(slack: i128, namespaces: &[NamespaceUsage]) -> Vec<(usize, i128)> {
    let mut order: Vec<(usize, &NamespaceUsage)> = namespaces.iter().enumerate().filter(|(_, n)| n.open).collect();
    let mut left = slack - order.iter().map(|(_, n)| n.reserved()).sum::<i128>();
    order.sort_by_key(|(index, n)| (n.used, *index));
    let mut served = Vec::new();
    for (index, namespace) in order {
        // its own reservation may serve its waiting demand
        let own = namespace.reserved();
        if let Some(amount) = namespace.largest_demand(DemandStage::Waiting, left + own) {
            // headroom reserved for another of its pods is not given away
            let reserved = namespace.largest_demand(DemandStage::Reserved, left + own).unwrap_or(0);
            let amount = amount.max(reserved.max(own.min(left + own)));
            left -= (amount - own).max(0);
            served.push((index, amount));
        }
    }
    served.sort_unstable();
    served
}

/// Pods wait: the served namespaces get their demand and all that the others need not keep.
fn serve(slack: i128, unit: i128, namespaces: &[NamespaceUsage], served: &[(usize, i128)]) -> Vec<i128> {
    let is_served = |i: usize| served.iter().any(|(index, _)| *index == i);
    let wanted: i128 = served.iter().map(|(_, amount)| amount).sum();
    let others: Vec<(usize, &NamespaceUsage)> =
        namespaces.iter().enumerate().filter(|(i, n)| n.open && !is_served(*i)).collect();
    let reserved: i128 = others.iter().map(|(_, n)| n.reserved()).sum();
    // what rounding up may cost
    let rounding: i128 = others.iter().map(|(_, n)| round_up(n.used, unit) - n.used).sum();
    let open = others.len() + served.len();
    let keep = kept_headroom(slack, slack - wanted - reserved - rounding, unit, open, others.len());
    let mut limits = vec![0; namespaces.len()];
    for (index, namespace) in &others {
        let kept = keep.min(namespace.headroom());
        let rounded = round_up(namespace.used + kept, unit);
        // never above what it has, nor at the cost of the served namespaces
        let fits = kept > 0 && rounded <= namespace.granted();
        let least = if fits { rounded } else { namespace.used + kept };
        set(&mut limits, *index, least.max(namespace.used + namespace.reserved()));
    }
    let closed: i128 = namespaces.iter().filter(|n| !n.open).map(|n| n.used).sum();
    let total = slack + namespaces.iter().map(|n| n.used).sum::<i128>();
    let mut left = total - closed - limits.iter().sum::<i128>();
    let need = |(index, amount): &(usize, i128)| namespaces.get(*index).map_or(0, |n| n.used) + amount;
    let rounded = served.iter().map(|s| round_up(need(s), unit)).sum::<i128>() <= left;
    for entry in served {
        let need = need(entry);
        let limit = if rounded { round_up(need, unit) } else { need };
        set(&mut limits, entry.0, limit);
        left -= limit;
    }
    let mut shares = vec![0; served.len()];
    let all: Vec<usize> = (0..served.len()).collect();
    raise_lowest(&mut shares, &all, left.max(0) / unit, i128::MAX);
    for ((index, _), share) in served.iter().zip(&shares) {
        add(&mut limits, *index, share * unit);
    }
    if let Some((first, _)) = served.first() {
        add(&mut limits, *first, left.max(0) % unit);
    }
    limits
}

/// The headroom that each of `keepers` namespaces keeps while pods wait in others: a fourth of its equal share, at least one unit, nothing
/// where there is less than one unit for each open namespace.
fn kept_headroom(slack: i128, left: i128, unit: i128, open: usize, keepers: usize) -> i128 {
    let (open, keepers) = (i128::try_from(open).unwrap_or(1), i128::try_from(keepers).unwrap_or(1));
    if keepers == 0 || slack < open * unit {
        return 0;
    }
    let most = left.max(0) / keepers / unit * unit;
    (slack / (4 * open) / unit * unit).max(unit).min(most)
}

/// No pod waits. Limits stay, apart from what no namespace has yet, what is too much, and namespaces that have become short: with less
/// than half of their equal share.
fn rebalance(slack: i128, unit: i128, namespaces: &[NamespaceUsage]) -> Vec<i128> {
    let open: Vec<usize> = namespaces.iter().enumerate().filter(|(_, n)| n.open).map(|(i, _)| i).collect();
    let used = |i: usize| namespaces.get(i).map_or(0, |n| n.used);
    // limits as whole units of headroom, and the rest of each limit
    let mut headrooms: Vec<i128> = namespaces.iter().map(|n| if n.open { n.headroom() / unit } else { 0 }).collect();
    let mut rest: Vec<i128> = namespaces.iter().zip(&headrooms).map(|(n, units)| n.granted() - units * unit).collect();
    let given = |headrooms: &[i128], rest: &[i128]| -> i128 {
        let over = |i: &usize| rest.get(*i).unwrap_or(&0) - used(*i);
        open.iter().map(|i| headrooms.get(*i).unwrap_or(&0) * unit + over(i)).sum()
    };
    let excess = given(&headrooms, &rest) - slack;
    if excess > 0 {
        lower_highest(&mut headrooms, &open, round_up(excess, unit) / unit, 0);
        if given(&headrooms, &rest) > slack {
            // fractions of a unit
            for index in &open {
                set(&mut rest, *index, used(*index));
            }
        }
    }
    let free = (slack - given(&headrooms, &rest)).max(0);
    let fair = slack / i128::try_from(open.len()).unwrap_or(1).max(1) / unit;
    let with_demand = |stage: DemandStage| -> Vec<usize> {
        open.iter().filter(|i| namespaces.get(**i).is_some_and(|n| n.has_demand(stage))).copied().collect()
    };
    let (reserved, settling) = (with_demand(DemandStage::Reserved), with_demand(DemandStage::Settling));
    let short: Vec<usize> = open.iter().filter(|i| headrooms.get(**i).is_some_and(|h| h * 2 < fair)).copied().collect();
    let before = headrooms.clone();
    let mut units = free / unit;
    if reserved.is_empty() && settling.is_empty() {
        units = raise_lowest(&mut headrooms, &short, units, fair);
        let missing: i128 = short.iter().filter_map(|i| headrooms.get(*i)).map(|headroom| fair - headroom).sum();
        let untaken = lower_highest(&mut headrooms, &open, missing, fair);
        raise_lowest(&mut headrooms, &short, missing - untaken, fair);
    } else {
        // limits are moving to pods that have just waited: no namespace is lowered until that is over
        let first = if reserved.is_empty() { &settling } else { &reserved };
        units = raise_lowest(&mut headrooms, first, units, i128::MAX);
    }
    raise_lowest(&mut headrooms, &open, units, i128::MAX);
    let raised = open.iter().copied().find(|i| headrooms.get(*i) > before.get(*i));
    if let Some(first) = raised.or(open.first().copied()) {
        add(&mut rest, first, free % unit);
    }
    let limits = namespaces.iter().zip(rest).zip(headrooms);
    limits.map(|((n, rest), units)| if n.open { rest + units * unit } else { 0 }).collect()
}

fn round_up(amount: i128, unit: i128) -> i128 {
    (amount + unit - 1) / unit * unit
}

fn set(limits: &mut [i128], index: usize, amount: i128) {
    if let Some(limit) = limits.get_mut(index) {
        *limit = amount;
    }
}

fn add(limits: &mut [i128], index: usize, amount: i128) {
    if let Some(limit) = limits.get_mut(index) {
        *limit += amount;
    }
}
