//! How the time is divided that neighbours leave idle. Pure.

use crate::pace::{Pace, Turn};

/// A share of a GPU with a part of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its own part.
    pub pace: Pace,
    /// Of two shares that both may use more than their parts, the one with the higher number gets the idle time.
    pub priority: i32,
    /// It has work.
    pub active: bool,
}

/// The part of each share until the next decision, in their order; `None`: its own part, in its own turn. The only share with work has no turns.
///
/// A share with work never gets less than its own part. What the others leave goes to the shares with work that may use it: to those of the highest
/// priority, in proportion to their parts.
pub fn divide(demands: &[Demand]) -> Vec<Option<Pace>> {
    let active = || demands.iter().filter(|demand| demand.active);
    let used: u64 = active().map(|demand| demand.pace.percent).sum();
    let idle = 100_u64.saturating_sub(used);
    let bursts = || active().filter(|demand| demand.pace.burst);
    let top = bursts().map(|demand| demand.priority).max();
    let alone = active().count() == 1;
    if !alone && (top.is_none() || idle == 0) {
        return vec![None; demands.len()];
    }
    let gains = |demand: &Demand| demand.active && demand.pace.burst && Some(demand.priority) == top;
    let parts: u64 = demands.iter().filter(|demand| gains(demand)).map(|demand| demand.pace.percent).sum();
    // the parts of those before it, so that rounding loses nothing
    let (mut before, mut start) = (0_u64, 0_u64);
    let part = |before: u64| (idle * before).checked_div(parts).unwrap_or(0);
    let of = |demand: &Demand| {
        if !demand.active {
            return None;
        }
        let own = demand.pace.percent;
        let mut percent = own;
        if gains(demand) {
            percent += part(before + own) - part(before);
            before += own;
        }
        let period = demand.pace.turn.map(|turn| turn.period);
        let turn = period.map(|period| Turn { period, start: period / 100 * start, length: period / 100 * percent });
        start += percent;
        if alone {
            return Some(Pace { percent, turn: None, ..demand.pace });
        }
        // the parts are more than the GPU: there are no turns
        turn.and_then(Turn::valid).map(|turn| Pace { percent, turn: Some(turn), ..demand.pace })
    };
    demands.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: u64 = 20_000_000;

    fn demand((percent, burst, priority, active): (u64, bool, i32, bool)) -> Demand {
        let turn = Some(Turn { period: PERIOD, start: 0, length: PERIOD / 100 * percent });
        Demand { pace: Pace { percent, turn, burst }, priority, active }
    }

    fn percents(demands: &[(u64, bool, i32, bool)]) -> Vec<Option<u64>> {
        let demands: Vec<Demand> = demands.iter().copied().map(demand).collect();
        divide(&demands).into_iter().map(|part| part.map(|pace| pace.percent)).collect()
    }

    proptest! {
        #[test]
        fn share_with_work_never_gets_less_than_its_part_and_all_together_at_most_the_gpu(
            shares in proptest::collection::vec((1_u64..25, any::<bool>(), 0..3, any::<bool>()), 1..5),
        ) {
            let demands: Vec<Demand> = shares.iter().copied().map(demand).collect();
            let divided = divide(&demands);
            let given = demands.iter().zip(&divided).filter(|(demand, _)| demand.active);
            let given: Vec<(u64, u64)> = given
                .map(|(demand, part)| (demand.pace.percent, part.map_or(demand.pace.percent, |part| part.percent)))
                .collect();
            prop_assert!(given.iter().all(|(own, got)| got >= own));
            prop_assert!(given.iter().map(|(_, got)| got).sum::<u64>() <= 100);
            if demands.iter().any(|demand| demand.active && demand.pace.burst) {
                prop_assert_eq!(given.iter().map(|(_, got)| got).sum::<u64>(), 100, "nothing stays idle");
            }
            for (demand, part) in demands.iter().zip(&divided) {
                let part = part.unwrap_or(demand.pace);
                prop_assert!(demand.pace.burst || part.percent == demand.pace.percent, "a strict share keeps its part");
                prop_assert!(demand.active || part == demand.pace);
            }
            let mut turns: Vec<Turn> = divided.iter().flatten().filter_map(|pace| pace.turn).collect();
            turns.sort_by_key(|turn| turn.start);
            prop_assert!(turns.iter().all(|turn| turn.start + turn.length <= turn.period));
            prop_assert!(turns.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start));
        }

        #[test]
        fn idle_time_goes_to_the_highest_priority(
            shares in proptest::collection::vec((1_u64..25, any::<bool>(), 0..3, any::<bool>()), 1..5),
        ) {
            let demands: Vec<Demand> = shares.iter().copied().map(demand).collect();
            let top = demands.iter().filter(|d| d.active && d.pace.burst).map(|d| d.priority).max();
            for (demand, part) in demands.iter().zip(divide(&demands)) {
                let got = part.map_or(demand.pace.percent, |part| part.percent);
                prop_assert!(got == demand.pace.percent || Some(demand.priority) == top);
            }
        }
    }

    #[test]
    fn idle_time_is_divided_in_proportion_and_the_only_share_with_work_has_all() {
        let busy = |percent| (percent, true, 0, true);
        let idle = |percent| (percent, true, 0, false);
        assert_eq!(percents(&[busy(30), idle(70)]), [Some(100), None]);
        assert_eq!(percents(&[busy(30), busy(70)]), [None, None]);
        assert_eq!(percents(&[busy(20), busy(40), idle(40)]), [Some(33), Some(67), None]);
        let strict = (30, false, 0, true);
        assert_eq!(percents(&[strict, idle(70)]), [Some(30), None]);
        assert_eq!(divide(&[demand(strict), demand(idle(70))])[0].and_then(|pace| pace.turn), None);
        assert_eq!(percents(&[strict, busy(20), idle(50)]), [Some(30), Some(70), None]);
        assert_eq!(percents(&[(20, true, 5, true), busy(20), idle(60)]), [Some(80), Some(20), None], "by priority");
        assert_eq!(percents(&[idle(30), idle(70)]), [None, None]);
        let alone = Demand { pace: Pace { percent: 30, turn: None, burst: true }, priority: 0, active: true };
        assert_eq!(divide(&[alone])[0].map(|pace| (pace.percent, pace.turn)), Some((100, None)));
    }
}
