//! Keeps three counts in step, in the order that loses no pod: kubelet's list, its device manager, the node's allocatable.
//!
//! kubelet writes `node.status.allocatable` only every ten seconds. A device withdrawn from kubelet alone is still
//! counted by the scheduler meanwhile, and the pod that is bound to it fails. So allocatable goes down first and
//! up last. kubelet in turn fails a pod on its way when the node's allocatable has sunk below what is bound: so it
//! sinks to that first, which leaves the scheduler no room, and further when the last pod has its device.
//! This module only decides; [`super::drive`] acts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::offer::{Listed, Offer, Offers, usable};
use crate::device::DeviceId;

/// Time that the scheduler is given to see a lowered allocatable, and kubelet to finish a pod bound just before; see [`settling`].
pub const SETTLE: Duration = Duration::from_millis(300);

/// The most that it is given: two of them have to fit between kubelet's writes of the node's status, ten seconds apart.
const SETTLE_MOST: Duration = Duration::from_secs(2);

/// How long to let a write settle that took so long: where the API server is slow or processors are short, the scheduler is late too.
/// On a machine with thirty times the work that it can do, 300 ms lost two pods of three hundred.
pub fn settling(write: Duration) -> Duration {
    (write * 4).clamp(SETTLE, SETTLE_MOST)
}

/// A pod that has been bound for longer and has no device yet is not waited for: a busy node takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long everything has to be at nothing before the agent goes: kubelet may be about to write an older number.
pub const PARTING: Duration = Duration::from_millis(700);

/// kubelet listens, yet does not list what it was told: its connection is one that it has given up.
pub const DEAF: Duration = Duration::from_secs(5);

/// Numbers by resource, as in `node.status.allocatable`.
pub type Counts = BTreeMap<String, u64>;

/// Pods that are bound and have no device of a resource yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    /// Devices that they ask for.
    pub count: u64,
    /// When the one bound last was seen first.
    pub youngest: Instant,
}

/// Flights by resource.
pub type Flights = BTreeMap<String, Flight>;

/// What is seen before a step.
#[derive(Debug, Clone)]
pub struct Seen<'a> {
    /// What the view wants offered.
    pub wanted: &'a Offers,
    /// What was offered last, by each resource that has a plugin server.
    pub published: &'a Offers,
    /// Resources whose list kubelet listens to.
    pub listening: &'a BTreeSet<String>,
    /// Devices that kubelet's device manager could give away or has given, by resource; none while kubelet has not answered.
    pub kubelet: Option<&'a BTreeMap<String, BTreeSet<DeviceId>>>,
    /// The node's allocatable; none while the API server has not answered.
    pub node: Option<&'a Counts>,
    /// What the node's pods ask for; none where the agent may not read pods.
    pub taken: Option<&'a Counts>,
    /// The part of it that kubelet has given no device yet.
    pub in_flight: &'a Flights,
    /// The agent is about to stop: nothing may be counted on, not even what is in use, because a pod that ends while there
    /// is no plugin would make room for one that fails. Everything is offered as unhealthy, which is what kubelet makes of
    /// it anyway when the plugin goes, and running pods go on.
    pub stopping: bool,
    /// Time for a lowered allocatable to be seen.
    pub settle: Duration,
    /// The present.
    pub now: Instant,
}

/// Devices that left the list of a resource, by resource.
type Leaves = BTreeMap<String, BTreeMap<DeviceId, Leave>>;

/// A device that left a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leave {
    at: Instant,
    /// kubelet listed it then: a list without it is one that kubelet has taken over since.
    listed: bool,
    /// kubelet has taken it over.
    over: bool,
}

impl Leave {
    /// What is known of it now; none when the device may be counted again. A kubelet that was never seen without the device has
    /// taken the news over after [`DEAF`] at the latest, or is not listening at all.
    fn later(self, id: &DeviceId, listed: Option<&BTreeSet<DeviceId>>, now: Instant) -> Option<Self> {
        let gone = listed.is_some_and(|ids| !ids.contains(id));
        let over = self.over || (self.listed && gone);
        let doubtful = now < self.at + SETTLE || (!over && now < self.at + DEAF);
        doubtful.then_some(Self { over, ..self })
    }
}

/// What must be remembered between steps; a new agent starts with nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when a resource that is to lose devices has been seen low enough.
    lowered: BTreeMap<String, Instant>,
    /// Since when a resource has been full, with nobody on the way.
    full: BTreeMap<String, Instant>,
    /// Since when a resource has been too high, or has had pods on the way that are too many.
    high: BTreeMap<String, Instant>,
    /// When a device left the list of a resource: kubelet may take a moment to take that over, even when the device is back by then.
    /// In another resource's list, where it may have gone, it counts all the same.
    withdrawn: Leaves,
    /// Since when kubelet has listened to a resource's list without listing it.
    deaf: BTreeMap<String, Instant>,
    /// Since when an agent that is to stop has had nothing left to take back.
    parting: Option<Instant>,
}

impl Memory {
    /// How long until something has lasted long enough to be settled, which no news will tell.
    pub fn due(&self, settle: Duration, now: Instant) -> Option<Duration> {
        let since = self.lowered.values().chain(self.full.values());
        let left = since.map(|since| (*since + settle).saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).min()
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write these entries of the node's allocatable, in one patch.
    Allocatable(Counts),
    /// Tell kubelet this list.
    Publish(String, Offer),
    /// Connect with kubelet anew.
    Renew(String),
}

/// The outcome of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// What is to be done, in this order.
    pub actions: Vec<Action>,
    /// Why the view is not in force yet, a sentence for each resource; empty when it is.
    pub waiting: Vec<String>,
    /// An agent that is to stop may go: nobody counts on it.
    pub may_go: bool,
}

/// Names of resources that are ours to correct: the same that admission policy lets an agent write.
pub fn ours(resource: &str) -> bool {
    resource == "nvidia.com/gpu"
        || ["nvidia.com/gpu.", "nvidia.com/mig-", "gputenancy.io/"].iter().any(|prefix| resource.starts_with(prefix))
}

/// Decides what to do next.
pub fn step(memory: &Memory, seen: &Seen<'_>) -> (Memory, Step) {
    let mut next = Memory::default();
    for (resource, ids) in &memory.withdrawn {
        let listed = seen.kubelet.map(|all| all.get(resource).unwrap_or(const { &BTreeSet::new() }));
        let later = ids.iter().filter_map(|(id, leave)| Some((id.clone(), leave.later(id, listed, seen.now)?)));
        next.withdrawn.insert(resource.clone(), later.collect());
    }
    next.withdrawn.retain(|_, ids| !ids.is_empty());
    let withdrawn = next.withdrawn.clone();
    let mut step = Step::default();
    let mut counts = Counts::new();
    let farewell = if seen.stopping { nothing_of(seen.published) } else { Offers::new() };
    let wanted = if seen.stopping { &farewell } else { seen.wanted };
    let resources: BTreeSet<&String> = wanted.keys().chain(seen.published.keys()).collect();
    let mut gone = true;
    for &resource in &resources {
        let one = Resource::of(resource, wanted, seen, withdrawn.get(resource));
        gone &= one.gone();
        let full = one.full_since(memory.full.get(resource).copied());
        let high = one.high_since(memory.high.get(resource).copied());
        if let Some(count) = one.correction(full, high) {
            counts.insert(resource.clone(), count);
        }
        next.full.extend(full.map(|since| (resource.clone(), since)));
        next.high.extend(high.map(|since| (resource.clone(), since)));
        if let Some(since) = one.lowered_since(memory.lowered.get(resource).copied(), high) {
            next.lowered.insert(resource.clone(), since);
        }
        let settled = next.lowered.get(resource).is_some_and(|since| seen.now >= *since + seen.settle);
        if let Some(offer) = one.publication(settled) {
            step.actions.push(Action::Publish(resource.clone(), offer.clone()));
            let leaves = next.withdrawn.entry(resource.clone()).or_default();
            leaves.extend(one.leaving().map(|id| (id.clone(), one.leave(id))));
        } else if one.deaf() {
            let since = memory.deaf.get(resource).copied().unwrap_or(seen.now);
            if seen.now >= since + DEAF {
                step.actions.push(Action::Renew(resource.clone()));
            } else {
                next.deaf.insert(resource.clone(), since);
            }
        }
        step.waiting.extend(one.waiting());
    }
    counts.extend(abandoned(&resources, seen));
    if !counts.is_empty() {
        // first: what follows may withdraw
        step.actions.insert(0, Action::Allocatable(counts));
    }
    let gone = seen.stopping && gone && step.actions.is_empty();
    next.parting = gone.then(|| memory.parting.unwrap_or(seen.now));
    step.may_go = next.parting.is_some_and(|since| seen.now >= since + PARTING);
    (next, step)
}

/// The same devices, none of them to be given.
fn nothing_of(offers: &Offers) -> Offers {
    let none = |offer: &Offer| offer.iter().map(|(id, was)| (id.clone(), Listed { healthy: false, ..*was })).collect();
    offers.iter().map(|(resource, offer)| (resource.clone(), none(offer))).collect()
}

/// Resources of ours that the node still counts although nobody serves them: an earlier agent's.
fn abandoned(served: &BTreeSet<&String>, seen: &Seen<'_>) -> Counts {
    let (Some(node), Some(kubelet)) = (seen.node, seen.kubelet) else { return Counts::new() };
    let excess = node.iter().filter_map(|(resource, count)| {
        let listed = kubelet.get(resource).map_or(0, count_of);
        (ours(resource) && !served.contains(resource) && *count > listed).then(|| (resource.clone(), listed))
    });
    excess.collect()
}

fn count_of(devices: &BTreeSet<DeviceId>) -> u64 {
    u64::try_from(devices.len()).unwrap_or(u64::MAX)
}

/// One resource in a step.
struct Resource<'a> {
    name: &'a str,
    wanted: &'a Offer,
    published: Option<&'a Offer>,
    listening: bool,
    /// Devices that kubelet lists.
    kubelet: Option<BTreeSet<&'a DeviceId>>,
    /// The node's count.
    node: Option<u64>,
    /// Devices that kubelet may list here although it has been told otherwise.
    withdrawn: Option<&'a BTreeMap<DeviceId, Leave>>,
    taken: Option<u64>,
    in_flight: Option<Flight>,
    settle: Duration,
    now: Instant,
}

impl<'a> Resource<'a> {
    fn of(
        name: &'a str,
        wanted: &'a Offers,
        seen: &Seen<'a>,
        withdrawn: Option<&'a BTreeMap<DeviceId, Leave>>,
    ) -> Self {
        Self {
            name,
            wanted: wanted.get(name).unwrap_or(const { &Offer::new() }),
            published: seen.published.get(name),
            listening: seen.listening.contains(name),
            kubelet: seen.kubelet.map(|all| all.get(name).into_iter().flatten().collect()),
            node: seen.node.map(|counts| counts.get(name).copied().unwrap_or(0)),
            withdrawn,
            taken: seen.taken.map(|counts| counts.get(name).copied().unwrap_or(0)),
            in_flight: seen.in_flight.get(name).copied(),
            settle: seen.settle,
            now: seen.now,
        }
    }

    /// What the scheduler may count on: devices that are wanted and that kubelet would give. None: not known.
    fn target(&self) -> Option<u64> {
        if !self.listening {
            // kubelet has lost us: it would refuse every pod
            return Some(0);
        }
        let (wanted, told) = (usable(Some(self.wanted)), usable(self.published));
        let doubtful = |id: &DeviceId| self.withdrawn.is_some_and(|ids| ids.contains_key(id));
        let sure = |id: &&&DeviceId| wanted.contains(**id) && told.contains(**id) && !doubtful(id);
        u64::try_from(self.kubelet.as_ref()?.iter().filter(sure).count()).ok()
    }

    fn correction(&self, full: Option<Instant>, high: Option<Instant>) -> Option<u64> {
        let (target, node) = (self.target()?, self.node?);
        if node <= target || !self.listening {
            return (node != target).then_some(target);
        }
        // once withdrawn, a device is nobody's hope: then the number must be right at once
        let hope = if self.withdraws() { self.taken.unwrap_or(0) } else { 0 };
        let floor = target.max(hope);
        let landed = full.is_some_and(|since| self.now >= since + self.settle);
        if node > floor { Some(floor) } else { (landed || self.late(high)).then_some(target) }
    }

    /// The scheduler has no room, and all whom it gave some have landed.
    fn full_since(&self, before: Option<Instant>) -> Option<Instant> {
        let full = self.node? <= self.taken? && self.in_flight.is_none();
        full.then(|| before.unwrap_or(self.now))
    }

    fn high_since(&self, before: Option<Instant>) -> Option<Instant> {
        let high = self.listening && (self.node? > self.target()? || (self.withdraws() && self.crowded()));
        high.then(|| before.unwrap_or(self.now))
    }

    /// Whoever is still on the way has had his time.
    fn late(&self, high: Option<Instant>) -> bool {
        let long = |since: Instant| self.now >= since + PATIENCE;
        high.is_some_and(long) && self.in_flight.is_none_or(|flight| long(flight.youngest))
    }

    /// Are pods on the way that would find nothing: bound by a scheduler that had not seen the lower number yet?
    fn crowded(&self) -> bool {
        self.in_flight.is_some() && self.target().is_none_or(|target| self.taken.is_some_and(|taken| taken > target))
    }

    /// Can kubelet give away what it should no longer?
    fn withdraws(&self) -> bool {
        self.leaving().next().is_some()
    }

    fn leaving(&self) -> impl Iterator<Item = &'a DeviceId> + use<'a> {
        let wanted = usable(Some(self.wanted));
        usable(self.published).into_iter().filter(move |id| !wanted.contains(*id))
    }

    fn leave(&self, id: &DeviceId) -> Leave {
        let listed = self.kubelet.as_ref().is_some_and(|ids| ids.contains(id));
        Leave { at: self.now, listed, over: false }
    }

    fn lowered_since(&self, before: Option<Instant>, high: Option<Instant>) -> Option<Instant> {
        let low = self.node? <= self.target()? && (!self.crowded() || self.late(high));
        (low && self.withdraws()).then(|| before.unwrap_or(self.now))
    }

    fn publication(&self, settled: bool) -> Option<&'a Offer> {
        let due = self.published != Some(self.wanted);
        // without a listener nobody can be given anything: no need to wait
        let free = !self.withdraws() || !self.listening || settled;
        (due && free).then_some(self.wanted)
    }

    /// Neither the scheduler nor kubelet counts on any device.
    fn gone(&self) -> bool {
        let offered = self.listening && !usable(self.published).is_empty();
        let listed = self.listening && self.kubelet.as_ref().is_some_and(|listed| !listed.is_empty());
        self.node == Some(0) && !offered && !listed
    }

    fn deaf(&self) -> bool {
        self.listening && self.kubelet.as_ref().is_some_and(|listed| *listed != usable(self.published))
    }

    fn waiting(&self) -> Option<String> {
        let name = self.name;
        let wanted = usable(Some(self.wanted));
        let count = u64::try_from(wanted.len()).ok()?;
        if !self.listening {
            return Some(format!("{name}: kubelet does not listen to the plugin yet"));
        }
        let Some(listed) = &self.kubelet else {
            return Some(format!("{name}: kubelet's pod resources API does not answer"));
        };
        match self.node {
            None => Some(format!("{name}: the node's allocatable is not known yet")),
            Some(node) if node > count => {
                Some(format!("{name}: the node's allocatable is {node} and has to come down to {count}"))
            }
            _ if self.published != Some(self.wanted) => {
                Some(format!("{name}: the new list of {count} is about to be sent to kubelet"))
            }
            _ if *listed != wanted => {
                Some(format!("{name}: {count} devices are offered, kubelet lists {}", listed.len()))
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
