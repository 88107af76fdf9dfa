//! Keeps three counts consistent without losing a pod: the device list, kubelet's device manager, and the node's allocatable.
//!
//! kubelet writes `node.status.allocatable` only every ten seconds. Meanwhile the scheduler still counts a device that was withdrawn from
//! kubelet alone, and a pod that is bound to it fails. So allocatable is lowered first and raised last. kubelet also fails a pod in flight
//! if the node's allocatable is lower than the requests of the bound pods. So allocatable is lowered in two stages: first to these
//! requests, which lets the scheduler bind no further pod, then to the target when the last pod in flight has its device.
//!
//! This module is pure; [`super::manager`] executes its actions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_crds::{names::is_device_resource, quantity::Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    device::DeviceId,
    kubelet::device_list::{DeviceList, DeviceLists, ListedDevice, healthy},
};

/// Least time for the scheduler to receive a lowered allocatable, and for kubelet to finish a pod that was bound just before.
pub const MIN_PROPAGATION: Duration = Duration::from_millis(300);

/// Most time for that: two of them must fit between kubelet's writes of the node's status, which are ten seconds apart.
const MAX_PROPAGATION: Duration = Duration::from_secs(2);

/// Propagation time after a write that took so long: if the API server or the machine is slow, the scheduler is late too. On a machine
/// with thirty times its load, 300 ms lost two of three hundred pods.
pub fn propagation(write: Duration) -> Duration {
    (write * 4).clamp(MIN_PROPAGATION, MAX_PROPAGATION)
}

/// How long a bound pod without a device counts as in flight: a busy node takes seconds.
pub const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long all counts must be zero before the agent exits: kubelet may be about to write an older number.
pub const SHUTDOWN_DELAY: Duration = Duration::from_millis(700);

/// A kubelet that watches a list and has not taken it over by then has abandoned the connection.
pub const STALE_LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of devices by resource, as in `node.status.allocatable`.
pub type Counts = BTreeMap<String, u64>;

/// Bound pods without a device of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Devices that they request.
    pub count: u64,
    /// When the newest of them was first seen.
    pub newest: Instant,
}

/// Pods in flight by resource.
pub type InFlightPods = BTreeMap<String, InFlight>;

/// Input of a step.
#[derive(Debug, Clone)]
pub struct Observation<'a> {
    /// The lists that the device view asks for.
    pub wanted: &'a DeviceLists,
    /// The lists published last, for each resource that has a plugin server.
    pub published: &'a DeviceLists,
    /// Resources whose list kubelet watches.
    pub watched: &'a BTreeSet<String>,
    /// Devices that kubelet's device manager has allocated or can allocate, by resource; none while kubelet does not answer.
    pub kubelet: Option<&'a BTreeMap<String, BTreeSet<DeviceId>>>,
    /// The node's allocatable; none before the API server has answered.
    pub node: Option<&'a Counts>,
    /// Requests of the node's pods; none without the right to read pods.
    pub requested: Option<&'a Counts>,
    /// Requests of the pods in flight.
    pub in_flight: &'a InFlightPods,
    /// The agent is about to stop. All devices are listed as unhealthy, also those in use: without a plugin, the device of a pod that
    /// ends would be allocated to a pod that fails. kubelet does the same when the plugin ends, and running pods continue.
    pub stopping: bool,
    /// Kubelet is down, or has started so recently that it may admit the node's pods again, which fails the pods that the node's allocatable has no
    /// room for: see [`crate::warm_up`].
    pub readmits: bool,
    /// See [`propagation`].
    pub propagation: Duration,
    /// The current time.
    pub now: Instant,
}

/// A device that left the list of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Withdrawal {
    at: Instant,
    /// kubelet listed the device at that time, so a list without it is a newer one.
    was_listed: bool,
    /// kubelet has taken over a list without the device.
    confirmed: bool,
}

impl Withdrawal {
    /// The updated state; none when the device may be counted again. If kubelet was never observed without the device, it has taken the
    /// list over after [`STALE_LIST_TIMEOUT`] at the latest, or does not watch it.
    fn update(self, listed: Option<bool>, now: Instant) -> Option<Self> {
        let confirmed = self.confirmed || (self.was_listed && listed == Some(false));
        let pending = now < self.at + MIN_PROPAGATION || (!confirmed && now < self.at + STALE_LIST_TIMEOUT);
        pending.then_some(Self { confirmed, ..self })
    }
}

/// What is kept between steps; a new agent starts without any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    resources: BTreeMap<String, ResourceState>,
    /// Since when all counts are zero while the agent is stopping.
    drained: Option<Instant>,
}

/// What is kept of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ResourceState {
    /// Since when allocatable is low enough for a withdrawal.
    lowered: Option<Instant>,
    /// Since when all of allocatable is requested, and no pod is in flight.
    full: Option<Instant>,
    /// Since when allocatable is above the target, or pods in flight request too many devices.
    high: Option<Instant>,
    /// Since when kubelet watches the list and has not taken it over.
    stale: Option<Instant>,
    /// Devices that left the list: kubelet may need a moment to take that over, even if the device is back by then. In the list of another
    /// resource the device counts.
    withdrawn: BTreeMap<DeviceId, Withdrawal>,
}

impl State {
    /// Time until a change has propagated, which no event reports.
    pub fn due(&self, propagation: Duration, now: Instant) -> Option<Duration> {
        let since = self.resources.values().flat_map(|resource| [resource.lowered, resource.full]).flatten();
        let left = since.map(|since| (since + propagation).saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).min()
    }
}

/// An action of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write these entries of the node's allocatable, in one patch.
    WriteAllocatable(Counts),
    /// Send this list to kubelet.
    Publish(String, DeviceList),
    /// Register the resource with kubelet again.
    Register(String),
}

/// Output of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Actions, in this order.
    pub actions: Vec<Action>,
    /// Why the wanted lists are not applied yet, one sentence per resource; empty once they are.
    pub waiting: Vec<String>,
    /// A stopping agent may exit: all counts are zero.
    pub may_exit: bool,
}

/// Numbers of devices in these quantities.
pub fn managed_counts(quantities: &BTreeMap<String, Quantity>) -> Counts {
    let count = |quantity| u64::try_from(Amount::parse(quantity)?.milli() / 1000).ok();
    let managed = quantities.iter().filter(|(resource, _)| is_device_resource(resource));
    managed.map(|(resource, quantity)| (resource.clone(), count(quantity).unwrap_or(0))).collect()
}

/// Decides the next actions.
pub fn step(before: &State, seen: &Observation<'_>) -> (State, Step) {
    let (mut next, mut step, mut counts) = (State::default(), Step::default(), Counts::new());
    let unhealthy = if seen.stopping { all_unhealthy(seen.published) } else { DeviceLists::new() };
    let wanted = if seen.stopping { &unhealthy } else { seen.wanted };
    let resources: BTreeSet<&String> = wanted.keys().chain(seen.published.keys()).collect();
    let mut drained = true;
    for &resource in &resources {
        let before = before.resources.get(resource).cloned().unwrap_or_default();
        let one = Resource::new(resource, wanted, seen, &before.withdrawn);
        let since = |holds: bool, before: Option<Instant>| holds.then(|| before.unwrap_or(seen.now));
        let (full, high) = (since(one.is_full(), before.full), since(one.is_high(), before.high));
        let lowered = since(one.is_lowered(high), before.lowered);
        let mut state = ResourceState { lowered, full, high, stale: None, withdrawn: one.withdrawn.clone() };
        if let Some(count) = one.correction(full, high) {
            counts.insert(resource.clone(), count);
        }
        let propagated = lowered.is_some_and(|since| seen.now >= since + seen.propagation);
        if let Some(list) = one.publication(propagated) {
            step.actions.push(Action::Publish(resource.clone(), list.clone()));
            state.withdrawn.extend(one.withdrawals());
        } else if one.is_stale() {
            state.stale = before.stale.or(Some(seen.now));
            if state.stale.take_if(|since| seen.now >= *since + STALE_LIST_TIMEOUT).is_some() {
                step.actions.push(Action::Register(resource.clone()));
            }
        }
        drained &= one.is_drained();
        step.waiting.extend(one.waiting());
        next.resources.insert(resource.clone(), state);
    }
    counts.extend(abandoned(&resources, seen));
    if !counts.is_empty() {
        // first, because the other actions may withdraw devices
        step.actions.insert(0, Action::WriteAllocatable(counts));
    }
    let drained = seen.stopping && drained && step.actions.is_empty();
    next.drained = drained.then(|| before.drained.unwrap_or(seen.now));
    step.may_exit = next.drained.is_some_and(|since| seen.now >= since + SHUTDOWN_DELAY);
    (next, step)
}

/// The same devices, all unhealthy.
fn all_unhealthy(lists: &DeviceLists) -> DeviceLists {
    let mut lists = lists.clone();
    lists.values_mut().flat_map(BTreeMap::values_mut).for_each(|device: &mut ListedDevice| device.healthy = false);
    lists
}

/// Managed resources without a plugin server of this agent for which the node counts more than kubelet: those of an earlier agent.
fn abandoned(served: &BTreeSet<&String>, seen: &Observation<'_>) -> Counts {
    let (Some(node), Some(kubelet)) = (seen.node, seen.kubelet) else { return Counts::new() };
    let excess = node.iter().filter_map(|(resource, count)| {
        let listed = kubelet.get(resource).map_or(0, |ids| ids.len() as u64);
        let least = listed.max(readmitted(resource, *count, seen));
        (is_device_resource(resource) && !served.contains(resource) && *count > least)
            .then(|| (resource.clone(), least))
    });
    excess.collect()
}

/// Devices of a resource that a kubelet must find in the node's allocatable while it admits the node's pods again; all of `node` while it is not known
/// what they request.
fn readmitted(resource: &str, node: u64, seen: &Observation<'_>) -> u64 {
    let requested = seen.requested.map_or(node, |counts| counts.get(resource).copied().unwrap_or(0));
    if seen.readmits { requested } else { 0 }
}

/// One resource in a step.
struct Resource<'a> {
    name: &'a str,
    wanted: &'a DeviceList,
    published: Option<&'a DeviceList>,
    watched: bool,
    /// Devices that kubelet lists.
    kubelet: Option<BTreeSet<&'a DeviceId>>,
    /// The node's allocatable.
    node: Option<u64>,
    /// Devices that kubelet may still list here.
    withdrawn: BTreeMap<DeviceId, Withdrawal>,
    requested: Option<u64>,
    /// See [`readmitted`].
    readmitted: u64,
    in_flight: Option<InFlight>,
    now: Instant,
    propagation: Duration,
}

impl<'a> Resource<'a> {
    fn new(
        name: &'a str,
        wanted: &'a DeviceLists,
        seen: &Observation<'a>,
        withdrawn: &BTreeMap<DeviceId, Withdrawal>,
    ) -> Self {
        let kubelet: Option<BTreeSet<_>> = seen.kubelet.map(|all| all.get(name).into_iter().flatten().collect());
        let count = |counts: &Counts| counts.get(name).copied().unwrap_or(0);
        let update = |(id, withdrawal): (&DeviceId, &Withdrawal)| {
            let listed = kubelet.as_ref().map(|ids| ids.contains(id));
            Some((id.clone(), withdrawal.update(listed, seen.now)?))
        };
        Self {
            name,
            wanted: wanted.get(name).unwrap_or(const { &DeviceList::new() }),
            published: seen.published.get(name),
            watched: seen.watched.contains(name),
            node: seen.node.map(count),
            withdrawn: withdrawn.iter().filter_map(update).collect(),
            requested: seen.requested.map(count),
            readmitted: readmitted(name, seen.node.map_or(0, count), seen),
            in_flight: seen.in_flight.get(name).copied(),
            now: seen.now,
            propagation: seen.propagation,
            kubelet,
        }
    }

    /// Devices that the scheduler may count: wanted, published, and listed by kubelet. None: not known.
    fn target(&self) -> Option<u64> {
        if !self.watched {
            // kubelet has no connection to the plugin and would fail every pod
            return Some(0);
        }
        let (wanted, published) = (healthy(Some(self.wanted)), healthy(self.published));
        let certain =
            |id: &&&DeviceId| wanted.contains(**id) && published.contains(**id) && !self.withdrawn.contains_key(**id);
        Some(self.kubelet.as_ref()?.iter().filter(certain).count() as u64)
    }

    fn correction(&self, full: Option<Instant>, high: Option<Instant>) -> Option<u64> {
        let (target, node) = (self.target()?.max(self.readmitted), self.node?);
        if node <= target || !self.watched {
            return (node != target).then_some(target);
        }
        // once a device is withdrawn, no pod in flight can get it: then the count must be right at once
        let requested = if self.withdraws() { self.requested.unwrap_or(0) } else { 0 };
        let floor = target.max(requested);
        let all_allocated = full.is_some_and(|since| self.now >= since + self.propagation);
        if node > floor { Some(floor) } else { (all_allocated || self.is_overdue(high)).then_some(target) }
    }

    /// The scheduler can bind no further pod, and all bound pods have their devices.
    fn is_full(&self) -> bool {
        self.in_flight.is_none() && self.node.zip(self.requested).is_some_and(|(node, requested)| node <= requested)
    }

    fn is_high(&self) -> bool {
        let above = self.node.zip(self.target()).map(|(node, target)| node > target);
        self.watched && above.is_some_and(|above| above || (self.withdraws() && self.is_overcommitted()))
    }

    /// The pods in flight have timed out.
    fn is_overdue(&self, high: Option<Instant>) -> bool {
        let overdue = |since: Instant| self.now >= since + IN_FLIGHT_TIMEOUT;
        high.is_some_and(overdue) && self.in_flight.is_none_or(|pods| overdue(pods.newest))
    }

    /// Pods in flight would get no device: a scheduler that had not received the lower count bound them.
    fn is_overcommitted(&self) -> bool {
        let target = self.target();
        self.in_flight.is_some() && target.is_none_or(|target| self.requested.is_some_and(|count| count > target))
    }

    /// kubelet can still allocate a device that is not wanted.
    fn withdraws(&self) -> bool {
        self.unwanted().next().is_some()
    }

    fn unwanted(&self) -> impl Iterator<Item = &'a DeviceId> + use<'a> {
        let wanted = healthy(Some(self.wanted));
        healthy(self.published).into_iter().filter(move |id| !wanted.contains(*id))
    }

    /// The withdrawals that a publication of the wanted list starts.
    fn withdrawals(&self) -> impl Iterator<Item = (DeviceId, Withdrawal)> {
        let was_listed = |id: &DeviceId| self.kubelet.as_ref().is_some_and(|ids| ids.contains(id));
        let withdrawal = move |id| Withdrawal { at: self.now, was_listed: was_listed(id), confirmed: false };
        self.unwanted().map(move |id| (id.clone(), withdrawal(id)))
    }

    fn is_lowered(&self, high: Option<Instant>) -> bool {
        let low = self.node.zip(self.target()).is_some_and(|(node, target)| node <= target);
        low && (!self.is_overcommitted() || self.is_overdue(high)) && self.withdraws()
    }

    fn publication(&self, propagated: bool) -> Option<&'a DeviceList> {
        let due = self.published != Some(self.wanted);
        // a kubelet that does not watch the list allocates nothing: no need to wait
        let allowed = !self.withdraws() || !self.watched || propagated;
        (due && allowed).then_some(self.wanted)
    }

    /// Neither the scheduler nor kubelet counts a device.
    fn is_drained(&self) -> bool {
        let published = self.watched && !healthy(self.published).is_empty();
        let listed = self.watched && self.kubelet.as_ref().is_some_and(|listed| !listed.is_empty());
        self.node.is_some_and(|node| node <= self.readmitted) && !published && !listed
    }

    /// kubelet watches the published list and has another one.
    fn is_stale(&self) -> bool {
        self.watched && self.kubelet.as_ref().is_some_and(|listed| *listed != healthy(self.published))
    }

    fn waiting(&self) -> Option<String> {
        let (name, wanted) = (self.name, healthy(Some(self.wanted)));
        let count = wanted.len() as u64;
        if !self.watched {
            return Some(format!("{name}: kubelet does not watch the plugin's device list yet"));
        }
        let Some(listed) = &self.kubelet else {
            return Some(format!("{name}: kubelet's pod resources API does not answer"));
        };
        match self.node {
            None => Some(format!("{name}: waiting for the node's allocatable")),
            Some(node) if node > count => {
                Some(format!("{name}: lowering the node's allocatable from {node} to {count}"))
            }
            _ if self.published != Some(self.wanted) => {
                Some(format!("{name}: publishing a list of {count} devices to kubelet"))
            }
            _ if *listed != wanted => Some(format!("{name}: {}/{count} devices listed by kubelet", listed.len())),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
