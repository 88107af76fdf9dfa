//! The share's part of the GPU's time: launches wait until it is their turn and the time that was used is paid for ([`gputenancy_ledger::Pace`]).
//!
//! [`batch`] groups the launches of a stream between two of CUDA's events ([`event`]), which tell how long the GPU worked on them. Most launches
//! only count; one that begins a batch first charges the batches that have ended, and waits. Without a limit a launch costs one comparison.

mod batch;
mod event;
mod wait;

use crate::{
    abi::{CuResult, Device, Handle, LaunchConfig, SUCCESS},
    pace::{batch::Counted, event::Stream},
    share::Share,
};

pub use batch::forget;
pub use event::has_primary_context;

/// A launch on a stream.
pub fn launch(stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, pace)) = Share::with_pace() else { return real() };
    let stream = Stream::new(stream, per_thread);
    let counted = match batch::count(stream) {
        Counted::No => wait::admit(share, pace, stream, false),
        counted => counted,
    };
    finish(stream, counted, real)
}

/// A launch of a graph, which takes as long as many kernels.
pub fn launch_graph(stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, pace)) = Share::with_pace() else { return real() };
    let stream = Stream::new(stream, per_thread);
    let counted = wait::admit(share, pace, stream, true);
    finish(stream, counted, real)
}

fn finish(stream: Stream, counted: Counted, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if counted == Counted::Last {
        batch::end(stream);
    }
    code
}

/// A call that waits for the GPU: what was launched until now ends with it. If that never ends, the agent sees in the ledger how long it waits.
pub fn synchronize(real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, _)) = Share::with_pace() else { return real() };
    batch::close_all();
    share.waiting(now(), real)
}

/// A call that destroys a stream: its batch ends before.
pub fn destroy_stream(stream: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    if Share::with_pace().is_some() {
        batch::close_stream(Stream::new(stream, false));
    }
    real()
}

/// A call after which a context is gone, and its events with it.
pub fn destroy(real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code == SUCCESS {
        batch::drop_all();
    }
    code
}

/// A call after which the primary context of a device is gone, if nothing else has retained it.
pub fn release(device: Device, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code == SUCCESS && !event::has_primary_context(device) {
        batch::drop_all();
    }
    code
}

/// The stream of a launch; the default stream if there is no configuration, which the driver refuses.
pub fn stream_of(config: *const LaunchConfig) -> Handle {
    // SAFETY: null, or a configuration of the program.
    unsafe { config.as_ref() }.map_or(std::ptr::null_mut(), |config| config.stream)
}

/// Nanoseconds of the monotonic clock, which all containers of a node share.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.unwrap_or(0))
}
