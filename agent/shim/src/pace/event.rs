//! CUDA's events. A call that fails gives nothing: the launch goes on without being measured.

use std::{
    ffi::{c_int, c_uint},
    ptr::null_mut,
};

use crate::{
    abi::{Device, Handle, NOT_READY, SUCCESS},
    clock::now,
    real::driver,
};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// Nanoseconds in which an idle GPU reaches an event.
const SOON: u64 = 2_000_000;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// A stream of a context, as the calling thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub context: usize,
    handle: usize,
    /// The thread, where each has such a stream of its own; 0 otherwise.
    thread: usize,
}

impl Stream {
    pub const NONE: Self = Self { context: 0, handle: 0, thread: 0 };

    /// The stream that a function of this form means by a handle.
    pub fn new(handle: Handle, per_thread: bool) -> Self {
        let mut context: Handle = null_mut();
        driver!(cuCtxGetCurrent(&raw mut context => *mut Handle));
        let own = handle.addr() == PER_THREAD || (per_thread && handle.is_null());
        Self { context: context.addr(), handle: handle.addr(), thread: if own { thread() } else { 0 } }
    }

    fn raw(self) -> Handle {
        let handle = if self.thread == 0 { self.handle } else { PER_THREAD };
        std::ptr::with_exposed_provenance_mut(handle)
    }

    /// The calling thread can use it.
    pub fn is_of_this_thread(self) -> bool {
        self.thread == 0 || self.thread == thread()
    }

    /// It has the same handle, in whichever context.
    pub fn has_handle_of(self, other: Self) -> bool {
        self.handle == other.handle && self.thread == other.thread
    }

    /// It captures its launches for a graph instead of running them, or another one does, and a record here would break that.
    pub fn is_capturing(self) -> bool {
        let mut status: c_int = 0;
        let code = driver!(cuStreamIsCapturing(self.raw() => Handle, &raw mut status => *mut c_int));
        code != SUCCESS || status != 0
    }
}

/// A number of the calling thread.
fn thread() -> usize {
    thread_local! { static OWN: u8 = const { 0 } }
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// An event; none is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(usize);

impl Event {
    pub const NONE: Self = Self(0);

    /// A new event of the current context.
    pub fn create() -> Option<Self> {
        let mut event: Handle = null_mut();
        let code = driver!(cuEventCreate(&raw mut event => *mut Handle, 0 => c_uint));
        (code == SUCCESS).then(|| Self(event.expose_provenance()))
    }

    fn raw(self) -> Handle {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    /// Records it on a stream.
    pub fn record(self, stream: Stream) -> bool {
        driver!(cuEventRecord(self.raw() => Handle, stream.raw() => Handle)) == SUCCESS
    }

    /// Whether the GPU has reached it; `None` if its context is gone.
    pub fn is_reached(self) -> Option<bool> {
        match driver!(cuEventQuery(self.raw() => Handle)) {
            SUCCESS => Some(true),
            NOT_READY => Some(false),
            _ => None,
        }
    }

    pub fn destroy(self) {
        if self == Self::NONE {
            return;
        }
        driver!(cuEventDestroy_v2(self.raw() => Handle));
    }

    /// Nanoseconds from it to another one.
    fn until(self, later: Self) -> Option<i64> {
        let mut milliseconds: f32 = 0.0;
        let code = driver!(cuEventElapsedTime(
            &raw mut milliseconds => *mut f32, self.raw() => Handle, later.raw() => Handle,
        ));
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        (code == SUCCESS).then_some((f64::from(milliseconds) * 1e6) as i64)
    }
}

/// An event whose time by the monotonic clock is known.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub context: usize,
    event: Event,
    stream: usize,
    /// When the GPU reached it.
    at: u64,
    /// When it was last recorded, or that failed.
    pub tried: u64,
}

impl Base {
    pub const NONE: Self = Self { context: 0, event: Event::NONE, stream: 0, at: 0, tried: 0 };

    /// A base of the current context, on a stream of its own that no work of the program delays.
    pub fn create(context: usize) -> Option<Self> {
        let mut stream: Handle = null_mut();
        let code = driver!(cuStreamCreate(&raw mut stream => *mut Handle, NON_BLOCKING => c_uint));
        if code != SUCCESS {
            return None;
        }
        let mut base = Self { context, stream: stream.expose_provenance(), ..Self::NONE };
        base.renew();
        (base.event != Event::NONE).then_some(base).or_else(|| {
            driver!(cuStreamDestroy_v2(stream => Handle));
            None
        })
    }

    /// Records it again: the time between two events is less exact the longer it is. The former one stays if the GPU does not reach the new one soon.
    pub fn renew(&mut self) {
        let stream = Stream { context: self.context, handle: self.stream, thread: 0 };
        let before = now();
        self.tried = before;
        let Some(event) = Event::create() else { return };
        let mut reached = event.record(stream).then_some(false);
        while reached == Some(false) && now().saturating_sub(before) < SOON {
            reached = event.is_reached();
        }
        if reached == Some(true) {
            self.at = before.midpoint(now());
            std::mem::replace(&mut self.event, event).destroy();
        } else {
            event.destroy();
        }
    }

    /// When an event was reached.
    pub fn time(&self, event: Event) -> Option<u64> {
        self.at.checked_add_signed(self.event.until(event)?)
    }
}

/// Runs calls that are not permitted in a thread while another one captures, unless it says that it does not mind.
pub fn relaxed<R>(body: impl FnOnce() -> R) -> R {
    let mut mode = RELAXED;
    let exchanged = driver!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_int)) == SUCCESS;
    let result = body();
    if exchanged {
        driver!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_int));
    }
    result
}

/// The device of the current context.
pub fn device() -> Option<Device> {
    let mut device: Device = 0;
    (driver!(cuCtxGetDevice(&raw mut device => *mut Device)) == SUCCESS).then_some(device)
}

/// The primary context of a device exists; without an answer it does not.
pub fn has_primary_context(device: Device) -> bool {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    let code = driver!(cuDevicePrimaryCtxGetState(
        device => Device, &raw mut flags => *mut c_uint, &raw mut active => *mut c_int,
    ));
    code == SUCCESS && active != 0
}
