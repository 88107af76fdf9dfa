//! The agent's half of the limit on time: between the shares of one GPU it relays what each has run, and grants the time that some leave idle.
//!
//! A container writes only its own usage file, and can write anything there. That takes no time from its neighbours:
//! - Work that it claims to have run makes the charge of neighbours smaller, never larger ([`Limits::waited_until`]). It claims at most its own part of the
//!   time ([`MemberState::claim`]), so that by lying it gives away time of its own and of no third share.
//! - Work that it hides is charged to neighbours that wait for it, as without an agent; a program that avoids the shim does the same.
//! - If it claims to have work, or to wait for its end, its part stays its own, as that of each share with work. If it hides that, it lends out its own
//!   part.
//!
//! Without the agent, grants end by themselves, and every share has its own part in its own turn.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    Limits, Mapped, Usage,
    division::{Demand, divide},
    map::without_waiting,
    pace::{self, CREDIT, Pace},
    page::Activity,
    work::{RECENT, Work},
};

/// Nanoseconds after which a share has no work, unless it launched or waited for that since.
const IDLE: u64 = 100_000_000;
/// Nanoseconds for which a grant holds without the agent.
const LEASE: u64 = 50_000_000;
/// Nanoseconds after which files are opened again, also those that were missing: a new container has new ones. As often a share without launches is
/// read for threads that wait.
const REOPEN: u64 = 100_000_000;
/// Nanoseconds after the end of work at which its neighbours' work is known: the neighbours' programs record it, and the agent reads it.
pub const LAG: u64 = 4_000_000;

/// A share that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its limits, which the agent writes.
    pub limits: PathBuf,
    /// Its usage, which its container writes.
    pub usage: PathBuf,
    /// Its own part.
    pub pace: Pace,
    /// Its priority among the shares that may use idle time.
    pub priority: i32,
}

/// What one round found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arbitrated {
    /// Shares with work.
    pub active: usize,
    /// One of them has more than its own part.
    pub granted: bool,
    /// Percent that each share may use now, in the order of the members.
    pub percents: Vec<u64>,
    /// Nanoseconds that launches of each share waited for its part of the time, as its container counts them.
    pub delayed: Vec<u64>,
}

/// The shares of one GPU.
#[derive(Debug)]
pub struct Arbiter {
    states: Vec<MemberState>,
}

/// A member with its state between rounds. Nothing of this is in a file.
#[derive(Debug)]
struct MemberState {
    member: Member,
    files: Option<(File, Mapped<Limits>)>,
    opened: u64,
    /// A thread waited for the GPU at this time.
    waits: bool,
    /// When `waits` was read last.
    waits_read: u64,
    /// Works that were read.
    read: u64,
    /// End of its latest work.
    covered: u64,
    /// When the time is paid for that it claims.
    claimed: u64,
    /// Calls of [`Limits::relay`].
    relayed: usize,
    percent: u64,
}

impl Arbiter {
    /// Begins with these shares.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        Self { states: members.into_iter().map(MemberState::new).collect() }
    }

    /// Goes on with these shares; those that were there before keep what is known of them.
    pub fn update(&mut self, members: impl IntoIterator<Item = Member>) {
        let mut before = std::mem::take(&mut self.states);
        let mut state = |member: Member| match before.iter().position(|state| state.member.limits == member.limits) {
            Some(at) => MemberState { member, ..before.swap_remove(at) },
            None => MemberState::new(member),
        };
        self.states = members.into_iter().map(&mut state).collect();
        // a share that does not take part any more has its own part
        before.iter().for_each(MemberState::end);
    }

    /// One round, at this time of the monotonic clock.
    pub fn arbitrate(&mut self, now: u64) -> Arbitrated {
        let activities: Vec<Option<Activity>> = self.states.iter_mut().map(|state| state.activity(now)).collect();
        let demands: Vec<Demand> = self
            .states
            .iter_mut()
            .zip(&activities)
            .map(|(state, activity)| {
                let active = activity.as_ref().is_some_and(|activity| state.is_active(activity, now));
                let Member { pace, priority, .. } = state.member;
                Demand { pace, priority, active }
            })
            .collect();
        let active = demands.iter().filter(|demand| demand.active).count();
        self.relay(&activities, now, active > 1);
        let parts = divide(&demands);
        for (state, part) in self.states.iter_mut().zip(&parts) {
            state.grant(*part, now);
        }
        Arbitrated {
            active,
            granted: self.states.iter().any(|state| state.percent > state.member.pace.percent),
            percents: self.states.iter().map(|state| state.percent).collect(),
            delayed: activities.iter().map(|activity| activity.as_ref().map_or(0, |a| a.delayed)).collect(),
        }
    }

    /// Copies what each share has run to the others.
    fn relay(&mut self, activities: &[Option<Activity>], now: u64, several: bool) {
        let mut works: Vec<(usize, Work)> = Vec::new();
        for (at, (state, activity)) in self.states.iter_mut().zip(activities).enumerate() {
            works.extend(activity.iter().flat_map(|activity| state.unread(activity, now)).map(|work| (at, work)));
        }
        works.sort_by_key(|(_, work)| work.launched);
        for (of, work) in works {
            let others = self.states.iter().enumerate().filter(|(at, _)| *at != of);
            let waited =
                others.map(|(_, state)| state.covered).filter(|covered| *covered < work.end).max().unwrap_or(0);
            if !self.states.get_mut(of).is_some_and(|state| state.claim(work, waited, now)) {
                continue;
            }
            for (_, state) in self.states.iter_mut().enumerate().filter(|(at, _)| *at != of) {
                state.record_neighbour(work);
            }
        }
        for (_, limits) in self.states.iter().filter_map(|state| state.files.as_ref()) {
            // alone, its time is charged at once
            limits.set_relayed(if several { now } else { 0 });
        }
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        self.states.iter().for_each(MemberState::end);
    }
}

impl MemberState {
    fn new(member: Member) -> Self {
        let percent = member.pace.percent;
        let (opened, waits, waits_read) = (0, false, 0);
        Self { member, files: None, opened, waits, waits_read, read: 0, covered: 0, claimed: 0, relayed: 0, percent }
    }

    /// What its container uses and wants; `None` without a usable file.
    fn activity(&mut self, now: u64) -> Option<Activity> {
        if now.saturating_sub(self.opened) >= REOPEN {
            self.files = open(&self.member);
            self.opened = now;
        }
        let (usage, _) = self.files.as_ref()?;
        read_activity(usage)
    }

    /// It has work: it launched since, or the GPU ended work of it, or a thread waits for a long kernel.
    ///
    /// All of that is what its container claims. A container that always claims it keeps its own part from its neighbours, and gets nothing of theirs.
    fn is_active(&mut self, activity: &Activity, now: u64) -> bool {
        // a claimed time in the future is now
        let is_recent = |at: u64| now - at.min(now) < IDLE;
        if is_recent(activity.wanted) || self.charged().is_some_and(is_recent) {
            return true;
        }
        if now.saturating_sub(self.waits_read) >= REOPEN {
            self.waits_read = now;
            self.waits = !Mapped::<Usage>::longest_wait(&self.member.usage).is_zero();
        }
        self.waits
    }

    /// Until when its time is charged: all that containers write that began under an earlier release.
    fn charged(&self) -> Option<u64> {
        let (usage, _) = self.files.as_ref()?;
        let mut bytes = [0; 8];
        usage.read_exact_at(&mut bytes, u64::try_from(Usage::COVERED).ok()?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Works that were not read before. Those whose times cannot be are left out.
    fn unread(&mut self, activity: &Activity, now: u64) -> Vec<Work> {
        // of a new container the number is smaller, and a forged one can be anything: in both cases as many as there are cells
        let count = activity.recorded.wrapping_sub(self.read).min(RECENT as u64);
        self.read = activity.recorded;
        let cell = |back: u64| {
            let at = activity.recorded.wrapping_sub(back).wrapping_sub(1) % RECENT as u64;
            activity.recent.get(usize::try_from(at).ok()?).copied()
        };
        let possible = |work: &Work| work.launched < work.end && work.end <= now && now - work.end < CREDIT;
        (0..count).filter_map(cell).filter(possible).collect()
    }

    /// Whether work is relayed: as long as the share has not run more than its part, by what it claims itself. `waited`: end of the neighbours' work
    /// before. One work may exceed the part, as one kernel may; what follows is not relayed until that is paid for.
    fn claim(&mut self, work: Work, waited: u64, now: u64) -> bool {
        if self.claimed > now.saturating_add(CREDIT) {
            return false;
        }
        let from = work.launched.max(self.covered).max(waited);
        let used = work.end.saturating_sub(from);
        self.covered = self.covered.max(work.end);
        let percent = self.percent.max(self.member.pace.percent);
        self.claimed = self.claimed.max(now.saturating_sub(CREDIT)).saturating_add(pace::cost(used, percent));
        true
    }

    /// Relays work of a neighbour to its container.
    fn record_neighbour(&mut self, work: Work) {
        if let Some((_, limits)) = &self.files {
            limits.relay(self.relayed, work);
            self.relayed = self.relayed.wrapping_add(1);
        }
    }

    fn grant(&mut self, part: Option<Pace>, now: u64) {
        self.percent = part.map_or(self.member.pace.percent, |pace| pace.percent);
        if let Some((_, limits)) = &self.files {
            limits.grant(part.map(|pace| (pace, now.saturating_add(LEASE))));
        }
    }

    /// It has its own part again.
    fn end(&self) {
        if let Some((_, limits)) = &self.files {
            limits.grant(None);
            limits.set_relayed(0);
        }
    }
}

/// The files, if both are there and of this version.
fn open(member: &Member) -> Option<(File, Mapped<Limits>)> {
    if !Mapped::<Usage>::is_valid_file(&member.usage) {
        return None;
    }
    let usage = open_usage(&member.usage)?;
    let limits = Mapped::<Limits>::open_writable(&member.limits).ok()?;
    Some((usage, limits))
}

fn open_usage(path: &Path) -> Option<File> {
    without_waiting().open(path).ok()
}

/// What the container uses and wants.
fn read_activity(usage: &File) -> Option<Activity> {
    let (from, length) = Usage::ACTIVITY;
    let mut bytes = [0; Usage::ACTIVITY.1];
    usage.read_exact_at(bytes.get_mut(..length)?, u64::try_from(from).ok()?).ok()?;
    Usage::activity(&bytes)
}

impl Mapped<Usage> {
    /// Whether a program has launched with a library that can suspend launches: earlier ones do not write that they launch. Without mapping the file.
    pub fn can_suspend(path: &Path) -> bool {
        open_usage(path).and_then(|usage| read_activity(&usage)).is_some_and(|activity| activity.wanted != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{OnMissing, Turn};

    const MS: u64 = 1_000_000;

    struct Gpu {
        root: tempfile::TempDir,
        members: Vec<Member>,
        usages: Vec<Mapped<Usage>>,
        limits: Vec<Mapped<Limits>>,
    }

    impl Gpu {
        fn new(parts: &[(u64, bool)]) -> Self {
            let root = tempfile::tempdir().unwrap();
            let mut start = 0;
            let mut gpu = Self { members: Vec::new(), usages: Vec::new(), limits: Vec::new(), root };
            for (at, (percent, burst)) in parts.iter().enumerate() {
                let file = |name: &str| gpu.root.path().join(format!("{at}-{name}"));
                let turn = Turn { period: 20 * MS, start, length: MS / 5 * percent };
                start += turn.length;
                let pace = Pace { percent: *percent, turn: Some(turn), burst: *burst };
                let limits = Mapped::<Limits>::create(&file("limits")).unwrap();
                limits.write("GPU-a", 1 << 30, 0, OnMissing::Deny);
                limits.set_pace(Some(pace));
                let usage = Mapped::<Usage>::create(&file("usage")).unwrap();
                let member = Member { limits: file("limits"), usage: file("usage"), pace, priority: 0 };
                gpu.members.push(member);
                gpu.limits.push(limits);
                gpu.usages.push(usage);
            }
            gpu
        }

        fn part(&self, at: usize, now: u64) -> u64 {
            self.limits[at].pace_at(|| now).unwrap().percent
        }
    }

    #[test]
    fn idle_time_is_granted_and_goes_back_in_the_round_after_its_owner_has_work() {
        let gpu = Gpu::new(&[(30, true), (70, true)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let now = 10_000 * MS;
        gpu.usages[0].want(now);
        let found = arbiter.arbitrate(now + MS);
        assert_eq!((found.active, found.granted, found.percents), (1, true, vec![100, 70]));
        assert_eq!(gpu.part(0, now + 2 * MS), 100);
        assert_eq!(gpu.part(0, now + 60 * MS), 30, "without the agent");
        gpu.usages[1].want(now + 3 * MS);
        assert_eq!(arbiter.arbitrate(now + 4 * MS).percents, [30, 70]);
        assert_eq!((gpu.part(0, now + 4 * MS), gpu.part(1, now + 4 * MS)), (30, 70));
        // its last launch is long ago
        gpu.usages[0].want(now + 200 * MS);
        assert_eq!(arbiter.arbitrate(now + 200 * MS).percents, [100, 70]);
        drop(arbiter);
        assert_eq!(gpu.part(0, now + 201 * MS), 30);
    }

    #[test]
    fn container_of_an_earlier_release_keeps_its_part_while_its_time_is_charged() {
        let gpu = Gpu::new(&[(30, true), (70, true)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let now = 10_000 * MS;
        gpu.usages[0].want(now);
        let used = |end: u64| crate::Used { arrived: now, launched: now, start: now, end };
        gpu.usages[1].charge_time(&used(now + MS), None, 70);
        assert_eq!(arbiter.arbitrate(now + 2 * MS).percents, [30, 70]);
        assert_eq!(arbiter.arbitrate(now + 99 * MS).percents, [30, 70]);
        gpu.usages[0].want(now + 150 * MS);
        assert_eq!(arbiter.arbitrate(now + 150 * MS).percents, [100, 70]);
        assert!(!Mapped::<Usage>::can_suspend(&gpu.members[1].usage), "it has not written that it launches");
        assert!(Mapped::<Usage>::can_suspend(&gpu.members[0].usage));
        assert!(!Mapped::<Usage>::can_suspend(&gpu.root.path().join("missing")));
        // a forged time in the future is a claim to have work now
        gpu.usages[1].charge_time(&used(u64::MAX), None, 70);
        assert_eq!(arbiter.arbitrate(now + 151 * MS).percents, [30, 70]);
    }

    #[test]
    fn share_that_waits_for_a_long_kernel_keeps_its_part() {
        let gpu = Gpu::new(&[(30, true), (70, true)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let now = 10_000 * MS;
        let ledger = crate::Ledger::join(&gpu.usages[1]).unwrap();
        let mut percents = |now: u64| {
            gpu.usages[0].want(now);
            arbiter.arbitrate(now).percents
        };
        ledger.waiting(1, || {
            assert_eq!(percents(now), [30, 70]);
            assert_eq!(percents(now + 900 * MS), [30, 70]);
        });
        assert_eq!(percents(now + 901 * MS), [30, 70], "not read again yet");
        assert_eq!(percents(now + 1000 * MS), [100, 70]);
    }

    #[test]
    fn missing_file_is_opened_again_after_a_while() {
        let gpu = Gpu::new(&[(30, true)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let (now, usage) = (10_000 * MS, &gpu.members[0].usage);
        let away = usage.with_extension("away");
        gpu.usages[0].want(now + 100 * MS);
        std::fs::rename(usage, &away).unwrap();
        assert_eq!(arbiter.arbitrate(now).active, 0);
        std::fs::rename(&away, usage).unwrap();
        assert_eq!(arbiter.arbitrate(now + 99 * MS).active, 0, "not in each round");
        assert_eq!(arbiter.arbitrate(now + 100 * MS).active, 1);
    }

    #[test]
    fn strict_share_keeps_its_part_next_to_an_idle_neighbour() {
        let gpu = Gpu::new(&[(30, false), (70, true)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        gpu.usages[0].want(10_000 * MS);
        assert_eq!(arbiter.arbitrate(10_000 * MS).percents, [30, 70]);
        assert_eq!(gpu.part(0, 10_000 * MS), 30);
    }

    #[test]
    fn time_behind_a_neighbours_kernel_is_not_charged() {
        let gpu = Gpu::new(&[(30, false), (70, false)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let now = 10_000 * MS;
        let (one, two) = (&gpu.usages[0], &gpu.usages[1]);
        // the first runs from 0 to 20, the second waits from 6 to 20 and runs until 40
        one.record(now, now + 20 * MS);
        one.want(now + 20 * MS);
        two.want(now + 20 * MS);
        arbiter.arbitrate(now + 45 * MS);
        let waited = gpu.limits[1].waited_until(now + 6 * MS);
        assert_eq!((waited, gpu.limits[1].relayed(now + 46 * MS)), (now + 20 * MS, Some(now + 45 * MS)));
        assert_eq!(gpu.limits[1].waited_until(now), 0, "launched later");
        let (arrived, launched, start) = (now, now + 6 * MS, now + 6 * MS);
        let before = two.paid();
        assert_eq!(before, 0);
        two.charge_time(&crate::Used { arrived, launched, start, end: now + 40 * MS }, Some(waited), 70);
        // what it asked for at 0 is paid for 20 ms later, of 70 percent
        assert_eq!(two.paid(), now + 20 * MS * 100 / 70);
        two.charge_time(&crate::Used { arrived, launched, start, end: now + 40 * MS }, Some(waited), 70);
        assert_eq!(two.paid(), now + 20 * MS * 100 / 70, "charged once");
        assert_eq!(gpu.limits[0].waited_until(u64::MAX), 0, "its own work is none of a neighbour");
    }

    proptest! {
        #[test]
        fn forged_work_of_a_neighbour_makes_a_charge_smaller_by_its_part_at_most(
            lies in proptest::collection::vec((0_u64..40, 1_u64..40), 200..400),
        ) {
            let gpu = Gpu::new(&[(30, false), (70, false)]);
            let mut arbiter = Arbiter::new(gpu.members.clone());
            let begin = 10_000 * MS;
            let (liar, honest) = (&gpu.usages[0], &gpu.usages[1]);
            let mut spared = 0;
            let rounds = lies.len() as u64;
            for (at, (from, length)) in lies.into_iter().enumerate() {
                // the honest one runs alone, all the time, in works of 10 ms
                let start = begin + at as u64 * 10 * MS;
                let (end, now) = (start + 10 * MS, start + 15 * MS);
                liar.want(now);
                honest.want(now);
                liar.record(start.saturating_sub(from * MS), (start + length * MS).min(now));
                honest.record(start, end);
                arbiter.arbitrate(now);
                let waited = gpu.limits[1].waited_until(start);
                spared += waited.min(end).saturating_sub(start);
            }
            let total = rounds * 10 * MS;
            // its part of a second and one work are in advance
            prop_assert!(spared <= (total + 2 * CREDIT) * 30 / 100 + 60 * MS, "{spared} of {total}");
        }
    }

    #[test]
    fn forged_numbers_are_left_out() {
        let gpu = Gpu::new(&[(30, false), (70, false)]);
        let mut arbiter = Arbiter::new(gpu.members.clone());
        let now = 10_000 * MS;
        for (launched, end) in [(now, now + 500 * MS), (now, now - 1), (0, 10), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            gpu.usages[0].record(launched, end);
        }
        gpu.usages[0].want(u64::MAX);
        let found = arbiter.arbitrate(now);
        assert_eq!((found.active, gpu.limits[1].waited_until(u64::MAX)), (1, 0));
        // a file that its container cut
        std::fs::OpenOptions::new().write(true).open(&gpu.members[0].usage).unwrap().set_len(10).unwrap();
        assert_eq!(arbiter.arbitrate(now + MS).active, 0);
        assert_eq!(arbiter.arbitrate(now + 200 * MS).active, 0);
    }

    #[test]
    fn shares_come_and_go() {
        let gpu = Gpu::new(&[(30, true), (70, true)]);
        let mut arbiter = Arbiter::new(gpu.members[..1].to_vec());
        let now = 10_000 * MS;
        gpu.usages[0].want(now);
        assert_eq!(arbiter.arbitrate(now).percents, [100]);
        arbiter.update(gpu.members.iter().skip(1).cloned());
        assert_eq!(gpu.part(0, now), 30);
        arbiter.update(gpu.members.clone());
        gpu.usages[0].count_delay(7);
        assert_eq!(arbiter.arbitrate(now).delayed, [7, 0]);
    }
}
