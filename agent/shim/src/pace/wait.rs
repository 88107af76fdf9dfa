//! Before a batch begins: the program waits for the batches before, and until the share may launch.

use std::{ptr::null_mut, time::Duration};

use gputenancy_ledger::Pace;

use crate::{
    pace::{
        batch::{self, Counted, Round, Used},
        event::{self, Stream},
        now,
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

/// Waits until a launch may begin, and begins its batch.
pub fn admit(share: &'static Share, mut pace: Pace, stream: Stream, graph: bool) -> Counted {
    if stream.context == 0 || !event::device().is_some_and(|device| share.is_on(device)) || stream.is_capturing() {
        return Counted::No;
    }
    batch::close(stream);
    let arrived = now();
    loop {
        let charge = |used: Used| share.charge_time(used.start, used.end, pace.percent);
        let pending = batch::settle(stream.context, charge);
        let now = now();
        let before = batch::expected(&pending, now);
        if pending.count >= OUTSTANDING {
            if now.saturating_sub(pending.since) < ENDLESS {
                nap(LOOK);
                continue;
            }
            share.count_endless();
            batch::give_up();
        }
        let wait = pace.wait(now, share.paid(), before.saturating_add(batch::mean()));
        if wait == 0 {
            let room = pace.left(now).map_or(u64::MAX, |left| left.saturating_sub(before));
            return batch::begin(stream, Round { graph, arrived, room });
        }
        nap(wait.min(NAP));
        match share.pace() {
            Some(changed) => pace = changed,
            None => return Counted::No,
        }
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
