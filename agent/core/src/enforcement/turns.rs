//! The part of a GPU's time that a fraction has. Pure.
//!
//! The fractions of a GPU have turns in a period, in the order of their numbers, whether or not a container has them. So no program waits for another
//! one, and the turns hold while the agent is down. One fraction alone on its GPU may use it at any time.

use gputenancy_crds::{ComputeMode, Sharing, SharingMode};
use gputenancy_ledger::{Pace, Turn};

/// Nanoseconds in which each fraction has a turn. Long enough for many kernels, which can take a millisecond each, and short for a request that waits.
const PERIOD: u64 = 20_000_000;

/// The part of a share, if it is a fraction with a limited one.
pub fn of_share(sharing: &Sharing, number: i32) -> Option<Pace> {
    if sharing.mode != SharingMode::Fraction {
        return None;
    }
    let percent = |number: i32| u64::try_from(sharing.group_of(number)?.compute?).ok();
    let own = percent(number).filter(|percent| (1..100).contains(percent))?;
    let numbers = sharing.numbers();
    let all: u64 = numbers.iter().filter_map(|number| percent(*number)).sum();
    let before: u64 = numbers.iter().filter(|other| **other < number).filter_map(|number| percent(*number)).sum();
    let part = |percent: u64| PERIOD / 100 * percent;
    let turn = Turn { period: PERIOD, start: part(before), length: part(own) };
    let burst = sharing.group_of(number)?.compute_mode == ComputeMode::Burst;
    // of more than the whole GPU there are no turns
    Some(Pace { percent: own, turn: (all > own && all <= 100).then_some(turn), burst })
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::ShareGroup;

    use super::*;

    fn sharing(mode: SharingMode, groups: &[(Option<i32>, &[i32])]) -> Sharing {
        let group = |(compute, numbers): &(Option<i32>, &[i32])| ShareGroup {
            resource: "gputenancy.io/part".into(),
            compute: *compute,
            numbers: numbers.to_vec(),
            ..ShareGroup::default()
        };
        Sharing { mode, shares: groups.iter().map(group).collect(), ..Sharing::default() }
    }

    #[test]
    fn fractions_have_turns_that_do_not_overlap() {
        let sharing = sharing(SharingMode::Fraction, &[(Some(30), &[1, 4]), (Some(40), &[2])]);
        let turn = |number| of_share(&sharing, number).unwrap().turn.unwrap();
        let times = |turn: Turn| (turn.start, turn.start + turn.length);
        assert_eq!([1, 2, 4].map(turn).map(times), [(0, 6_000_000), (6_000_000, 14_000_000), (14_000_000, 20_000_000)]);
        assert_eq!(of_share(&sharing, 2).unwrap().percent, 40);
        assert_eq!(of_share(&sharing, 3), None, "no such share");
    }

    #[test]
    fn fraction_alone_has_its_part_at_any_time() {
        let alone = sharing(SharingMode::Fraction, &[(Some(30), &[0])]);
        assert_eq!(of_share(&alone, 0), Some(Pace { percent: 30, turn: None, burst: false }));
        let mut burst = alone;
        burst.shares[0].compute_mode = ComputeMode::Burst;
        assert!(of_share(&burst, 0).unwrap().burst);
        let whole = sharing(SharingMode::Fraction, &[(Some(100), &[0])]);
        assert_eq!(of_share(&whole, 0), None);
        let unlimited = sharing(SharingMode::Fraction, &[(None, &[0]), (Some(30), &[1])]);
        assert_eq!(of_share(&unlimited, 0), None);
    }

    #[test]
    fn only_fractions_have_parts() {
        for mode in [SharingMode::Mps, SharingMode::TimeSlice] {
            assert_eq!(of_share(&sharing(mode, &[(Some(30), &[0, 1])]), 0), None);
        }
    }
}
