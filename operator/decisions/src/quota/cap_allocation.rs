//! The part of a cap that each resource under it gets, before that is split among the namespaces.
//!
//! It works as among namespaces (see [`super::target`]), by weight: used devices stay, the rest is headroom. Headroom goes to resources
//! with waiting pods; while no pod waits it stays where it is until a resource is short.

use super::{
    target::{DemandStage, NamespaceUsage, servable},
    weighted_water_filling::{Headroom, equalize, fill_lowest, total_weight},
};

/// One resource in all namespaces. Amounts are in thousandths of a device.
#[derive(Clone, Debug)]
pub struct ResourceUsage {
    /// Weight of one device; more than zero.
    pub weight: i128,
    /// The budget without a cap.
    pub budget: i128,
    /// The namespaces.
    pub namespaces: Vec<NamespaceUsage>,
}

const DEVICE: i128 = 1000;

impl ResourceUsage {
    fn open(&self) -> impl Iterator<Item = &NamespaceUsage> {
        self.namespaces.iter().filter(|n| n.open)
    }

    fn used(&self) -> i128 {
        self.namespaces.iter().map(|n| n.used).sum()
    }

    /// Devices that may be granted beyond those in use.
    fn bound(&self) -> i128 {
        if self.open().next().is_some() { (self.budget - self.used()).max(0) / DEVICE } else { 0 }
    }

    /// Devices of headroom in its namespaces.
    fn headroom(&self) -> i128 {
        self.open().map(NamespaceUsage::headroom).fold(0, i128::saturating_add) / DEVICE
    }

    /// Devices of headroom that are reserved for pods.
    fn reserved(&self) -> i128 {
        round_up(self.open().map(NamespaceUsage::reserved).sum())
    }

    fn has_demand(&self, stage: DemandStage) -> bool {
        self.open().any(|n| n.has_demand(stage))
    }

    /// Devices of headroom with which waiting demand can be served, out of at most `devices`.
    fn need(&self, devices: i128) -> Option<i128> {
        let served = servable(devices.saturating_mul(DEVICE), &self.namespaces);
        let others = self.namespaces.iter().enumerate().filter(|(i, n)| n.open && served.iter().all(|(at, _)| at != i));
        let kept: i128 = others.map(|(_, n)| n.reserved()).sum();
        let wanted: i128 = served.iter().map(|(_, amount)| amount).sum();
        (!served.is_empty()).then(|| round_up(wanted + kept).min(devices))
    }
}

/// The budget of each resource under a cap, in thousandths of a device: never more than its own budget, and together no heavier than the
/// cap, unless more is in use. `cap`: in thousandths of the unit of weights.
pub fn allocate_cap(cap: i128, resources: &[ResourceUsage]) -> Vec<i128> {
    let used = resources.iter().map(|r| r.used().saturating_mul(r.weight)).fold(0, i128::saturating_add);
    let slack = cap.saturating_sub(used);
    if slack < 0 {
        return resources.iter().map(|r| admit_nothing(slack.saturating_neg(), r)).collect();
    }
    // from here on weights are of whole devices
    let slack = slack / DEVICE;
    let states = states(slack, resources);
    let served = served(slack, resources, &states);
    let headrooms =
        if served.is_empty() { rebalance(slack, resources, &states) } else { serve(slack, &states, &served) };
    let budget = |(r, h): (&ResourceUsage, &Headroom)| (r.used() + h.devices * DEVICE).min(r.budget).max(0);
    resources.iter().zip(&headrooms).map(budget).collect()
}

/// Use exceeds the cap by `over`: no resource admits a pod before that much has ended.
fn admit_nothing(over: i128, resource: &ResourceUsage) -> i128 {
    let weight = resource.weight.max(1);
    let devices = round_up(over / weight + i128::from(over % weight > 0));
    (resource.used() - devices.saturating_mul(DEVICE)).min(resource.budget).max(0)
}

/// What the allocation of one resource depends on.
struct ResourceState {
    /// Its headroom: no more than its bound, and no more than there is for all together.
    current: Headroom,
    /// Most devices of headroom, by its own budget and by the cap.
    bound: i128,
    /// Devices that are reserved for pods.
    reserved: i128,
}

impl ResourceState {
    fn headroom(&self, devices: i128) -> Headroom {
        Headroom { devices, ..self.current }
    }

    /// The equal share of weight as devices.
    fn devices_in(&self, share: i128) -> i128 {
        share / self.current.weight.max(1)
    }
}

fn states(slack: i128, resources: &[ResourceUsage]) -> Vec<ResourceState> {
    let bounds: Vec<i128> = resources.iter().map(|r| r.bound().min(slack / r.weight.max(1))).collect();
    let current =
        |(r, bound): (&ResourceUsage, &i128)| Headroom { weight: r.weight, devices: r.headroom().clamp(0, *bound) };
    let mut headrooms: Vec<Headroom> = resources.iter().zip(&bounds).map(current).collect();
    if total_weight(&headrooms) > slack {
        // the limits together exceed the cap, after an edit or with a lower cap
        let (all, devices): (Vec<usize>, Vec<i128>) = headrooms.iter().map(|h| h.devices).enumerate().unzip();
        equalize(&mut headrooms, &all, slack, |i| (0, devices.get(i).copied().unwrap_or(0)));
    }
    let state = |((resource, bound), current): ((&ResourceUsage, i128), Headroom)| ResourceState {
        current,
        bound,
        reserved: resource.reserved().min(current.devices),
    };
    resources.iter().zip(bounds).zip(headrooms).map(state).collect()
}

/// Resources with waiting demand that fits, with the devices of headroom for it: the lowest use by weight first.
fn served(slack: i128, resources: &[ResourceUsage], states: &[ResourceState]) -> Vec<(usize, i128)> {
    let mut left = slack - states.iter().map(|s| s.headroom(s.reserved).total_weight()).sum::<i128>();
    let mut order: Vec<(usize, &ResourceUsage, &ResourceState)> =
        resources.iter().zip(states).enumerate().map(|(i, (r, s))| (i, r, s)).collect();
    order.sort_by_key(|(index, r, _)| (r.used().saturating_mul(r.weight), *index));
    let mut served = Vec::new();
    for (index, resource, state) in order {
        let most = (state.reserved + state.devices_in(left.max(0))).min(state.bound);
        let Some(devices) = resource.need(most) else { continue };
        let devices = devices.max(state.reserved);
        left -= (devices - state.reserved) * resource.weight;
        served.push((index, devices));
    }
    served.sort_unstable();
    served
}

/// Pods wait: the served resources get their demand and all that the others need not keep.
fn serve(slack: i128, states: &[ResourceState], served: &[(usize, i128)]) -> Vec<Headroom> {
    let demand = |i: usize| served.iter().find(|(s, _)| *s == i).map(|(_, devices)| *devices);
    let open = states.iter().filter(|s| s.bound > 0);
    let others: Vec<usize> = (0..states.len()).filter(|i| demand(*i).is_none()).collect();
    let least = |(index, s): (usize, &ResourceState)| s.headroom(demand(index).unwrap_or(s.reserved));
    let mut headrooms: Vec<Headroom> = states.iter().enumerate().map(least).collect();
    // each keeps a fourth of its equal share, at least one device, nothing where there is less than one device for each
    let one_each = open.clone().map(|s| s.current.weight).sum::<i128>() <= slack;
    let share = slack / number(open.count()).max(1);
    let most = (slack - total_weight(&headrooms)).max(0) / number(others.len()).max(1);
    for index in others.iter().filter(|_| one_each) {
        if let (Some(state), Some(headroom)) = (states.get(*index), headrooms.get_mut(*index)) {
            let keep = state.devices_in(share / 4).max(1).min(state.devices_in(most));
            headroom.devices = headroom.devices.max(keep.min(state.current.devices));
        }
    }
    let waiting: Vec<usize> = served.iter().map(|(index, _)| *index).collect();
    fill_lowest(&mut headrooms, &waiting, slack, |i| states.get(i).map_or(0, |s| s.bound));
    // the others keep what the served resources cannot have; what no resource had is distributed once no pod waits
    fill_lowest(&mut headrooms, &others, slack, |i| states.get(i).map_or(0, |s| s.current.devices));
    headrooms
}

/// No pod waits. Headroom stays, apart from what no resource has yet, and resources that have become short: with less than half of their
/// equal share.
fn rebalance(slack: i128, resources: &[ResourceUsage], states: &[ResourceState]) -> Vec<Headroom> {
    let all: Vec<usize> = (0..states.len()).collect();
    let bound = |i: usize| states.get(i).map_or(0, |s| s.bound);
    let mut headrooms: Vec<Headroom> = states.iter().map(|s| s.current).collect();
    let with_demand = |stage: DemandStage| -> Vec<usize> {
        resources.iter().enumerate().filter(|(_, r)| r.has_demand(stage)).map(|(i, _)| i).collect()
    };
    let (reserved, settling) = (with_demand(DemandStage::Reserved), with_demand(DemandStage::Settling));
    if reserved.is_empty() && settling.is_empty() {
        refill_short(slack, states, &mut headrooms);
    } else {
        // limits are moving to pods that have just waited: no resource is lowered until that is over
        fill_lowest(&mut headrooms, if reserved.is_empty() { &settling } else { &reserved }, slack, bound);
    }
    fill_lowest(&mut headrooms, &all, slack, bound);
    headrooms
}

/// Fills short resources up to their equal share, from those that have more than theirs.
fn refill_short(slack: i128, states: &[ResourceState], headrooms: &mut [Headroom]) {
    let share = slack / number(states.iter().filter(|s| s.bound > 0).count()).max(1);
    let fair = |i: usize| states.get(i).map_or(0, |s| s.devices_in(share).min(s.bound));
    let chosen = |test: &dyn Fn(i128, i128) -> bool| -> Vec<usize> {
        headrooms.iter().enumerate().filter(|(i, h)| test(h.devices, fair(*i))).map(|(i, _)| i).collect()
    };
    let short = chosen(&|devices, fair| devices * 2 < fair);
    // the last device is not moved without demand: a controller that it was reserved for may retry late
    let donors = chosen(&|devices, fair| devices > fair.max(1));
    let missing: i128 = short
        .iter()
        .filter_map(|i| Some((i, headrooms.get(*i)?)))
        .map(|(i, h)| h.weight * (fair(*i) - h.devices))
        .sum();
    let missing = missing - (slack - total_weight(headrooms));
    if missing > 0 {
        let devices: Vec<i128> = headrooms.iter().map(|h| h.devices).collect();
        let donated: i128 = donors.iter().filter_map(|i| headrooms.get(*i)).map(|h| h.total_weight()).sum();
        let bounds = |i: usize| (fair(i).max(1), devices.get(i).copied().unwrap_or(0));
        equalize(headrooms, &donors, donated - missing, bounds);
    }
    fill_lowest(headrooms, &short, slack, fair);
}

fn number(n: usize) -> i128 {
    i128::try_from(n).unwrap_or(i128::MAX)
}

/// Thousandths as whole devices, rounded up.
fn round_up(thousandths: i128) -> i128 {
    thousandths.saturating_add(DEVICE - 1) / DEVICE
}
