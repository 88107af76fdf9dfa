//! Streams and events: when the work of a stream ends is known when it is launched.

use std::ffi::{c_float, c_uint};

use crate::{
    abi::{CuResult, Failure, Handle, INVALID_HANDLE, NOT_READY, put},
    engine::{now, wait_until},
    process::{answer, cuda, current, handle, number},
};

/// Waits without the lock of the process for what the body finds.
fn wait(name: &str, find: impl FnOnce(&mut crate::process::Process) -> Result<u64, Failure>) -> CuResult {
    let mut end = 0;
    let code = answer(name, |process| {
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
            wait(stringify!($name), |process| process.current_device().map(|_| process.streams.ready(current(), number(stream))))
        }
    )*};
}
synchronize! { cuStreamSynchronize cuStreamSynchronize_ptsz }

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CuResult {
    wait("cuCtxSynchronize", |process| process.current_device().map(|_| process.streams.all_ready(current())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> CuResult {
    wait("cuEventSynchronize", |process| process.streams.reached(number(event)))
}

macro_rules! record {
    ($($name:ident)*) => {cuda! {$(
        fn $name(process, event: Handle, stream: Handle) {
            let (context, reached) = (current(), process.streams.ready(current(), number(stream)).max(now()));
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
        if process.streams.reached(number(event))? > now() { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventElapsedTime(process, milliseconds: *mut c_float, start: Handle, end: Handle) {
        let (start, end) = (process.streams.reached(number(start))?, process.streams.reached(number(end))?);
        if start.max(end) > now() {
            return Err(NOT_READY);
        }
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "the precision of CUDA's answer")]
        let elapsed = ((end as f64 - start as f64) / 1e6) as c_float;
        put(milliseconds, elapsed)
    }
}
