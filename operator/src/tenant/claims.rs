//! What a tenant's controllers wait for: from the refusals that they report to claims on room, and from claims to their end.
//!
//! A refusal says that a pod did not fit; nothing says that it is not wanted any more. So a claim ends when it has been answered:
//! room was there, and the controller has either taken it or not come back in the time that its growing pauses allow.
//!
//! Nor is every refusal told: Kubernetes' controllers pass on 25 warnings about one object and then one in five minutes
//! (`defaultSpamBurst` and `defaultSpamQPS` of client-go). So for who has taken all of the room that was made room is made for another
//! pod without a word.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    Amount,
    call::{Call, Controller},
    split::{Amounts, Stage, Standing, Wanted},
};

/// A refusal older than this says nothing: controllers ask again at least that often.
const RECENT: SignedDuration = SignedDuration::from_mins(20);
/// The least time that room is held for a controller.
const HOLD: SignedDuration = SignedDuration::from_secs(10);
/// The longest pause of a controller between two attempts.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_secs(1000);
/// How long after room was made a controller is called that has not come. One that was refused just now comes by itself.
const CALLED_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// How long nothing is taken back from a namespace whose pods have just been admitted.
const LINGER: SignedDuration = SignedDuration::from_secs(30);

/// A pod that a quota of ours has refused to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its namespace.
    pub namespace: String,
    /// Uid of the controller.
    pub by: String,
    /// The controller, if it is of a kind that can be called.
    pub controller: Option<Controller>,
    /// Grows with each word about it.
    pub version: u64,
    /// When it was refused last.
    pub at: Timestamp,
    /// What did not fit, by quota key.
    pub amounts: Amounts,
}

/// Of each controller the last word: each pod that it could not make may have an event of its own.
pub fn latest(refused: impl Iterator<Item = Refused>) -> Vec<Refused> {
    let mut last: BTreeMap<(String, String), Refused> = BTreeMap::new();
    for word in refused {
        let key = (word.namespace.clone(), word.by.clone());
        if last.get(&key).is_none_or(|known| known.version < word.version) {
            last.insert(key, word);
        }
    }
    last.into_values().collect()
}

/// All claims of a tenant, by namespace and controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(BTreeMap<(String, String), Claim>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    version: u64,
    controller: Option<Controller>,
    /// When it is called, unless it comes before.
    call: Option<Timestamp>,
    /// Since when it waits.
    since: Timestamp,
    at: Timestamp,
    amounts: Amounts,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no room.
    Open,
    /// There is room since a while; `used`: at that time.
    Held { until: Timestamp, used: Amounts },
    /// It has been taken and there is no more: another pod may be wanted, which nobody may tell.
    Eager { until: Timestamp, used: Amounts },
    /// It has been taken and there is more; `used`: since then.
    Lingering { until: Timestamp, used: Amounts },
    /// Nothing is expected any more; kept so that the same words are not believed twice. `used`: when patience ended; who comes after
    /// that has not given up.
    Over { used: Option<Amounts> },
}

/// How long a claim has waited for room in force, from the first word about it.
pub type Waited = SignedDuration;

impl Claims {
    /// The claims after these refusals and quotas have been seen, and how long those waited that have found room just now.
    pub fn follow(
        mut self,
        refused: &[Refused],
        quotas: &BTreeMap<String, Standing>,
        now: Timestamp,
    ) -> (Self, Vec<Waited>) {
        let key = |r: &Refused| (r.namespace.clone(), r.by.clone());
        for word in refused {
            let known = self.0.get(&key(word));
            if known.is_some_and(|claim| claim.version >= word.version) {
                continue;
            }
            let waits = known.filter(|c| matches!(c.state, State::Open | State::Held { .. })).map(|c| c.since);
            let recent = now.duration_since(word.at) <= RECENT;
            let claim = Claim {
                version: word.version,
                controller: word.controller.clone(),
                call: None,
                since: waits.unwrap_or(now),
                at: word.at,
                amounts: word.amounts.clone(),
                state: if recent { State::Open } else { State::Over { used: None } },
            };
            self.0.insert(key(word), claim);
        }
        // what is not told of any more has ended, unless somebody is just being served
        self.0.retain(|id, claim| {
            matches!(claim.state, State::Held { .. } | State::Eager { .. } | State::Lingering { .. })
                || refused.iter().any(|r| key(r) == *id)
        });
        let mut waited = Vec::new();
        let mut alive: BTreeMap<String, usize> = BTreeMap::new();
        for ((namespace, _), _) in self.0.iter().filter(|(_, claim)| claim.stage().is_some()) {
            *alive.entry(namespace.clone()).or_default() += 1;
        }
        for ((namespace, _), claim) in &mut self.0 {
            let was_open = claim.state == State::Open;
            let alone = alive.get(namespace).is_none_or(|count| *count < 2);
            claim.step(quotas.get(namespace), alone, now);
            if was_open && matches!(claim.state, State::Held { .. }) {
                waited.push(now.duration_since(claim.since));
            }
        }
        (self, waited)
    }

    /// What is wanted in a namespace.
    pub fn wants(&self, namespace: &str) -> Vec<Wanted> {
        let here = self.0.iter().filter(|((ns, _), _)| ns == namespace);
        here.filter_map(|(_, claim)| Some(Wanted { amounts: claim.amounts.clone(), stage: claim.stage()? })).collect()
    }

    /// Controllers that have been waiting for this resource for at least that long, in any of these namespaces.
    pub fn waiting(&self, namespaces: &[&str], key: &str, now: Timestamp, least: SignedDuration) -> usize {
        let waits = |((ns, _), c): &(&(String, String), &Claim)| {
            let long = now.duration_since(c.since) >= least;
            namespaces.contains(&ns.as_str()) && c.state == State::Open && c.amounts.contains_key(key) && long
        };
        self.0.iter().filter(waits).count()
    }

    /// Controllers that are to be called now.
    pub fn calls(&self, now: Timestamp) -> Vec<Call> {
        let call = |((namespace, uid), claim): (&(String, String), &Claim)| {
            claim.call.filter(|then| *then <= now)?;
            let (controller, amounts) = (claim.controller.clone()?, claim.amounts.clone());
            Some(Call { namespace: namespace.clone(), uid: uid.clone(), controller, amounts })
        };
        self.0.iter().filter_map(call).collect()
    }

    /// It has been called.
    pub fn called(&mut self, call: &Call) {
        if let Some(claim) = self.0.get_mut(&(call.namespace.clone(), call.uid.clone())) {
            claim.call = None;
        }
    }

    /// When something ends by itself, somebody is to be called, or will have waited for `least`.
    pub fn wake(&self, now: Timestamp, least: SignedDuration) -> Option<Timestamp> {
        let end = |claim: &Claim| match claim.state {
            State::Open => claim.since.checked_add(least).ok().filter(|then| *then > now),
            State::Held { until, .. } | State::Eager { until, .. } | State::Lingering { until, .. } => Some(until),
            State::Over { .. } => None,
        };
        let call = |claim: &Claim| claim.call.filter(|then| *then > now);
        self.0.values().flat_map(|claim| [end(claim), call(claim)]).flatten().min()
    }

    /// Is there nothing to remember?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl State {
    fn used(&self) -> Option<&Amounts> {
        match self {
            Self::Held { used, .. } | Self::Eager { used, .. } | Self::Lingering { used, .. } => Some(used),
            Self::Open | Self::Over { .. } => None,
        }
    }
}

impl Claim {
    fn stage(&self) -> Option<Stage> {
        match self.state {
            State::Open | State::Eager { .. } => Some(Stage::Open),
            State::Held { .. } => Some(Stage::Held),
            State::Lingering { .. } => Some(Stage::Lingering),
            State::Over { .. } => None,
        }
    }

    /// `alone`: no other controller of the namespace has a claim, so who takes room is this one.
    fn step(&mut self, quota: Option<&Standing>, alone: bool, now: Timestamp) {
        let Some(quota) = quota else {
            (self.state, self.call) = (State::Over { used: None }, None);
            return;
        };
        let waited = matches!(self.state, State::Open | State::Eager { .. });
        let before = self.state.used().cloned();
        let used: Amounts = self.amounts.keys().map(|key| (key.clone(), amount(&quota.used, key))).collect();
        let room = |(key, wanted): (&String, &Amount)| {
            !quota.in_force.contains_key(key)
                || used.get(key).copied().unwrap_or_default().plus(*wanted) <= amount(&quota.in_force, key)
        };
        let has_room = self.amounts.iter().all(room);
        let end = |after: SignedDuration| now.checked_add(after).unwrap_or(Timestamp::MAX);
        let recent = now.duration_since(self.at) <= RECENT;
        let over = State::Over { used: None };
        let taken = |used| {
            let until = end(LINGER);
            if has_room { State::Lingering { until, used } } else { State::Eager { until, used } }
        };
        self.state = match std::mem::replace(&mut self.state, over.clone()) {
            State::Open if has_room => State::Held { until: end(self.patience(now)), used },
            State::Open if recent => State::Open,
            State::Open => over,
            State::Held { used: then, .. } | State::Eager { used: then, .. } | State::Lingering { used: then, .. }
                if fell(&then, &used) =>
            {
                over
            }
            State::Held { used: then, .. } if self.taken(&then, &used) => taken(used),
            State::Eager { used: then, .. } | State::Lingering { used: then, .. } if then != used => taken(used),
            State::Held { until, .. } | State::Eager { until, .. } | State::Lingering { until, .. } if now >= until => {
                State::Over { used: Some(used) }
            }
            State::Held { .. } if !has_room => State::Open,
            // room for one that is only supposed is made once
            State::Eager { until, used } if has_room => State::Lingering { until, used },
            State::Over { used: Some(then) } if recent && self.taken(&then, &used) => taken(used),
            State::Over { used: Some(then) } if fell(&then, &used) => over,
            same => same,
        };
        let come = alone && before.is_some() && before.as_ref() != self.state.used();
        self.call = match &self.state {
            State::Held { .. } | State::Lingering { .. } if come => None,
            State::Held { .. } | State::Lingering { .. } if waited => {
                self.controller.as_ref().map(|_| end(CALLED_AFTER))
            }
            State::Held { .. } | State::Lingering { .. } => self.call,
            State::Open | State::Eager { .. } | State::Over { .. } => None,
        };
    }

    /// A controller that has failed for so long comes back after about as long again.
    fn patience(&self, now: Timestamp) -> SignedDuration {
        let waited = now.duration_since(self.since.min(self.at));
        let pause = waited.checked_mul(3).and_then(|d| d.checked_div(2)).unwrap_or(LONGEST_HOLD);
        pause.clamp(HOLD, LONGEST_HOLD)
    }

    fn taken(&self, then: &Amounts, used: &Amounts) -> bool {
        let grown = |(key, wanted): (&String, &Amount)| {
            let of = |amounts: &Amounts| amounts.get(key).copied().unwrap_or_default();
            of(then).plus(*wanted) <= of(used)
        };
        self.amounts.iter().all(grown)
    }
}

fn fell(then: &Amounts, used: &Amounts) -> bool {
    then.iter().any(|(key, before)| used.get(key).copied().unwrap_or_default() < *before)
}

fn amount(limits: &super::split::Limits, key: &str) -> Amount {
    limits.get(key).and_then(Amount::parse).unwrap_or_default()
}

#[cfg(test)]
mod tests;
