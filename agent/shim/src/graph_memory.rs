//! Memory that the driver keeps reserved for graphs with allocation nodes: what counts is what it reports. It stays reserved after a graph has ended,
//! until it is trimmed, so that it is trimmed before an allocation is refused.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
    time::{Duration, Instant},
};

use crate::{
    abi::{CuResult, Device, SUCCESS},
    lock::Lock,
    real::driver,
    share::Share,
};

/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: c_int = 2;
/// How long a trim waits for launches of other threads: what they may still need stays counted. A launch can wait for a thread that trims.
const PATIENCE: Duration = Duration::from_millis(100);

/// What is counted for graphs.
struct Counted {
    /// The share's GPU, once a graph with an allocation on it was instantiated.
    device: Option<Device>,
    bytes: u64,
    /// What the driver reported last.
    reserved: u64,
    /// Launches and uploads that have not ended, and the bytes that their graphs need together at most.
    launches: u32,
    needs: u128,
}

impl Counted {
    const NOTHING: Self = Self { device: None, bytes: 0, reserved: 0, launches: 0, needs: 0 };

    /// Makes the ledger agree with what is reserved; true if it is more than was counted. A launch that has not ended may reserve again what a trim
    /// or another launch has taken: so much stays counted. So does all of it without an answer of the driver.
    fn settle(&mut self, share: &Share) -> bool {
        let Some(now) = self.device.and_then(reserved) else { return false };
        let before = self.bytes;
        self.bytes = kept(before, now, self.needs);
        share.correct(before, self.bytes);
        if now < std::mem::replace(&mut self.reserved, now) {
            // by a trim whose thread has not said so yet
            TRIMS.fetch_add(1, Release);
        }
        now > before
    }
}

/// Bytes that stay counted: those that are reserved now, and of the others what launches may still need.
fn kept(before: u64, now: u64, needs: u128) -> u64 {
    let needs = u64::try_from(needs).unwrap_or(u64::MAX);
    before.min(now.saturating_add(needs)).max(now)
}

static COUNTED: Lock<Counted> = Lock::new(Counted::NOTHING);
/// Number of trims: what was reserved before one is perhaps not any more.
static TRIMS: AtomicU64 = AtomicU64::new(0);

/// Forgets what the parent has, in a child process.
pub fn forget() {
    COUNTED.reset(Counted::NOTHING);
}

/// Counts the memory of graphs on this device from now on.
pub fn watch(device: Device) {
    COUNTED.with(|counted| counted.device = Some(device));
}

/// A launch or an upload that has not ended. At its end the ledger is made to agree with what is reserved.
pub struct Launch {
    share: &'static Share,
    needs: u64,
}

impl Launch {
    /// Begins one of a graph that needs so many bytes at most. [`trims`] is read after it.
    pub fn begin(share: &'static Share, needs: u64) -> Self {
        COUNTED.with(|counted| {
            counted.launches = counted.launches.saturating_add(1);
            counted.needs = counted.needs.saturating_add(needs.into());
        });
        Self { share, needs }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        COUNTED.with(|counted| {
            counted.launches = counted.launches.saturating_sub(1);
            counted.needs = counted.needs.saturating_sub(self.needs.into());
            counted.settle(self.share);
        });
    }
}

/// Counts bytes for graphs that are reserved in the ledger, while a launch is announced that needs them.
pub fn count(bytes: u64) {
    COUNTED.with(|counted| counted.bytes = counted.bytes.saturating_add(bytes));
}

/// Number of trims so far.
pub fn trims() -> u64 {
    TRIMS.load(Acquire)
}

/// Makes the ledger agree with what is reserved; true if it is more than was counted.
pub fn settle(share: &Share) -> bool {
    COUNTED.with(|counted| counted.settle(share))
}

/// Gives back what no graph uses. Not while the calling thread launches.
pub fn trim(share: &Share) {
    let Some(device) = COUNTED.with(|counted| counted.device) else { return };
    let begin = Instant::now();
    while COUNTED.with(|counted| counted.launches > 0) && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    driver!(cuDeviceGraphMemTrim(device => Device));
    trimmed(share);
}

/// A trim of the program.
pub fn trim_by_program(real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let Some(share) = Share::of_container() {
        trimmed(share);
    }
    code
}

/// Counts again after a trim, or after a context is gone.
pub fn trimmed(share: &Share) {
    TRIMS.fetch_add(1, Release);
    settle(share);
}

fn reserved(device: Device) -> Option<u64> {
    let mut value: u64 = 0;
    let to: *mut c_void = (&raw mut value).cast();
    let code = driver!(cuDeviceGetGraphMemAttribute(device => Device, RESERVED => c_int, to => *mut c_void));
    (code == SUCCESS).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trim_during_a_launch_keeps_what_the_launch_may_reserve_again() {
        assert_eq!(kept(8, 0, 0), 0, "without a launch all that is trimmed is given back");
        assert_eq!(kept(8, 0, 6), 6);
        assert_eq!(kept(8, 4, 6), 8, "no more than was counted");
        assert_eq!(kept(8, 9, 6), 9, "what the driver has is counted");
        assert_eq!(kept(8, 4, u128::MAX), 8);
    }
}
