//! Controllers with pods that the operator's quotas refused: from the event to reserved headroom, and to the end of the wait.
//!
//! An event reports that a pod was refused; no event reports that the pod is no longer wanted. So a refusal stops to count when a pod of the
//! controller was created after it, when headroom was reserved and not used, or when the controller has sent no event for longer than its
//! back-off.
//!
//! Not every refusal is reported either: client-go sends 25 events about one object and then one in five minutes (`defaultSpamBurst`,
//! `defaultSpamQPS`). So a controller that has used all of its new headroom gets headroom for one pod more without another event.

use std::collections::BTreeMap;

use gputenancy_crds::projection::SlimPod;
use gputenancy_decisions::quota::{self, Amounts, DemandStage, PodDemand, QuotaState};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::wake_controllers::{Wake, WakeTarget};
use crate::tenant::Amount;

/// Longest time for which a refusal counts without another one: longer than any back-off of Kubernetes' controllers.
const MAX_SILENCE: SignedDuration = SignedDuration::from_mins(20);
/// Time without events that has no meaning: client-go may delay events about one object for five minutes.
const MIN_SILENCE: SignedDuration = SignedDuration::from_secs(330);
/// Shortest reservation of headroom for a controller.
const MIN_RESERVATION: SignedDuration = SignedDuration::from_secs(10);
/// Longest back-off of a controller.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(1000);
/// Time from new headroom until its controller is woken. A controller that was refused just now retries by itself.
const WAKE_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// Time for which headroom stays in a namespace after a pod was admitted there.
const SETTLING_TIME: SignedDuration = SignedDuration::from_secs(30);

/// The latest refusal of a pod to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Namespace.
    pub namespace: String,
    /// Uid of the controller.
    pub uid: String,
    /// The controller, if it can be woken.
    pub target: Option<WakeTarget>,
    /// Grows with each report.
    pub version: u64,
    /// Time of the refusal.
    pub at: Timestamp,
    /// Requests of one pod that the quota refused, by quota key.
    pub amounts: Amounts,
    /// Creation time of the controller's newest pod that requests devices.
    pub newest_pod: Option<Timestamp>,
}

/// Creation time of the newest of these pods, by uid of their controller.
pub fn newest_pods<'a>(pods: impl Iterator<Item = &'a SlimPod>) -> BTreeMap<String, Timestamp> {
    let mut newest = BTreeMap::new();
    for meta in pods.map(|pod| &pod.metadata) {
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        if let (Some(controller), Some(created)) = (controller, &meta.creation_timestamp) {
            let known = newest.entry(controller.uid.clone()).or_insert(created.0);
            *known = created.0.max(*known);
        }
    }
    newest
}

/// The refused controllers of a tenant, by namespace and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedControllers(BTreeMap<(String, String), RefusedController>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct RefusedController {
    refused: Refused,
    /// Time of the first refusal of this wait, as far as this operator has seen.
    since: Timestamp,
    /// Time to wake it, unless it retries before.
    wake: Option<Timestamp>,
    state: State,
}

/// `used`: use of the namespace when the state began.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no headroom for its pod.
    Waiting,
    /// Headroom is reserved for it.
    Reserved { until: Timestamp, used: Amounts },
    /// It has used all of its headroom; another pod may be wanted without an event.
    Anticipated { until: Timestamp, used: Amounts },
    /// It has used its headroom and more is there.
    Settling { until: Timestamp, used: Amounts },
    /// No pod is expected; kept so that the same event does not count twice. With `used`: the reservation ended unused, so a pod that is
    /// created later still counts.
    Ended { used: Option<Amounts> },
}

impl RefusedControllers {
    /// The state after these refusals and quotas were observed, and the waiting times of those whose wait ended.
    pub fn update(
        mut self,
        refusals: &[Refused],
        quotas: &BTreeMap<String, QuotaState>,
        now: Timestamp,
    ) -> (Self, Vec<SignedDuration>) {
        let key = |r: &Refused| (r.namespace.clone(), r.uid.clone());
        for refused in refusals {
            let known = self.0.get_mut(&key(refused));
            let since = match known {
                Some(known) if known.refused.version >= refused.version => {
                    known.refused.newest_pod = refused.newest_pod;
                    continue;
                }
                Some(known) if matches!(known.state, State::Waiting | State::Reserved { .. }) => known.since,
                _ => now,
            };
            let mut controller =
                RefusedController { refused: refused.clone(), since, wake: None, state: State::Waiting };
            if controller.silence_ends() < now {
                controller.state = State::Ended { used: None };
            }
            self.0.insert(key(refused), controller);
        }
        // a deleted event ends a wait, unless headroom is reserved or used already
        self.0.retain(|id, controller| {
            !matches!(controller.state, State::Waiting | State::Ended { .. }) || refusals.iter().any(|r| key(r) == *id)
        });
        let mut active: BTreeMap<String, usize> = BTreeMap::new();
        for ((namespace, _), _) in self.0.iter().filter(|(_, controller)| controller.stage().is_some()) {
            *active.entry(namespace.clone()).or_default() += 1;
        }
        let mut waited = Vec::new();
        for ((namespace, _), controller) in &mut self.0 {
            let waiting = controller.state == State::Waiting;
            let alone = active.get(namespace).is_none_or(|count| *count < 2);
            controller.step(quotas.get(namespace), alone, now);
            if waiting && !matches!(controller.state, State::Waiting | State::Ended { .. }) {
                waited.push(now.duration_since(controller.since));
            }
        }
        (self, waited)
    }

    /// Demand of refused controllers in a namespace.
    pub fn demands(&self, namespace: &str) -> Vec<PodDemand> {
        let here = self.0.iter().filter(|((ns, _), _)| ns == namespace);
        here.filter_map(|(_, c)| Some(PodDemand { amounts: c.refused.amounts.clone(), stage: c.stage()? })).collect()
    }

    /// Number of controllers in these namespaces that have waited for this quota key for at least `least`.
    pub fn waiting(&self, namespaces: &[&str], key: &str, now: Timestamp, least: SignedDuration) -> usize {
        let waits = |((namespace, _), c): &(&(String, String), &RefusedController)| {
            namespaces.contains(&namespace.as_str())
                && c.state == State::Waiting
                && c.refused.amounts.contains_key(key)
                && now.duration_since(c.since) >= least
        };
        self.0.iter().filter(waits).count()
    }

    /// Controllers to wake now.
    pub fn wakes(&self, now: Timestamp) -> Vec<Wake> {
        let wake = |controller: &RefusedController| {
            controller.wake.filter(|then| *then <= now)?;
            let Refused { namespace, uid, target, amounts, .. } = controller.refused.clone();
            Some(Wake { namespace, uid, target: target?, amounts })
        };
        self.0.values().filter_map(wake).collect()
    }

    /// Notes that a controller was woken.
    pub fn woken(&mut self, wake: &Wake) {
        if let Some(controller) = self.0.get_mut(&(wake.namespace.clone(), wake.uid.clone())) {
            controller.wake = None;
        }
    }

    /// The next time at which a state ends, a controller is to be woken, or a wait has lasted for `least`.
    pub fn next_deadline(&self, now: Timestamp, least: SignedDuration) -> Option<Timestamp> {
        let deadlines = |controller: &RefusedController| match controller.state {
            State::Waiting => [controller.since.checked_add(least).ok(), Some(controller.silence_ends())],
            State::Reserved { until, .. } | State::Anticipated { until, .. } | State::Settling { until, .. } => {
                [Some(until), controller.wake]
            }
            State::Ended { .. } => [None, None],
        };
        self.0.values().flat_map(deadlines).flatten().filter(|then| *then > now).min()
    }

    /// Are there no refused controllers?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl State {
    fn used(&self) -> Option<&Amounts> {
        match self {
            Self::Reserved { used, .. } | Self::Anticipated { used, .. } | Self::Settling { used, .. } => Some(used),
            Self::Waiting | Self::Ended { .. } => None,
        }
    }
}

impl RefusedController {
    fn stage(&self) -> Option<DemandStage> {
        match self.state {
            State::Waiting | State::Anticipated { .. } => Some(DemandStage::Waiting),
            State::Reserved { .. } => Some(DemandStage::Reserved),
            State::Settling { .. } => Some(DemandStage::Settling),
            State::Ended { .. } => None,
        }
    }

    /// `alone`: no other controller of the namespace is active, so that new use is this one's.
    fn step(&mut self, quota: Option<&QuotaState>, alone: bool, now: Timestamp) {
        let ended = State::Ended { used: None };
        let Some(quota) = quota else {
            (self.state, self.wake) = (ended, None);
            return;
        };
        let waited = matches!(self.state, State::Waiting | State::Anticipated { .. });
        let answered = self.state == State::Waiting && self.is_answered();
        let before = self.state.used().cloned();
        let used: Amounts = self.refused.amounts.keys().map(|key| (key.clone(), amount(&quota.used, key))).collect();
        let has_headroom = self.refused.amounts.iter().all(|(key, wanted)| {
            !quota.enforced.contains_key(key)
                || used.get(key).copied().unwrap_or_default().plus(*wanted) <= amount(&quota.enforced, key)
        });
        let after = |time: SignedDuration| now.checked_add(time).unwrap_or(Timestamp::MAX);
        let taken = |used| {
            let until = after(SETTLING_TIME);
            if has_headroom { State::Settling { until, used } } else { State::Anticipated { until, used } }
        };
        let recent = now.duration_since(self.refused.at) <= MAX_SILENCE;
        self.state = match std::mem::replace(&mut self.state, ended.clone()) {
            State::Waiting if answered => taken(used),
            State::Waiting if has_headroom => State::Reserved { until: after(self.reservation(now)), used },
            State::Waiting if now <= self.silence_ends() => State::Waiting,
            State::Waiting => ended,
            State::Reserved { used: then, .. }
            | State::Anticipated { used: then, .. }
            | State::Settling { used: then, .. }
                if fell(&then, &used) =>
            {
                ended
            }
            State::Reserved { used: then, .. } if self.is_taken(&then, &used) => taken(used),
            State::Anticipated { used: then, .. } | State::Settling { used: then, .. } if then != used => taken(used),
            State::Reserved { until, .. } | State::Anticipated { until, .. } | State::Settling { until, .. }
                if now >= until =>
            {
                State::Ended { used: Some(used) }
            }
            State::Reserved { .. } if !has_headroom => State::Waiting,
            // headroom without an event is given once
            State::Anticipated { until, used } if has_headroom => State::Settling { until, used },
            State::Ended { used: Some(then) } if recent && self.is_taken(&then, &used) => taken(used),
            State::Ended { used: Some(then) } if fell(&then, &used) => ended,
            same => same,
        };
        let came = answered || (alone && before.is_some() && before.as_ref() != self.state.used());
        self.wake = match &self.state {
            State::Reserved { .. } | State::Settling { .. } if came => None,
            State::Reserved { .. } | State::Settling { .. } if waited => {
                self.refused.target.as_ref().map(|_| after(WAKE_AFTER))
            }
            State::Reserved { .. } | State::Settling { .. } => self.wake,
            State::Waiting | State::Anticipated { .. } | State::Ended { .. } => None,
        };
    }

    /// Was a pod of the controller created after the refusal? Both times are in whole seconds.
    fn is_answered(&self) -> bool {
        self.refused.newest_pod.is_some_and(|created| created.as_second() > self.refused.at.as_second())
    }

    /// Time after which the controller has sent no event for longer than its back-off, which is about as long as it has been refused.
    fn silence_ends(&self) -> Timestamp {
        let Refused { at, newest_pod, .. } = &self.refused;
        // a pod of the same second was created after the refusal, or before it: then another refusal follows soon
        let same_second = newest_pod.is_some_and(|created| created.as_second() == at.as_second());
        let least = if same_second { MIN_RESERVATION } else { MIN_SILENCE };
        let refused_for = at.duration_since(self.since).abs();
        at.checked_add(half_as_long_again(refused_for).clamp(least, MAX_SILENCE)).unwrap_or(Timestamp::MAX)
    }

    /// Duration of the reservation.
    fn reservation(&self, now: Timestamp) -> SignedDuration {
        let waited = now.duration_since(self.since.min(self.refused.at));
        half_as_long_again(waited).clamp(MIN_RESERVATION, MAX_BACKOFF)
    }

    /// Has use grown by a pod of this controller?
    fn is_taken(&self, then: &Amounts, used: &Amounts) -> bool {
        self.refused.amounts.iter().all(|(key, wanted)| {
            let of = |amounts: &Amounts| amounts.get(key).copied().unwrap_or_default();
            of(then).plus(*wanted) <= of(used)
        })
    }
}

fn half_as_long_again(time: SignedDuration) -> SignedDuration {
    time.checked_mul(3).and_then(|d| d.checked_div(2)).unwrap_or(SignedDuration::MAX)
}

fn fell(then: &Amounts, used: &Amounts) -> bool {
    then.iter().any(|(key, before)| used.get(key).copied().unwrap_or_default() < *before)
}

fn amount(limits: &quota::Limits, key: &str) -> Amount {
    limits.get(key).and_then(Amount::parse).unwrap_or_default()
}

#[cfg(test)]
mod tests;
