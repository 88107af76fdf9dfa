//! The share's part of the GPU's time: launches wait until it is their turn and the time that was used is paid for ([`gputenancy_ledger::Pace`]).
//!
//! [`batch`] groups the launches of a stream between two of CUDA's events ([`event`]), which tell how long the GPU worked on them. Most launches
//! only count; one that begins a batch first charges the batches that have ended, and waits. Without a limit a launch costs two comparisons.

mod batch;
mod event;
mod wait;

use gputenancy_ledger::Pace;

use crate::{
    abi::{CuResult, Device, Handle, LaunchConfig, SUCCESS},
    clock::now,
    pace::{batch::Counted, event::Stream},
    share::Share,
};

pub use batch::forget;
pub use event::has_primary_context;

/// A launch on a stream.
pub fn launch(stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, pace)) = paced() else { return real() };
    let stream = Stream::new(stream, per_thread);
    let counted = match batch::count(stream) {
        Counted::No => wait::admit(share, pace, stream, false),
        counted => counted,
    };
    finish(stream, counted, real)
}

/// A launch of a graph, which takes as long as many kernels.
pub fn launch_graph(stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, pace)) = paced() else { return real() };
    let stream = Stream::new(stream, per_thread);
    let counted = wait::admit(share, pace, stream, true);
    finish(stream, counted, real)
}

/// The share and its part of the time, if it has a limited one, once it is not suspended.
fn paced() -> Option<(&'static Share, Pace)> {
    let share = Share::of_container()?;
    if share.is_suspended() {
        wait::resume(share);
    }
    Some((share, share.pace()?))
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
    let Some((share, pace)) = Share::with_pace() else { return real() };
    batch::close_all();
    let code = share.waiting(now(), real);
    wait::settle(share, pace);
    code
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
