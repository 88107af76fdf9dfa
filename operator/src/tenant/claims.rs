//! What a tenant's controllers wait for: from the refusals that they report to claims on room, and from claims to their end.
//!
//! A refusal says that a pod did not fit; nothing says that it is not wanted any more. So a claim ends when it has been answered:
//! room was there, and the controller has either taken it or not come back in the time that its growing pauses allow.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    amount::Amount,
    split::{Amounts, Stage, Standing, Wanted},
};

/// A refusal older than this says nothing: controllers ask again at least that often.
const RECENT: SignedDuration = SignedDuration::from_mins(20);
/// The least time that room is held for a controller.
const HOLD: SignedDuration = SignedDuration::from_secs(10);
/// The longest pause of a controller between two attempts.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_secs(1000);
/// How long nothing is taken back from a namespace whose pods have just been admitted.
const LINGER: SignedDuration = SignedDuration::from_secs(30);

/// A pod that a quota of ours has refused to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its namespace.
    pub namespace: String,
    /// Uid of the controller.
    pub by: String,
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
    /// It has been taken; `used`: since then.
    Lingering { until: Timestamp, used: Amounts },
    /// Nothing is expected any more; kept so that the same words are not believed twice.
    Over,
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
                since: waits.unwrap_or(now),
                at: word.at,
                amounts: word.amounts.clone(),
                state: if recent { State::Open } else { State::Over },
            };
            self.0.insert(key(word), claim);
        }
        // what is not told of any more has ended, unless somebody is just being served
        self.0.retain(|id, claim| {
            matches!(claim.state, State::Held { .. } | State::Lingering { .. }) || refused.iter().any(|r| key(r) == *id)
        });
        let mut waited = Vec::new();
        for ((namespace, _), claim) in &mut self.0 {
            let was_open = claim.state == State::Open;
            claim.step(quotas.get(namespace), now);
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

    /// When something ends by itself, or will have waited for `least`.
    pub fn wake(&self, now: Timestamp, least: SignedDuration) -> Option<Timestamp> {
        let end = |claim: &Claim| match claim.state {
            State::Open => claim.since.checked_add(least).ok().filter(|then| *then > now),
            State::Held { until, .. } | State::Lingering { until, .. } => Some(until),
            State::Over => None,
        };
        self.0.values().filter_map(end).min()
    }

    /// Is there nothing to remember?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Claim {
    fn stage(&self) -> Option<Stage> {
        match self.state {
            State::Open => Some(Stage::Open),
            State::Held { .. } => Some(Stage::Held),
            State::Lingering { .. } => Some(Stage::Lingering),
            State::Over => None,
        }
    }

    fn step(&mut self, quota: Option<&Standing>, now: Timestamp) {
        let Some(quota) = quota else {
            self.state = State::Over;
            return;
        };
        let used: Amounts = self.amounts.keys().map(|key| (key.clone(), amount(&quota.used, key))).collect();
        let room = |(key, wanted): (&String, &Amount)| {
            !quota.in_force.contains_key(key)
                || used.get(key).copied().unwrap_or_default().plus(*wanted) <= amount(&quota.in_force, key)
        };
        let has_room = self.amounts.iter().all(room);
        let end = |after: SignedDuration| now.checked_add(after).unwrap_or(Timestamp::MAX);
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Open if has_room => State::Held { until: end(self.patience(now)), used },
            State::Open if now.duration_since(self.at) <= RECENT => State::Open,
            State::Open | State::Over => State::Over,
            State::Held { used: then, .. } | State::Lingering { used: then, .. } if fell(&then, &used) => State::Over,
            State::Held { used: then, .. } if self.taken(&then, &used) => State::Lingering { until: end(LINGER), used },
            State::Held { until, .. } | State::Lingering { until, .. } if now >= until => State::Over,
            State::Held { .. } if !has_room => State::Open,
            State::Lingering { used: then, .. } if then != used => State::Lingering { until: end(LINGER), used },
            same => same,
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
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    const KEY: &str = "requests.nvidia.com/gpu";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn refused(version: u64, second: i64) -> Refused {
        let amounts = [(KEY.to_owned(), Amount::units(1))].into();
        Refused { namespace: "a".into(), by: "rs-1".into(), version, at: at(second), amounts }
    }

    fn quota(limit: i32, used: i32) -> BTreeMap<String, Standing> {
        let of = |n: i32| [(KEY.to_owned(), Quantity(n.to_string()))].into();
        [("a".to_owned(), Standing { written: of(limit), in_force: of(limit), used: of(used) })].into()
    }

    fn stage(claims: &Claims) -> Option<Stage> {
        claims.wants("a").first().map(|w| w.stage)
    }

    /// A story of quotas: at each second the limit and the use; what becomes of the claim.
    fn told(story: &[(i64, i32, i32)]) -> Vec<Option<Stage>> {
        let mut claims = Claims::default();
        let mut stages = Vec::new();
        for (second, limit, used) in story {
            claims = claims.follow(&[refused(1, 0)], &quota(*limit, *used), at(*second)).0;
            stages.push(stage(&claims));
        }
        stages
    }

    #[test]
    fn a_claim_is_held_until_its_pod_has_come_and_lingers_while_others_come() {
        let stages = told(&[(0, 1, 1), (1, 4, 1), (2, 4, 2), (30, 4, 3), (59, 4, 3), (61, 4, 3), (62, 3, 3)]);
        let (open, held, lingers) = (Some(Stage::Open), Some(Stage::Held), Some(Stage::Lingering));
        assert_eq!(stages, [open, held, lingers, lingers, lingers, None, None]);
    }

    #[test]
    fn a_claim_ends_when_its_controller_does_not_come_back_or_the_team_lets_go() {
        assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (10, 2, 1), (12, 2, 1)])[2..], [Some(Stage::Held), None]);
        assert_eq!(told(&[(0, 1, 1), (1, 2, 1), (2, 2, 0)])[2], None);
        assert_eq!(told(&[(0, 1, 1), (1200, 1, 1), (1201, 1, 1)])[1..], [Some(Stage::Open), None]);
    }

    #[test]
    fn a_claim_that_lost_its_room_before_it_came_is_open_again() {
        assert_eq!(told(&[(0, 0, 0), (1, 2, 0), (2, 0, 0)])[2], Some(Stage::Open));
    }

    #[test]
    fn who_has_waited_long_is_waited_for_long() {
        let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(1, 1), at(0));
        let (claims, waited) = claims.follow(&[refused(2, 200)], &quota(2, 1), at(202));
        assert_eq!((stage(&claims), waited), (Some(Stage::Held), vec![SignedDuration::from_secs(202)]));
        assert_eq!(claims.wake(at(202), HOLD), Some(at(505)));
    }

    #[test]
    fn the_same_words_are_not_believed_twice_and_new_ones_are() {
        let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(2, 1), at(0));
        let (claims, _) = claims.follow(&[refused(1, 0)], &quota(2, 1), at(60));
        assert_eq!(stage(&claims), None);
        let (claims, _) = claims.follow(&[refused(1, 0)], &quota(1, 1), at(61));
        assert_eq!(stage(&claims), None);
        let (claims, _) = claims.follow(&[refused(2, 61)], &quota(1, 1), at(62));
        assert_eq!(stage(&claims), Some(Stage::Open));
        assert_eq!(claims.waiting(&["a"], KEY, at(62), SignedDuration::ZERO), 1);
        assert_eq!(claims.waiting(&["a"], KEY, at(62), HOLD), 0);
        let (claims, _) = claims.follow(&[], &quota(1, 1), at(63));
        assert!(claims.is_empty(), "told of no more");
    }

    #[test]
    fn old_refusals_found_after_a_restart_say_nothing() {
        let (claims, _) = Claims::default().follow(&[refused(1, 0)], &quota(1, 1), at(3600));
        assert_eq!(stage(&claims), None);
    }
}
