//! Leader election on a Lease: one replica writes, the others keep their caches warm.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::sentence;

/// Why a replica is not, or no longer, the leader.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Renewal did not succeed in time: another replica may already act.
    #[error("the lease {0} could not be renewed in time, another replica takes over")]
    Lost(String),
}

/// The next action of a candidate.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// There is none: create it.
    Create,
    /// It is ours, free, or its holder has been silent for too long: write our name.
    Write,
    /// Another replica holds it.
    Wait,
}

/// Decides from the lease as read and from how long, by our own clock, it has not changed. Clocks of other machines play no part.
pub fn decide(me: &str, lease: Option<&LeaseSpec>, unchanged_for: Duration, duration: Duration) -> Step {
    let Some(lease) = lease else { return Step::Create };
    match lease.holder_identity.as_deref() {
        None | Some("") => Step::Write,
        Some(holder) if holder == me => Step::Write,
        Some(_) if unchanged_for >= held_for(lease, duration) => Step::Write,
        Some(_) => Step::Wait,
    }
}

/// Time that the next renewal may take, from the time since the last successful one began; `None`: the lease counts as lost.
/// Other replicas count from a write that came after that beginning, so a leader ends a third of the lease before another may act.
fn renewal_timeout(since_renewal: Duration, duration: Duration) -> Option<Duration> {
    let left = (duration * 2 / 3).checked_sub(since_renewal)?;
    Some(left.min(duration / 3)).filter(|left| !left.is_zero())
}

fn held_for(lease: &LeaseSpec, default: Duration) -> Duration {
    lease.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map_or(default, Duration::from_secs)
}

/// The lease as we write it.
pub fn written(me: &str, old: Option<&LeaseSpec>, duration: Duration, now: Timestamp) -> LeaseSpec {
    let mine = old.is_some_and(|o| o.holder_identity.as_deref() == Some(me));
    let transitions = old.and_then(|o| o.lease_transitions).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(me.into()),
        lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
        acquire_time: if mine { old.and_then(|o| o.acquire_time.clone()) } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if mine || old.is_none() { transitions } else { transitions.saturating_add(1) }),
        ..LeaseSpec::default()
    }
}

/// Takes part in the election for one lease.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    me: String,
    duration: Duration,
    seen: Option<(Lease, Instant)>,
    /// When the last successful renewal began.
    renewed: Instant,
}

impl Elector {
    /// A candidate named `me`.
    pub fn new(client: Client, namespace: &str, name: &str, me: String, duration: Duration) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.into(), me, duration, seen: None, renewed: Instant::now() }
    }

    /// Waits until this replica is the leader.
    pub async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = sentence(&error), lease = self.name, "the lease cannot be read or written");
                }
            }
            tokio::time::sleep(self.duration / 5).await;
        }
    }

    /// A number that grows from leader to leader: the version of the lease as this replica has taken it.
    pub fn term(&self) -> u64 {
        let version = self.seen.as_ref().and_then(|(lease, _)| lease.metadata.resource_version.as_deref());
        version.and_then(|v| v.parse().ok()).unwrap_or_default()
    }

    /// Renews until `stop`, and then releases the lease; an error means that it was lost.
    pub async fn hold(&mut self, stop: CancellationToken) -> Result<(), LeaseError> {
        let (renewed, duration) = (self.renewed, self.duration);
        if renew(renewed, duration, &stop, async || self.attempt().await.map_err(|error| sentence(&error))).await {
            self.release().await;
            return Ok(());
        }
        Err(LeaseError::Lost(self.name.clone()))
    }

    async fn attempt(&mut self) -> kube::Result<bool> {
        let begun = Instant::now();
        let held = self.take().await?;
        if held {
            self.renewed = begun;
        }
        Ok(held)
    }

    async fn take(&mut self) -> kube::Result<bool> {
        let found = self.api.get_opt(&self.name).await?;
        let unchanged_for = match (&found, &self.seen) {
            (Some(now), Some((then, since))) if now.spec == then.spec => since.elapsed(),
            (Some(now), _) => {
                self.seen = Some((now.clone(), Instant::now()));
                Duration::ZERO
            }
            (None, _) => Duration::ZERO,
        };
        let old = found.as_ref().and_then(|l| l.spec.as_ref());
        let spec = Some(written(&self.me, old, self.duration, Timestamp::now()));
        // a Lease without a spec is as good as none, but has to be replaced
        let step = if found.is_some() && old.is_none() {
            Step::Write
        } else {
            decide(&self.me, old, unchanged_for, self.duration)
        };
        let params = PostParams::default();
        let outcome = match (step, found) {
            (Step::Create, _) | (Step::Write, None) => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                self.api.create(&params, &Lease { metadata, spec }).await
            }
            // carries the version that was read: of two candidates one gets a conflict
            (Step::Write, Some(lease)) => self.api.replace(&self.name, &params, &Lease { spec, ..lease }).await,
            (Step::Wait, _) => return Ok(false),
        };
        match outcome {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                let now = self.api.get(&self.name).await?;
                let mine = now.spec.as_ref().is_some_and(|s| s.holder_identity.as_deref() == Some(&self.me));
                if mine {
                    self.seen = Some((now, Instant::now()));
                }
                Ok(mine)
            }
            Err(error) => Err(error),
        }
    }

    async fn release(&mut self) {
        let Some((mut lease, _)) = self.seen.take() else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
        }
        if let Err(error) = self.api.replace(&self.name, &PostParams::default(), &lease).await {
            tracing::info!(
                error = sentence(&error),
                "the lease was not given back; the next leader waits until it runs out"
            );
        }
    }
}

/// Renews by `attempt` until `stop` (true) or until the lease is lost (false).
async fn renew<E: std::fmt::Display>(
    mut renewed: Instant,
    duration: Duration,
    stop: &CancellationToken,
    mut attempt: impl AsyncFnMut() -> Result<bool, E>,
) -> bool {
    while let Some(left) = renewal_timeout(renewed.elapsed(), duration) {
        tokio::select! {
            () = stop.cancelled() => return true,
            () = tokio::time::sleep(left.min(duration / 5)) => {}
        }
        let begun = Instant::now();
        let Some(left) = renewal_timeout(renewed.elapsed(), duration) else { break };
        match tokio::time::timeout(left, attempt()).await {
            Ok(Ok(true)) => renewed = begun,
            Ok(Ok(false)) => break,
            Ok(Err(error)) => tracing::warn!(%error, "lease renewal failed"),
            Err(_) => tracing::warn!(timeout_ms = left.as_millis(), "lease renewal timed out"),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_secs(15);

    fn held_by(who: &str) -> LeaseSpec {
        written(who, None, D, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_silent_holder_is_replaced_after_its_own_duration_and_not_before() {
        let lease = held_by("a");
        assert_eq!(decide("b", Some(&lease), Duration::from_millis(14_999), D), Step::Wait);
        assert_eq!(decide("b", Some(&lease), D, D), Step::Write);
        assert_eq!(decide("b", Some(&lease), D, D * 2), Step::Write);
    }

    #[test]
    fn a_released_or_own_lease_is_written_at_once() {
        assert_eq!(decide("a", Some(&held_by("a")), Duration::ZERO, D), Step::Write);
        assert_eq!(decide("b", Some(&held_by("")), Duration::ZERO, D), Step::Write);
        assert_eq!(decide("b", None, Duration::ZERO, D), Step::Create);
    }

    #[test]
    fn renewal_keeps_the_time_of_acquisition_and_taking_over_counts() {
        let first = held_by("a");
        let renewed = written("a", Some(&first), D, Timestamp::MAX);
        assert_eq!((renewed.acquire_time.clone(), renewed.lease_transitions), (first.acquire_time, Some(0)));
        assert_eq!(written("b", Some(&renewed), D, Timestamp::MAX).lease_transitions, Some(1));
    }

    #[test]
    fn leader_ends_two_thirds_of_the_lease_after_its_last_renewal_began() {
        let timeout = |seconds| renewal_timeout(Duration::from_secs(seconds), D).map(|t| t.as_secs());
        assert_eq!([0, 5, 6, 9, 10, 16].map(timeout), [Some(5), Some(5), Some(4), Some(1), None, None]);
    }

    /// Seconds after which a leader whose renewals behave like this gives up; each call counts from 0.
    async fn lost_after(attempt: impl AsyncFnMut() -> Result<bool, &'static str>) -> u64 {
        let begun = Instant::now();
        let kept = renew(begun, D, &CancellationToken::new(), attempt).await;
        assert!(!kept);
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn leader_ends_before_another_may_act_however_its_renewals_fail() {
        assert_eq!(lost_after(async || std::future::pending().await).await, 10);
        assert_eq!(lost_after(async || Err("503")).await, 10);
        assert_eq!(lost_after(async || Ok(false)).await, 3);
        // answers that come late count from their request
        let mut calls = 0;
        let late = async || {
            calls += 1;
            let answer = if calls < 3 { Duration::from_secs(2) } else { D };
            tokio::time::sleep(answer).await;
            Ok(true)
        };
        // requests at 3, 8 and 13 seconds
        assert_eq!(lost_after(late).await, 8 + 10);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_renews_holds_until_it_is_stopped() {
        let stop = CancellationToken::new();
        let stopping = async {
            tokio::time::sleep(D * 20).await;
            stop.cancel();
        };
        let renewing = renew(Instant::now(), D, &stop, async || Ok::<_, &str>(true));
        assert!(tokio::join!(renewing, stopping).0);
    }
}
