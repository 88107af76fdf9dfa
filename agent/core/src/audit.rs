//! What follows from one sample of a share. Pure.

use std::time::Duration;

/// Conclusive samples that are remembered. A bypass ends when none of them exceeds the limit.
pub const WINDOW: u32 = 10;
/// A share counts as bypassed when it exceeds its limit in so many of them. They need not be consecutive: a program could be within its limit in
/// every third one.
pub const EXCEEDED: u32 = 3;
/// Samples after an event during which the same event about the same share is not repeated: a container can write any number of bytes
/// into its ledger, and change it at any time.
pub const QUIET: u32 = 60;
/// Longest wait of a program for its kernels that is not reported, as in the shim.
const ENDLESS: Duration = Duration::from_secs(2);

/// Bytes that the ledger does not count: modules, stacks and heaps of kernels, as far as they do not fit into the 640 MiB that it counts for a
/// context. `PyTorch` used up to 48 MiB more than its limit on an H200: `docs/development/gpu-results.md`.
pub const TOLERANCE: u64 = 64 << 20;
/// Thresholds of [`Action::MemoryHigh`], in percent of the share.
const HIGH: u64 = 80;
const NEARLY_FULL: u64 = 90;
/// The use must fall this far below a threshold before it can be crossed again, in percent.
const HYSTERESIS: u64 = 5;

/// What a sample found of a share. Memory is in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// What the container may allocate, with the context of one process.
    pub limit: u64,
    /// What its programs see as the memory of the GPU.
    pub visible: u64,
    /// The part of the GPU's time, in percent, if it is limited.
    pub compute: Option<u64>,
    /// What each process counts for its context.
    pub context: u64,
    /// What the ledger counts. The container can write anything there.
    pub counted: u64,
    /// Memory of the processes by reads of NVML during which no operation of the ledger happened; `None`: it changed each time, so that it cannot be
    /// compared.
    pub settled: Option<u64>,
    /// The container had damaged its ledger.
    pub broken: bool,
    /// Allocations that were refused. The container can write anything there.
    pub denied: u64,
    /// Kernels that did not end. The container can write anything there.
    pub endless: u64,
    /// The longest wait of a process for the GPU that is in progress. The container can write anything there.
    pub waited: Duration,
    /// Processes that NVML lists.
    pub processes: u64,
    /// Their memory, as far as NVML reports it, by the highest read; `None` if it reports none.
    pub used: Option<u64>,
}

/// Use of a share, in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Below the thresholds.
    #[default]
    Normal,
    /// At least 80 %.
    High,
    /// At least 90 %.
    NearlyFull,
}

/// A bypass, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Memory of the processes by NVML.
    pub used: u64,
    /// What the ledger counted.
    pub counted: u64,
    /// The limit.
    pub limit: u64,
    /// Processes that NVML listed.
    pub processes: u64,
    /// The container had damaged its ledger; what its processes use does not matter.
    pub broken: bool,
}

/// What is remembered of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareState {
    /// Level of the latest sample.
    level: Level,
    /// Samples until the events of the levels and of the bypass may be published again.
    quiet: [u32; 3],
    /// The same for the event about kernels that do not end.
    quiet_endless: u32,
    /// Kernels that did not end, of which an event was published or that were there before the first sample.
    endless: Option<u64>,
    /// The latest sample was within a wait for kernels that do not end, which the shim does not count.
    waiting: bool,
    /// Such waits without a published event.
    waits: u64,
    /// The latest [`WINDOW`] conclusive samples, the latest in the lowest bit: 1 where the share exceeded its limit.
    recent: u32,
    /// The highest limit since the share was last within its limit. One that is made smaller while its program allocates is no bypass, as the
    /// program keeps what it holds.
    permitted: u64,
    /// The bypass in progress.
    pub bypass: Option<Finding>,
    /// Size of the share that was reported, or that it had in the first sample; `None` before that.
    size: Option<Size>,
    /// Samples until the event about another size may be published again: a share shrinks in many steps.
    quiet_resized: u32,
}

/// Size of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes that its programs see as the memory of the GPU.
    pub memory: u64,
    /// The part of the GPU's time, in percent, if it is limited.
    pub compute: Option<u64>,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An event for the team: the use has crossed this threshold, in percent.
    MemoryHigh(u64),
    /// Events about a bypass.
    Bypassed(Finding),
    /// An event for the team: so many kernels did not end since the latest one.
    Endless(u64),
    /// An event for the team: the share had this size, and has another now.
    Resized(Size),
}

/// Use of the share by its programs, in percent.
pub fn percent(seen: &Observation) -> u64 {
    let used = u128::from(seen.counted.saturating_sub(seen.context));
    let percent = (used * 100).checked_div(u128::from(seen.visible)).unwrap_or(0);
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// Decides.
pub fn step(state: &ShareState, seen: &Observation) -> (ShareState, Vec<Action>) {
    let [high, nearly_full, bypassed] = state.quiet.map(|samples| samples.saturating_sub(1));
    let mut next = ShareState { quiet: [high, nearly_full, bypassed], ..state.clone() };
    let mut actions = Vec::new();
    next.quiet_resized = state.quiet_resized.saturating_sub(1);
    let size = Size { memory: seen.visible, compute: seen.compute };
    let before = *next.size.get_or_insert(size);
    if before != size && next.quiet_resized == 0 {
        (next.size, next.quiet_resized) = (Some(size), QUIET);
        actions.push(Action::Resized(before));
    }
    next.quiet_endless = state.quiet_endless.saturating_sub(1);
    let reported = state.endless.unwrap_or(seen.endless).min(seen.endless);
    next.endless = Some(reported);
    next.waiting = seen.waited > ENDLESS;
    next.waits = state.waits.saturating_add(u64::from(next.waiting && !state.waiting));
    let unreported = seen.endless.saturating_sub(reported).saturating_add(next.waits);
    if unreported > 0 && next.quiet_endless == 0 {
        (next.endless, next.waits, next.quiet_endless) = (Some(seen.endless), 0, QUIET);
        actions.push(Action::Endless(unreported));
    }
    let level = level(state.level, percent(seen));
    let (threshold, quiet) = if level == Level::NearlyFull { (NEARLY_FULL, 1) } else { (HIGH, 0) };
    if level <= state.level {
        next.level = level;
    } else if next.quiet.get(quiet) == Some(&0) {
        next.level = level;
        next.quiet = if quiet == 1 { [high, QUIET, bypassed] } else { [QUIET, nearly_full, bypassed] };
        actions.push(Action::MemoryHigh(threshold));
    }
    let permitted = state.permitted.max(seen.limit);
    next.permitted = if is_past(seen, seen.limit) { permitted } else { seen.limit };
    if let Some(exceeds) = exceeds(seen, permitted) {
        next.recent = (state.recent << 1 | u32::from(exceeds)) & ((1 << WINDOW) - 1);
    }
    if state.bypass.is_some() {
        next.bypass = state.bypass.filter(|_| next.recent != 0);
    } else if seen.broken || next.recent.count_ones() >= EXCEEDED {
        let Observation { counted, limit, processes, broken, .. } = *seen;
        let finding = Finding { used: seen.used.unwrap_or(0), counted, limit, processes, broken };
        next.bypass = Some(finding);
        if bypassed == 0 {
            let [.., of_bypass] = &mut next.quiet;
            *of_bypass = QUIET;
            actions.push(Action::Bypassed(finding));
        }
    }
    (next, actions)
}

/// The level with hysteresis.
fn level(before: Level, percent: u64) -> Level {
    let at_least =
        |level: Level, threshold: u64| percent >= if before >= level { threshold - HYSTERESIS } else { threshold };
    if at_least(Level::NearlyFull, NEARLY_FULL) {
        Level::NearlyFull
    } else if at_least(Level::High, HIGH) {
        Level::High
    } else {
        Level::Normal
    }
}

/// Whether the processes use more than the permitted limit or the ledger allow; `None`: the ledger changed meanwhile, so that it cannot be compared.
fn exceeds(seen: &Observation, permitted: u64) -> Option<bool> {
    if seen.broken || is_past(seen, permitted) {
        return Some(true);
    }
    if seen.used.is_none() {
        return Some(false);
    }
    // a context may not be counted yet: the CUDA runtime can create one past the shim, which counts it with the first allocation
    let tolerance = seen.context.saturating_mul(processes(seen)).saturating_add(TOLERANCE);
    seen.settled.map(|used| used > seen.counted.saturating_add(tolerance))
}

/// Whether the processes use more than a limit. Contexts count against it, so that a process that has allocated gets no context on top: with a
/// forged ledger, many processes would get as much memory again.
fn is_past(seen: &Observation, limit: u64) -> bool {
    // next to one that uses all of the limit another process may have a context and no allocation
    let uncounted = if seen.processes > 1 { seen.context } else { 0 };
    let tolerance = TOLERANCE.saturating_mul(processes(seen)).saturating_add(uncounted);
    seen.used.is_some_and(|used| used > limit.saturating_add(tolerance))
}

/// The processes, as many as the ledger would admit: one that it does not know can start any number of them.
fn processes(seen: &Observation) -> u64 {
    seen.processes.min(seen.visible.checked_div(seen.context).unwrap_or(0).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const CONTEXT: u64 = 512 * MIB;
    const VISIBLE: u64 = 10_000 * MIB;

    /// One process that NVML lists with this memory, and that the ledger counts with its context.
    fn seen(used_mib: u64, counted_mib: u64) -> Observation {
        Observation {
            limit: VISIBLE + CONTEXT,
            visible: VISIBLE,
            compute: None,
            context: CONTEXT,
            counted: CONTEXT + counted_mib * MIB,
            settled: Some(used_mib * MIB),
            broken: false,
            denied: 0,
            endless: 0,
            waited: Duration::ZERO,
            processes: 1,
            used: Some(used_mib * MIB),
        }
    }

    /// The actions of each sample.
    fn run(samples: impl IntoIterator<Item = Observation>) -> (ShareState, Vec<Vec<Action>>) {
        let mut state = ShareState::default();
        let actions = samples.into_iter().map(|seen| {
            let (next, actions) = step(&state, &seen);
            state = next;
            actions
        });
        let actions = actions.collect();
        (state, actions)
    }

    fn high(counted_mib: &[u64]) -> Vec<Option<u64>> {
        let (_, actions) = run(counted_mib.iter().map(|counted| seen(*counted, *counted)));
        let of = |actions: &Vec<Action>| match actions.as_slice() {
            [Action::MemoryHigh(percent)] => Some(*percent),
            [] => None,
            _ => panic!("{actions:?}"),
        };
        actions.iter().map(of).collect()
    }

    #[test]
    fn each_threshold_is_reported_once_per_crossing() {
        assert_eq!(high(&[7_999, 8_000, 8_999, 9_000, 10_000]), [None, Some(80), None, Some(90), None]);
        assert_eq!(high(&[9_500, 9_500]), [Some(90), None], "not both at once");
        // below a threshold, and not by the hysteresis
        assert_eq!(high(&[8_100, 7_500, 8_100, 9_100, 8_500, 9_100]), [Some(80), None, None, Some(90), None, None]);
    }

    #[test]
    fn crossing_is_reported_again_after_a_fall_and_at_most_once_a_minute() {
        let mut samples = vec![8_100];
        samples.extend([7_000, 8_100].repeat(40));
        let reported: Vec<usize> =
            high(&samples).iter().enumerate().filter_map(|(at, percent)| percent.map(|_| at)).collect();
        assert_eq!(reported, [0, 60]);
    }

    #[test]
    fn share_without_memory_has_no_percent() {
        assert_eq!(percent(&Observation { visible: 0, ..seen(0, 9_000) }), 0);
        assert_eq!(percent(&Observation { counted: u64::MAX, visible: 1, ..seen(0, 0) }), u64::MAX);
    }

    #[test]
    fn three_of_ten_samples_past_the_limit_are_a_bypass_and_ten_within_it_end_it() {
        let (past, within) = (seen(10_000 + 512 + 65, 10_000), seen(10_000 + 512 + 64, 10_000));
        let rare = [[past, past].as_slice(), &[within; 8], &[past], &[within; 9], &[past, past]].concat();
        let (state, actions) = run(rare);
        assert!(state.bypass.is_none() && actions.iter().skip(1).all(Vec::is_empty), "{actions:?}");
        let (state, _) = run([past, past, within, within, past, past]);
        assert!(state.bypass.is_some(), "samples within the limit do not hide the others");
        let (state, actions) = run([past, past, past]);
        let finding = state.bypass.unwrap();
        assert_eq!((finding.used, finding.limit, finding.processes), (10_577 * MIB, 10_512 * MIB, 1));
        assert_eq!(actions.last(), Some(&vec![Action::Bypassed(finding)]));
        let after = |within_limit: &[Observation]| run([[past; 3].as_slice(), within_limit].concat()).0.bypass;
        assert_eq!(after(&[within, within, past, within]), Some(finding), "the numbers are those of the discovery");
        assert_eq!((after(&[within; 9]), after(&[within; 10])), (Some(finding), None));
    }

    #[test]
    fn damaged_ledger_is_a_bypass_at_once() {
        let broken = Observation { broken: true, used: None, settled: None, ..seen(100, 0) };
        let (state, actions) = run([seen(100, 100), broken]);
        let finding = state.bypass.unwrap();
        assert_eq!((finding.broken, actions.last()), (true, Some(&vec![Action::Bypassed(finding)])));
        let (state, actions) = run([broken, seen(100, 100)].repeat(20));
        assert_eq!((state.bypass.is_some(), actions.iter().flatten().count()), (true, 1), "also when it is done again");
        assert!(run([[broken].as_slice(), &[seen(100, 100); 10]].concat()).0.bypass.is_none());
    }

    #[test]
    fn short_bursts_past_the_limit_are_one_bypass() {
        let (past, within) = (seen(20_000, 10_000), seen(10_000, 10_000));
        let (state, actions) = run([past, past, within, within].repeat(50));
        assert!(state.bypass.is_some());
        let found = actions.iter().flatten().filter(|action| matches!(action, Action::Bypassed(_))).count();
        assert_eq!(found, 1, "one bypass, which does not end between the bursts");
    }

    #[test]
    fn program_that_the_ledger_does_not_count_is_a_bypass_below_the_limit() {
        let uncounted = Observation { counted: 0, ..seen(2_000, 0) };
        assert!(run([uncounted; 3]).0.bypass.is_some());
        let within_tolerance = Observation { counted: 0, ..seen(512 + 64, 0) };
        assert!(run([within_tolerance; 10]).0.bypass.is_none());
        let many = Observation { processes: 1000, ..seen(25_000, 0) };
        assert!(run([many; 3]).0.bypass.is_some(), "idle processes buy no memory");
        // each process may use one more context
        let four = Observation { processes: 4, ..seen(3_000, 400) };
        assert!(run([four; 10]).0.bypass.is_none());
    }

    #[test]
    fn many_processes_with_a_forged_ledger_get_no_context_each_beyond_the_limit() {
        let visible = 10_240 * MIB;
        let forged = |processes: u64, used_mib: u64| {
            let sized = Observation { limit: visible + 640 * MIB, visible, context: 640 * MIB, ..seen(used_mib, 0) };
            Observation { counted: u64::MAX, processes, ..sized }
        };
        let bypassed = |seen: Observation| run([seen; 3]).0.bypass.is_some();
        assert!(bypassed(forged(17, 20_000)), "1,728 MiB are tolerated");
        assert_eq!([12_608, 12_609].map(|mib| bypassed(forged(17, mib))), [false, true]);
        // an honest container with a full share, and a second process with a context of 526 MiB and no allocation
        let full = Observation { counted: visible + 640 * MIB, ..forged(2, 10_240 + 526 + 48 + 526) };
        assert!(!bypassed(full));
        assert_eq!([10_944, 10_945].map(|mib| bypassed(forged(1, mib))), [false, true]);
    }

    #[test]
    fn ledger_that_changes_meanwhile_proves_nothing() {
        let busy = Observation { settled: None, counted: 0, ..seen(2_000, 0) };
        assert!(run([busy; 100]).0.bypass.is_none());
        let past = Observation { settled: None, ..seen(20_000, 0) };
        assert!(run([past; 3]).0.bypass.is_some(), "the limit does not depend on the ledger");
        let uncounted = Observation { settled: busy.used, ..busy };
        assert!(run([uncounted, busy, uncounted, busy, uncounted]).0.bypass.is_some());
    }

    #[test]
    fn memory_that_nvml_does_not_report_is_no_bypass() {
        assert!(run([Observation { used: None, ..seen(0, 0) }; 10]).0.bypass.is_none());
    }

    #[test]
    fn another_size_is_reported_once_and_several_steps_together() {
        let sized = |mib: u64| Observation { visible: mib * MIB, ..seen(100, 100) };
        let resized = |memory: u64| Action::Resized(Size { memory, compute: None });
        let (_, actions) = run((0..=QUIET + 1).map(|at| sized(20_000 - 100 * u64::from(at))));
        let reported: Vec<_> = actions.into_iter().flatten().collect();
        assert_eq!(reported, [resized(20_000 * MIB), resized(19_900 * MIB)]);
        let faster = Observation { compute: Some(30), ..seen(100, 100) };
        let (_, actions) = run([Observation { compute: Some(25), ..faster }, faster, faster]);
        let before = Size { memory: VISIBLE, compute: Some(25) };
        assert_eq!(actions, [vec![], vec![Action::Resized(before)], vec![]]);
        let grown = Observation { visible: 12_000 * MIB, limit: 12_000 * MIB + CONTEXT, ..seen(100, 100) };
        let (_, actions) = run([seen(100, 100), grown, grown]);
        assert_eq!(actions, [vec![], vec![resized(VISIBLE)], vec![]]);
    }

    #[test]
    fn program_that_allocates_while_its_share_is_made_smaller_keeps_what_it_holds() {
        let sized = |mib: u64, used: u64| {
            let visible = mib * MIB;
            Observation { visible, limit: visible + CONTEXT, settled: None, ..seen(used, used) }
        };
        let bypass = |samples: &[Observation]| run(samples.iter().copied()).0.bypass;
        let kept = [[sized(10_000, 9_000)].as_slice(), &[sized(4_000, 9_000); 20]].concat();
        assert_eq!(bypass(&kept), None);
        let more = [[sized(10_000, 9_000)].as_slice(), &[sized(4_000, 12_000); 3]].concat();
        assert!(bypass(&more).is_some(), "more than before");
        let again = [kept.as_slice(), &[sized(4_000, 4_000)], &[sized(4_000, 9_000); 3]].concat();
        assert!(bypass(&again).is_some(), "after it was within the new size");
        assert!(bypass(&[sized(4_000, 9_000); 3]).is_some());
    }

    #[test]
    fn kernels_that_do_not_end_are_reported_at_most_once_a_minute() {
        let endless = |count: u64| Observation { endless: count, ..seen(100, 100) };
        let (state, actions) = run([endless(2), endless(2), endless(3), endless(5)]);
        assert_eq!(actions, [vec![], vec![], vec![Action::Endless(1)], vec![]], "not those of before the first sample");
        let mut last = (state, Vec::new());
        for _ in 1..QUIET {
            assert_eq!(last.1, []);
            last = step(&last.0, &endless(5));
        }
        assert_eq!(last.1, [Action::Endless(2)]);
    }

    #[test]
    fn kernel_that_a_program_waits_for_is_reported_once() {
        let waits = |seconds: u64| Observation { waited: Duration::from_secs(seconds), ..seen(100, 100) };
        let (state, actions) = run([waits(0), waits(2), waits(3), waits(5), waits(7)]);
        assert_eq!(actions, [vec![], vec![], vec![Action::Endless(1)], vec![], vec![]]);
        let quiet = (0..QUIET).map(|_| waits(600));
        let mut last = (state, Vec::new());
        for seen in quiet.chain([waits(0), waits(3)]) {
            last = step(&last.0, &seen);
        }
        assert_eq!(last.1, [Action::Endless(1)], "the next wait");
    }

    fn any_observation() -> impl Strategy<Value = Observation> {
        let bytes = || prop_oneof![Just(0), Just(u64::MAX), 0..20_000 * MIB, any::<u64>()];
        let nvml = || proptest::option::of(bytes());
        let waited = any::<u64>().prop_map(Duration::from_nanos);
        let compute = proptest::option::of(0..=100_u64);
        let counts = (nvml(), any::<bool>(), any::<u64>(), any::<u64>(), waited, 0..300_u64, nvml(), compute);
        (bytes(), bytes(), bytes(), bytes(), counts).prop_map(|(limit, visible, context, counted, counts)| {
            let (settled, broken, denied, endless, waited, processes, used, compute) = counts;
            Observation {
                limit,
                visible,
                compute,
                context,
                counted,
                settled,
                broken,
                denied,
                endless,
                waited,
                processes,
                used,
            }
        })
    }

    proptest! {
        #[test]
        fn no_number_of_a_container_panics_and_events_are_limited(
            samples in prop::collection::vec(any_observation(), 0..200),
        ) {
            let (_, actions) = run(samples.clone());
            let events = |wanted: &dyn Fn(&Action) -> bool| {
                let with_event = |actions: &Vec<Action>| actions.iter().any(wanted);
                actions.iter().enumerate().filter(|(_, actions)| with_event(actions)).map(|(at, _)| at).collect::<Vec<_>>()
            };
            for kind in [
                events(&|action| *action == Action::MemoryHigh(80)),
                events(&|action| *action == Action::MemoryHigh(90)),
                events(&|action| matches!(action, Action::Bypassed(_))),
                events(&|action| matches!(action, Action::Endless(_))),
                events(&|action| matches!(action, Action::Resized(_))),
            ] {
                prop_assert!(kind.windows(2).all(|pair| pair[1] - pair[0] >= QUIET as usize), "{kind:?}");
            }
        }

        #[test]
        fn program_within_ledger_and_limit_is_never_a_bypass(
            samples in prop::collection::vec((0..10_000_u64, 0..=64_u64, any::<bool>()), 0..100),
        ) {
            let honest = samples.into_iter().map(|(mib, modules, settled)| {
                // NVML may have listed what was freed or allocated meanwhile, up to the limit
                let used = if settled { mib } else { 10_000 - mib };
                let seen = seen(512 + used + modules, mib);
                Observation { settled: seen.settled.filter(|_| settled), ..seen }
            });
            prop_assert!(run(honest).0.bypass.is_none());
        }

        #[test]
        fn program_past_its_limit_is_found_whatever_its_ledger_counts(
            ledgers in prop::collection::vec((any::<u64>(), proptest::option::of(any::<u64>())), 3),
        ) {
            let past = ledgers.into_iter().map(|(counted, settled)| Observation { counted, settled, ..seen(12_000, 0) });
            prop_assert!(run(past).0.bypass.is_some());
        }
    }
}
