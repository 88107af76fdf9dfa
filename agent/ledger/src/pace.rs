//! When a share may use the GPU. Pure: all times are nanoseconds of the monotonic clock.
//!
//! A share of 25 percent pays four times what it uses: after kernels of 1 ms it may launch again 4 ms after they began. It may be in debt,
//! because the time of a kernel is known only when it has ended, and pays that back before the next launch. So its average is its part.
//!
//! Where several shares of a GPU have a part of its time, each has turns of its own: kernels of different processes that run at the same time
//! would be charged for the time of the others, too.
//!
//! A kernel that is longer than its turn runs through the turns of others. Where the agent relays what the neighbours have run
//! ([`crate::Arbiter`]), a share is not charged for the time in which its kernel waited for theirs, that time is owed to it, and a share that is
//! owed more than a period may launch outside of its turn.

/// How far a share without turns may be in debt and still launch. Covers the time between a launch and the begin of its kernel.
const AHEAD: u64 = 1_000_000;
/// Longest period of turns.
pub(crate) const LONGEST: u64 = 1_000_000_000;
/// Most time that is owed to a share, in nanoseconds: after a neighbour's kernel of any length, the share is ahead of its part for a time of
/// this order.
pub(crate) const CREDIT: u64 = 500_000_000;
/// Nanoseconds of its own work that may wait for the GPU when a share launches outside of its turn: short kernels follow each other without a gap.
const QUEUED: u64 = 2_000_000;

/// Part of the GPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Of the time, 1 to 99; 100 only in a grant, while no neighbour has work.
    pub percent: u64,
    /// Its turns, if other shares of the GPU have some.
    pub turn: Option<Turn>,
    /// It may also use time that its neighbours leave idle, as far as the agent grants it.
    pub burst: bool,
}

/// A launch, as a share asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch {
    /// When the time that was used is paid for.
    pub paid: u64,
    /// Nanoseconds that the GPU is expected to need for what the share has launched before.
    pub before: u64,
    /// Nanoseconds of a launch, on average.
    pub mean: u64,
    /// What the neighbours run is known.
    pub shared: bool,
}

/// Work that has ended, by times of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// When the program asked for the launch.
    pub arrived: u64,
    /// When it was launched.
    pub launched: u64,
    /// When the stream came to it; the GPU may have been at work for a neighbour.
    pub start: u64,
    /// When it ended.
    pub end: u64,
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

    /// The first time from `at` on when something may begin that takes `mean`, after what takes `before`. What takes longer than the turn begins
    /// with it, and alone.
    fn next(self, at: u64, before: u64, mean: u64) -> u64 {
        let Self { period, start, length } = self;
        let phase = at.checked_rem(period).unwrap_or(0);
        let first = if before == 0 { length / 8 } else { 0 };
        let end = start.saturating_add(length.saturating_sub(before.saturating_add(mean)).max(first));
        match phase {
            phase if phase < start => at.saturating_add(start - phase),
            phase if phase < end => at,
            phase => at.saturating_add(period - phase).saturating_add(start),
        }
    }
}

impl Pace {
    /// Nanoseconds until the share may launch.
    pub fn wait(&self, now: u64, launch: &Launch) -> u64 {
        let Launch { paid, before, mean, .. } = *launch;
        let Some(turn) = self.turn else { return paid.saturating_sub(AHEAD).saturating_sub(now) };
        if self.is_owed(now, launch) && before <= QUEUED {
            return 0;
        }
        // in its turn it uses the time of a whole period
        let at = now.max(paid.saturating_sub(turn.period.max(AHEAD)));
        turn.next(at, before, mean).saturating_sub(now)
    }

    /// Nanoseconds until the end of its turn, if it has turns and does not launch outside of them.
    pub fn left(&self, now: u64, launch: &Launch) -> Option<u64> {
        self.turn.filter(|_| !self.is_owed(now, launch)).map(|turn| turn.left(now))
    }

    /// Neighbours have used more than a period of the time in which it had work.
    fn is_owed(&self, now: u64, launch: &Launch) -> bool {
        self.turn.is_some_and(|turn| launch.shared && now.saturating_sub(launch.paid) > turn.period)
    }
}

/// When the time is paid for that was used from `from` on. Time in which nothing was used is not saved.
pub(crate) fn paid_after(paid: u64, from: u64, used: u64, percent: u64) -> u64 {
    paid.max(from).saturating_add(cost(used, percent))
}

/// The same next to neighbours: time in which the share had work or waited for a launch is saved up to [`CREDIT`], because neighbours used it; time
/// without work is not. `covered`: end of its work before.
pub(crate) fn paid_next_to(paid: u64, covered: u64, work: &Used, used: u64, percent: u64) -> u64 {
    let idle = work.arrived.saturating_sub(covered);
    let paid = if paid < work.arrived { work.arrived.min(paid.saturating_add(idle)) } else { paid };
    paid.max(work.end.saturating_sub(CREDIT)).saturating_add(cost(used, percent))
}

/// Time that pays for what was used.
pub(crate) fn cost(used: u64, percent: u64) -> u64 {
    used.saturating_mul(100).checked_div(percent).unwrap_or(u64::MAX)
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
            let wait = pace.wait(now, &Launch { paid, mean: kernel, ..Launch::default() });
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
            let part = part(Pace { percent, turn: None, burst: false }, kernel, total);
            prop_assert!(part.abs_diff(percent * 10) <= 5, "{part} permille");
        }

        #[test]
        fn average_with_turns_is_the_part_at_most(percent in 5_u64..96, kernel in 1_000_u64..30_000_000) {
            let turn = Turn { period: 20 * MS, start: 0, length: percent * MS / 5 };
            let part = part(Pace { percent, turn: Some(turn), burst: false }, kernel, 100_000 * MS);
            prop_assert!(part <= percent * 10 + 5, "{part} permille");
        }

        #[test]
        fn launch_is_in_the_turn(now in 0_u64..1 << 40, paid in 0_u64..1 << 40, start in 0_u64..15, ahead in 0_u64..1 << 24) {
            let turn = Turn { period: 20 * MS, start: start * MS, length: 5 * MS };
            let launch = Launch { paid, mean: ahead, ..Launch::default() };
            let at = now + Pace { percent: 25, turn: Some(turn), burst: false }.wait(now, &launch);
            let phase = at % turn.period;
            prop_assert!(turn.start <= phase && phase < turn.start + turn.length);
            prop_assert!(at + turn.period >= paid, "not more than a period in debt");
        }
    }

    #[test]
    fn short_kernels_fill_a_turn() {
        let turn = Turn { period: 20 * MS, start: 5 * MS, length: 6 * MS };
        let part = part(Pace { percent: 30, turn: Some(turn), burst: false }, MS / 10, 10_000 * MS);
        assert!((280..=300).contains(&part), "{part}");
    }

    #[test]
    fn share_that_waited_for_neighbours_is_owed_time_and_launches_outside_of_its_turn() {
        let turn = Turn { period: 20 * MS, start: 0, length: 6 * MS };
        let pace = Pace { percent: 30, turn: Some(turn), burst: false };
        let now = 1010 * MS;
        let launch = |paid: u64, before: u64, shared: bool| Launch { paid: paid * MS, before, mean: MS, shared };
        assert_eq!(pace.wait(now, &launch(989, 0, true)), 0);
        assert_eq!(pace.left(now, &launch(989, 0, true)), None);
        assert_eq!(pace.wait(now, &launch(991, 0, true)), 10 * MS, "not owed a period");
        assert_eq!(pace.wait(now, &launch(989, 0, false)), 10 * MS, "neighbours are not known");
        assert_eq!(pace.wait(now, &launch(989, 3 * MS, true)), 10 * MS, "long ones one at a time");
    }

    #[test]
    fn time_without_work_is_not_saved_and_time_behind_neighbours_is() {
        let work = |arrived: u64, end: u64| Used { arrived, launched: arrived, start: arrived, end };
        // it asked at 100, and ran from 140 to 150 of a GPU that it has half of
        assert_eq!(paid_next_to(100, 100, &work(100, 150), 10, 50), 120);
        assert_eq!(paid_next_to(40, 60, &work(100, 150), 10, 50), 100, "40 without work");
        assert_eq!(paid_next_to(90, 0, &work(100, 150), 10, 50), 120, "never more than until it asked");
        assert_eq!(paid_next_to(500, 60, &work(100, 150), 10, 50), 520, "a debt stays");
        let late = CREDIT + 1_000;
        assert_eq!(paid_next_to(0, late, &work(10, late), 10, 50), 1_020, "no more than the credit");
    }

    #[test]
    fn turn_outside_of_its_period_is_none() {
        let valid = |period, start, length| Turn { period, start, length }.valid().is_some();
        assert!(valid(20, 10, 10) && !valid(20, 10, 11) && !valid(20, 0, 0) && !valid(20, u64::MAX, 1));
        assert!(!valid(LONGEST + 1, 0, 1));
    }
}
