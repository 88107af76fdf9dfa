//! Streams and events: when the work of a stream ends is known when it is launched.

use std::{
    collections::BTreeMap,
    ffi::{c_float, c_uint},
};

use crate::{
    abi::{CuResult, Failure, Handle, INVALID_HANDLE, NOT_READY, put},
    engine::{now, wait_until},
    process::{answer, cuda, current, handle, number},
};

/// Streams, events and captures of the process.
#[derive(Debug, Default)]
pub struct Streams {
    /// When the work of a stream ends, by context and stream.
    ready: BTreeMap<(usize, usize), u64>,
    /// The context of an event, and when it is reached.
    events: BTreeMap<usize, (usize, u64)>,
    /// Durations of the kernels that a stream captures instead of running them.
    pub captures: BTreeMap<usize, Vec<u64>>,
    /// Duration of a graph.
    pub graphs: BTreeMap<usize, u64>,
    /// Functions of modules, by handle.
    pub functions: BTreeMap<usize, String>,
}

impl Streams {
    /// When the work of a stream of the current context ends.
    pub fn ready(&self, stream: usize) -> u64 {
        self.ready.get(&(current(), stream)).copied().unwrap_or(0)
    }

    /// Sets when it ends.
    pub fn set_ready(&mut self, stream: usize, end: u64) {
        self.ready.insert((current(), stream), end);
    }

    /// What a context had is gone.
    pub fn forget(&mut self, context: usize) {
        self.ready.retain(|(of, _), _| *of != context);
        self.events.retain(|_, (of, _)| *of != context);
    }

    fn all_ready(&self) -> u64 {
        self.ready.iter().filter(|((context, _), _)| *context == current()).map(|(_, end)| *end).max().unwrap_or(0)
    }

    fn reached(&self, event: Handle) -> Result<u64, Failure> {
        self.events.get(&number(event)).map(|(_, reached)| *reached).ok_or(INVALID_HANDLE)
    }
}

/// Waits without the lock of the process for what the body finds.
fn wait(find: impl FnOnce(&mut crate::process::Process) -> Result<u64, Failure>) -> CuResult {
    let mut end = 0;
    let code = answer(|process| {
        end = find(process)?;
        process.trim_pools()
    });
    wait_until(end);
    code
}

macro_rules! synchronize {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: Handle) -> CuResult {
            wait(|process| process.current_device().map(|_| process.streams.ready(number(stream))))
        }
    )*};
}
synchronize! { cuStreamSynchronize cuStreamSynchronize_ptsz }

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CuResult {
    wait(|process| process.current_device().map(|_| process.streams.all_ready()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> CuResult {
    wait(|process| process.streams.reached(event))
}

macro_rules! record {
    ($($name:ident)*) => {cuda! {$(
        fn $name(process, event: Handle, stream: Handle) {
            let (context, reached) = (current(), process.streams.ready(number(stream)).max(now()));
            let known = process.streams.events.get_mut(&number(event)).filter(|(of, _)| *of == context);
            *known.ok_or(INVALID_HANDLE)? = (context, reached);
            Ok(())
        }
    )*}};
}
record! { cuEventRecord cuEventRecord_ptsz }

cuda! {
    fn cuStreamCreate(process, stream: *mut Handle, _flags: c_uint) {
        process.current_device()?;
        let created = process.handle();
        put(stream, handle(created))
    }

    fn cuStreamDestroy_v2(process, stream: Handle) {
        process.streams.ready.remove(&(current(), number(stream)));
        process.streams.captures.remove(&number(stream));
        process.current_device().map(drop)
    }

    fn cuEventCreate(process, event: *mut Handle, _flags: c_uint) {
        process.current_device()?;
        let created = process.handle();
        process.streams.events.insert(created, (current(), 0));
        put(event, handle(created))
    }

    fn cuEventDestroy_v2(process, event: Handle) {
        process.streams.events.remove(&number(event)).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventQuery(process, event: Handle) {
        if process.streams.reached(event)? > now() { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventElapsedTime(process, milliseconds: *mut c_float, start: Handle, end: Handle) {
        let (start, end) = (process.streams.reached(start)?, process.streams.reached(end)?);
        if start.max(end) > now() {
            return Err(NOT_READY);
        }
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "the precision of CUDA's answer")]
        let elapsed = ((end as f64 - start as f64) / 1e6) as c_float;
        put(milliseconds, elapsed)
    }
}
