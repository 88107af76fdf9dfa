//! Before a batch begins: the program waits for the batches before, and until the share may launch.

use std::{ptr::null_mut, time::Duration};

use gputenancy_ledger::{LAG, Launch, Pace, Used};

use crate::{
    clock::{self, now},
    pace::{
        batch::{self, Counted, Ends, Round},
        event::{self, Stream},
    },
    share::Share,
};

/// Batches that may wait for the GPU while the next one begins, so that it always has work.
const OUTSTANDING: usize = 2;
/// Nanoseconds after which the program goes on although the GPU has not ended a batch: it may wait for something that the program does next.
const ENDLESS: u64 = 2_000_000_000;
/// By how much a thread wakes too late.
const LATE: u64 = 60_000;
/// Between two looks at the GPU.
const LOOK: u64 = 100_000;
/// Longest wait with the same limits; a changed one is seen after it.
const NAP: u64 = 20_000_000;

/// Between two looks at own work that waits for a neighbour's. Its end is recorded before the neighbours are charged: see [`LAG`].
const LOOK_NEXT_TO: u64 = 500_000;

/// A share that charges its batches.
struct Charging<'a> {
    share: &'a Share,
    percent: u64,
    /// Until when the work of neighbours is known, if it is at all.
    known: Option<u64>,
}

impl Ends for Charging<'_> {
    fn record(&self, used: &Used) {
        self.share.record(used.launched, used.end);
    }

    fn is_known(&self, used: &Used) -> bool {
        self.known.is_none_or(|until| until >= used.end.saturating_add(LAG))
    }

    fn charge(&self, used: &Used) -> u64 {
        let waited = self.known.map(|_| self.share.waited_until(used.launched));
        self.share.charge_time(used, waited, self.percent);
        used.end.saturating_sub(used.start.max(waited.unwrap_or(0)))
    }
}

/// Waits while the share is suspended: nothing is launched, and all that the program holds stays.
pub fn resume(share: &'static Share) {
    while share.is_suspended() && event::device().is_some_and(|device| share.is_on(device)) {
        nap(NAP);
    }
}

/// Charges what the GPU has ended, after the program has waited for it.
pub fn settle(share: &'static Share, pace: Pace) {
    let context = Stream::new(null_mut(), false).context;
    if context != 0 && event::device().is_some_and(|device| share.is_on(device)) {
        let now = now();
        share.want(now);
        batch::settle(context, &Charging { share, percent: pace.percent, known: share.relayed(now) });
    }
}

/// Waits until a launch may begin, and begins its batch.
pub fn admit(share: &'static Share, mut pace: Pace, stream: Stream, graph: bool) -> Counted {
    if stream.context == 0 || !event::device().is_some_and(|device| share.is_on(device)) || stream.is_capturing() {
        return Counted::No;
    }
    batch::close(stream);
    let (arrived, mut delayed) = (now(), 0_u64);
    loop {
        let now = now();
        share.want(now);
        let known = share.relayed(now);
        let pending = batch::settle(stream.context, &Charging { share, percent: pace.percent, known });
        let before = batch::expected(&pending, now);
        if pending.count >= OUTSTANDING {
            if now.saturating_sub(pending.since) < ENDLESS {
                nap(LOOK);
                continue;
            }
            share.count_endless();
            batch::give_up();
        }
        let launch = Launch { paid: share.paid(), before, mean: batch::mean(), shared: known.is_some() };
        let wait = pace.wait(now, &launch);
        if wait == 0 {
            share.count_delay(delayed);
            let time_left = pace.left(now, &launch).map_or(u64::MAX, |left| left.saturating_sub(before));
            return batch::begin(stream, Round { graph, arrived, time_left });
        }
        let look = if known.is_some() && pending.count > 0 { before.max(LOOK_NEXT_TO) } else { NAP };
        nap(wait.min(NAP).min(look));
        delayed = delayed.saturating_add(clock::now().saturating_sub(now));
        resume(share);
        let Some(changed) = share.pace() else {
            share.count_delay(delayed);
            return Counted::No;
        };
        pace = changed;
    }
}

/// The kernel wakes a thread some time later, which matters at the begin of a turn.
fn nap(nanoseconds: u64) {
    let Some(nanoseconds) = nanoseconds.checked_sub(LATE) else {
        std::thread::yield_now();
        return;
    };
    let time = Duration::from_nanos(nanoseconds);
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(0),
        tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
    };
    // SAFETY: reads `time`. A signal ends the wait early, and the caller looks again.
    unsafe { libc::nanosleep(&raw const time, null_mut()) };
}
