//! When a share may use the GPU. Pure: all times are nanoseconds of the monotonic clock.
//!
//! A share of 25 percent pays four times what it uses: after kernels of 1 ms it may launch again 4 ms after they began. It may be in debt,
//! because the time of a kernel is known only when it has ended, and pays that back before the next launch. So its average is its part.
//!
//! Where several shares of a GPU have a part of its time, each has turns of its own: kernels of different processes that run at the same time
//! would be charged for the time of the others, too.

/// How far a share without turns may be in debt and still launch. Covers the time between a launch and the begin of its kernel.
const AHEAD: u64 = 1_000_000;
/// Longest period of turns.
const LONGEST: u64 = 1_000_000_000;

/// Part of the GPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Of the time, 1 to 99.
    pub percent: u64,
    /// Its turns, if other shares of the GPU have some.
    pub turn: Option<Turn>,
}

/// A part of every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Length of the period.
    pub period: u64,
    /// Begin of the turn in the period.
    pub start: u64,
    /// Length of the turn.
    pub length: u64,
}

impl Turn {
    /// The turn, if it is within its period.
    pub(crate) fn valid(self) -> Option<Self> {
        let inside = self.start.checked_add(self.length).is_some_and(|end| end <= self.period);
        (self.length > 0 && inside && self.period <= LONGEST).then_some(self)
    }

    /// Nanoseconds of the turn that are left.
    fn left(self, now: u64) -> u64 {
        let phase = now.checked_rem(self.period).unwrap_or(0);
        self.start.saturating_add(self.length).saturating_sub(phase)
    }

    /// The first time from `at` on when something may begin that takes `ahead`. What takes longer than the turn begins with it.
    fn next(self, at: u64, ahead: u64) -> u64 {
        let Self { period, start, length } = self;
        let phase = at.checked_rem(period).unwrap_or(0);
        let end = start.saturating_add(length.saturating_sub(ahead).max(length / 8));
        match phase {
            phase if phase < start => at.saturating_add(start - phase),
            phase if phase < end => at,
            phase => at.saturating_add(period - phase).saturating_add(start),
        }
    }
}

impl Pace {
    /// Nanoseconds until the share may launch what is expected to take `ahead`. Its time until `paid` is used.
    pub fn wait(&self, now: u64, paid: u64, ahead: u64) -> u64 {
        // in its turn it uses the time of a whole period
        let allowance = self.turn.map_or(AHEAD, |turn| turn.period.max(AHEAD));
        let at = now.max(paid.saturating_sub(allowance));
        self.turn.map_or(at, |turn| turn.next(at, ahead)).saturating_sub(now)
    }

    /// Nanoseconds until the end of its turn, if it has turns.
    pub fn left(&self, now: u64) -> Option<u64> {
        self.turn.map(|turn| turn.left(now))
    }
}

/// When the time is paid for that was used from `from` on. Time in which nothing was used is not saved.
pub(crate) fn paid_after(paid: u64, from: u64, used: u64, percent: u64) -> u64 {
    paid.max(from).saturating_add(used.saturating_mul(100).checked_div(percent).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs kernels one after another as soon as they may begin, and returns the part of the time that they took, in permille.
    fn part(pace: Pace, kernel: u64, total: u64) -> u64 {
        let (mut now, mut paid, mut used) = (0, 0, 0);
        while now < total {
            let wait = pace.wait(now, paid, kernel);
            now += wait;
            paid = paid_after(paid, now, kernel, pace.percent);
            now += kernel;
            used += kernel;
        }
        used * 1000 / now
    }

    proptest! {
        #[test]
        fn average_is_the_part_for_short_and_long_kernels(percent in 1_u64..100, kernel in 1_000_u64..100_000_000) {
            let total = kernel.max(MS) * 10_000;
            let part = part(Pace { percent, turn: None }, kernel, total);
            prop_assert!(part.abs_diff(percent * 10) <= 5, "{part} permille");
        }

        #[test]
        fn average_with_turns_is_the_part_at_most(percent in 5_u64..96, kernel in 1_000_u64..30_000_000) {
            let turn = Turn { period: 20 * MS, start: 0, length: percent * MS / 5 };
            let part = part(Pace { percent, turn: Some(turn) }, kernel, 100_000 * MS);
            prop_assert!(part <= percent * 10 + 5, "{part} permille");
        }

        #[test]
        fn launch_is_in_the_turn(now in 0_u64..1 << 40, paid in 0_u64..1 << 40, start in 0_u64..15, ahead in 0_u64..1 << 24) {
            let turn = Turn { period: 20 * MS, start: start * MS, length: 5 * MS };
            let at = now + Pace { percent: 25, turn: Some(turn) }.wait(now, paid, ahead);
            let phase = at % turn.period;
            prop_assert!(turn.start <= phase && phase < turn.start + turn.length);
            prop_assert!(at + turn.period >= paid, "not more than a period in debt");
        }
    }

    #[test]
    fn short_kernels_fill_a_turn() {
        let turn = Turn { period: 20 * MS, start: 5 * MS, length: 6 * MS };
        let part = part(Pace { percent: 30, turn: Some(turn) }, MS / 10, 10_000 * MS);
        assert!((280..=300).contains(&part), "{part}");
    }

    #[test]
    fn turn_outside_of_its_period_is_none() {
        let valid = |period, start, length| Turn { period, start, length }.valid().is_some();
        assert!(valid(20, 10, 10) && !valid(20, 10, 11) && !valid(20, 0, 0) && !valid(20, u64::MAX, 1));
        assert!(!valid(LONGEST + 1, 0, 1));
    }
}
