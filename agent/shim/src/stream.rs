//! Streams as keys: a handle can mean another stream in each context and thread.

use std::{ffi::c_int, ptr::null_mut};

use crate::{
    abi::{Handle, SUCCESS},
    real::driver,
};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A stream of a context, as the calling thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    context: usize,
    handle: usize,
    /// The thread, where each has such a stream of its own; 0 otherwise.
    thread: usize,
}

impl Stream {
    /// The stream that a function of this form means by a handle.
    pub fn new(handle: Handle, per_thread: bool) -> Self {
        let mut context: Handle = null_mut();
        driver!(cuCtxGetCurrent(&raw mut context => *mut Handle));
        let own = handle.addr() == PER_THREAD || (per_thread && handle.is_null());
        let handle = if own { PER_THREAD } else { handle.expose_provenance() };
        Self { context: context.addr(), handle, thread: if own { thread() } else { 0 } }
    }

    /// The handle, for functions of either form.
    pub fn raw(self) -> Handle {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }

    /// It captures what is put into it instead of running it.
    pub fn is_capturing(self) -> bool {
        let mut status: c_int = 0;
        let code = driver!(cuStreamIsCapturing(self.raw() => Handle, &raw mut status => *mut c_int));
        code == SUCCESS && status != 0
    }

    /// Waits until its work is done.
    pub fn wait(self) {
        driver!(cuStreamSynchronize(self.raw() => Handle));
    }
}

/// A number of the calling thread.
fn thread() -> usize {
    thread_local! { static OWN: u8 = const { 0 } }
    OWN.with(|own| std::ptr::from_ref(own).addr())
}
