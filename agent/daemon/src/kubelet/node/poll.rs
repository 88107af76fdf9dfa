//! The poll interval of the manager: milliseconds while something is in progress, seconds otherwise.

use std::time::{Duration, Instant};

use super::allocatable::InFlightPods;

/// While lists are being applied.
pub const BUSY: Duration = Duration::from_millis(50);
/// After a list was published, which kubelet takes over in a few milliseconds.
const PUBLISHED: Duration = Duration::from_millis(15);
/// While a bound pod has no device: kubelet allocates before it starts a container, so the owner is known when the container's processes
/// appear. Far below the hundred queries per second that kubelet answers.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// While pods start and end, or a withdrawn device still has an owner.
pub const ACTIVE: Duration = Duration::from_secs(1);
/// Otherwise.
const IDLE: Duration = Duration::from_secs(5);
/// How long a change, or a pod that gets no device, shortens the interval.
pub const ACTIVE_FOR: Duration = Duration::from_secs(30);

/// How far the device lists of the view are applied.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// Completely, or another plugin advertises the devices.
    Applied,
    /// Not completely.
    InProgress,
    /// An action failed.
    Failed,
}

/// State after a reconcile.
#[derive(Debug, Clone, Copy)]
pub struct PollState<'a> {
    /// Outcome of the reconcile.
    pub outcome: Outcome,
    /// A list was published.
    pub published: bool,
    /// Time until the next step of a withdrawal.
    pub due: Option<Duration>,
    /// Pods in flight.
    pub in_flight: &'a InFlightPods,
    /// Something changed within [`ACTIVE_FOR`].
    pub active: bool,
}

/// Delay of the next reconcile, if no event comes before.
pub fn interval(state: &PollState<'_>, now: Instant) -> Duration {
    let PollState { outcome, published, due, in_flight, active } = *state;
    let starting = in_flight.values().any(|pods| now.saturating_duration_since(pods.newest) < ACTIVE_FOR);
    match outcome {
        Outcome::InProgress if active => {
            let busy = if published { PUBLISHED } else { BUSY };
            due.map_or(busy, |due| due.min(busy))
        }
        Outcome::Applied | Outcome::InProgress if starting => IN_FLIGHT,
        Outcome::Applied if !active => IDLE,
        Outcome::Applied | Outcome::InProgress | Outcome::Failed => ACTIVE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::node::allocatable::InFlight;

    fn state(in_flight: &InFlightPods) -> PollState<'_> {
        PollState { outcome: Outcome::Applied, published: false, due: None, in_flight, active: false }
    }

    fn pod_bound(since: Instant) -> InFlightPods {
        [("nvidia.com/gpu".to_owned(), InFlight { count: 1, newest: since })].into()
    }

    #[test]
    fn interval_is_long_without_changes() {
        let (now, none) = (Instant::now(), InFlightPods::new());
        assert_eq!(interval(&state(&none), now), IDLE);
        assert_eq!(interval(&PollState { active: true, ..state(&none) }, now), ACTIVE);
    }

    #[test]
    fn interval_is_short_until_a_bound_pod_has_its_device() {
        let now = Instant::now();
        assert_eq!(interval(&state(&pod_bound(now)), now), IN_FLIGHT);
        assert_eq!(interval(&PollState { active: true, ..state(&pod_bound(now)) }, now), IN_FLIGHT);
    }

    #[test]
    fn interval_is_long_again_after_the_time_of_a_pod_without_a_device() {
        let since = Instant::now();
        assert_eq!(interval(&state(&pod_bound(since)), since + ACTIVE_FOR), IDLE);
    }

    #[test]
    fn interval_is_shortest_while_lists_are_applied_and_longer_after_a_failure() {
        let (now, none) = (Instant::now(), InFlightPods::new());
        let waiting = PollState { outcome: Outcome::InProgress, active: true, ..state(&none) };
        assert_eq!(interval(&waiting, now), BUSY);
        assert_eq!(interval(&PollState { published: true, ..waiting }, now), PUBLISHED);
        assert_eq!(
            interval(&PollState { due: Some(Duration::from_millis(3)), ..waiting }, now),
            Duration::from_millis(3)
        );
        let failed = PollState { outcome: Outcome::Failed, in_flight: &pod_bound(now), ..waiting };
        assert_eq!(interval(&failed, now), ACTIVE);
    }
}
