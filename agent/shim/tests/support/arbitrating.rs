//! The arbiter between shares of one GPU, as the agent runs it.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use gputenancy_ledger::{Arbiter, Member, now};

use crate::support::Share;

/// Between two rounds, as in the agent.
const ROUND: Duration = Duration::from_millis(2);

/// Runs the body while the arbiter runs for these shares.
pub fn arbitrating<R>(shares: &[Share], body: impl FnOnce() -> R) -> R {
    let member = |share: &Share| Member {
        limits: share.folder.join("limits"),
        usage: share.folder.join("usage"),
        pace: share.limits.pace().unwrap(),
        priority: 0,
    };
    let (mut arbiter, stop) = (Arbiter::new(shares.iter().map(member)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                arbiter.arbitrate(now());
                std::thread::sleep(ROUND);
            }
        });
        let result = body();
        stop.store(true, SeqCst);
        result
    })
}
