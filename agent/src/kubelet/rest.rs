//! How long the loop rests: a moment while something is on its way, seconds when nothing is.

use std::time::{Duration, Instant};

use super::allocatable::Flights;

/// Between looks while something is on its way.
pub const BUSY: Duration = Duration::from_millis(50);
/// Until the look after a list was sent: kubelet takes it over in a few milliseconds.
const TOLD: Duration = Duration::from_millis(15);
/// Between looks while a bound pod has no owner's name yet: kubelet gives a device before it starts a container, so that the name is known
/// when a process of it can be seen. Far below the hundred requests a second that kubelet answers.
const LANDING: Duration = Duration::from_millis(100);
/// Between looks while pods come and go, or a withdrawn device still has an owner.
pub const LIVELY: Duration = Duration::from_secs(1);
/// Between looks at rest.
const QUIET: Duration = Duration::from_secs(5);
/// How long a change keeps the loop lively, and a pod that gets no device does.
pub const LIVELY_FOR: Duration = Duration::from_secs(30);

/// How far a turn of the loop came with what is to be offered.
#[derive(Debug, Clone, Copy)]
pub enum Offering {
    /// It is in force, as it always is where another plugin offers the devices.
    InForce,
    /// There is more to do, or somebody to wait for.
    OnItsWay,
    /// Something failed.
    Failed,
}

/// What a turn of the loop left behind.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// How far it came.
    pub offering: Offering,
    /// A list was sent to kubelet.
    pub told: bool,
    /// When the next step of a withdrawal is due.
    pub due: Option<Duration>,
    /// Pods that are bound and have no device yet.
    pub in_flight: &'a Flights,
    /// Something changed not long ago.
    pub lively: bool,
}

/// How long to rest after it, when nothing happens.
pub fn after(turn: &Turn<'_>, now: Instant) -> Duration {
    let Turn { offering, told, due, in_flight, lively } = *turn;
    let landing = in_flight.values().any(|flight| now.saturating_duration_since(flight.youngest) < LIVELY_FOR);
    match offering {
        Offering::OnItsWay if lively => {
            let busy = if told { TOLD } else { BUSY };
            due.map_or(busy, |due| due.min(busy))
        }
        Offering::InForce | Offering::OnItsWay if landing => LANDING,
        Offering::InForce if !lively => QUIET,
        Offering::InForce | Offering::OnItsWay | Offering::Failed => LIVELY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::allocatable::Flight;

    fn turn(in_flight: &Flights) -> Turn<'_> {
        Turn { offering: Offering::InForce, told: false, due: None, in_flight, lively: false }
    }

    fn flying(since: Instant) -> Flights {
        [("nvidia.com/gpu".to_owned(), Flight { count: 1, youngest: since })].into()
    }

    #[test]
    fn rests_long_when_nothing_is_on_its_way() {
        let (now, nobody) = (Instant::now(), Flights::new());
        assert_eq!(after(&turn(&nobody), now), QUIET);
        assert_eq!(after(&Turn { lively: true, ..turn(&nobody) }, now), LIVELY);
    }

    #[test]
    fn asks_often_until_a_bound_pod_has_its_device() {
        let now = Instant::now();
        assert_eq!(after(&turn(&flying(now)), now), LANDING);
        assert_eq!(after(&Turn { lively: true, ..turn(&flying(now)) }, now), LANDING);
    }

    #[test]
    fn a_pod_that_never_gets_one_is_not_asked_about_for_ever() {
        let since = Instant::now();
        assert_eq!(after(&turn(&flying(since)), since + LIVELY_FOR), QUIET);
    }

    #[test]
    fn a_view_on_its_way_is_followed_closest_and_a_failure_is_tried_again_slowly() {
        let (now, nobody) = (Instant::now(), Flights::new());
        let waiting = Turn { offering: Offering::OnItsWay, lively: true, ..turn(&nobody) };
        assert_eq!(after(&waiting, now), BUSY);
        assert_eq!(after(&Turn { told: true, ..waiting }, now), TOLD);
        assert_eq!(after(&Turn { due: Some(Duration::from_millis(3)), ..waiting }, now), Duration::from_millis(3));
        assert_eq!(after(&Turn { offering: Offering::Failed, in_flight: &flying(now), ..waiting }, now), LIVELY);
    }
}
