//! Graphs by capture: a stream that captures keeps the durations of its kernels, and a graph runs for their sum.

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::{
    abi::{CAPTURE_UNSUPPORTED, Handle, INVALID_HANDLE, INVALID_VALUE, get, put},
    process::{cuda, handle, number},
};

cuda! {
    fn cuStreamBeginCapture_v2(process, stream: Handle, _mode: c_int) {
        // the default stream cannot be captured
        if stream.is_null() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        process.streams.captures.insert(number(stream), Vec::new());
        Ok(())
    }

    fn cuStreamEndCapture(process, stream: Handle, graph: *mut Handle) {
        let kernels = process.streams.captures.remove(&number(stream)).ok_or(INVALID_VALUE)?;
        let created = process.handle();
        process.streams.graphs.insert(created, kernels.iter().sum());
        put(graph, handle(created))
    }

    fn cuThreadExchangeStreamCaptureMode(_process, mode: *mut c_int) {
        // every call is permitted during a capture
        get(mode).map(drop)
    }

    fn cuGraphInstantiateWithFlags(process, executable: *mut Handle, graph: Handle, _flags: c_ulonglong) {
        let duration = process.streams.graphs.get(&number(graph)).copied().ok_or(INVALID_HANDLE)?;
        let created = process.handle();
        process.streams.graphs.insert(created, duration);
        put(executable, handle(created))
    }
}

macro_rules! on_streams {
    ($($capturing:ident $launch:ident)*) => {cuda! {$(
        fn $capturing(process, stream: Handle, status: *mut c_uint) {
            put(status, c_uint::from(process.streams.captures.contains_key(&number(stream))))
        }

        fn $launch(process, executable: Handle, stream: Handle) {
            let duration = process.streams.graphs.get(&number(executable)).copied().ok_or(INVALID_HANDLE)?;
            process.run(number(stream), duration)
        }
    )*}};
}
on_streams! { cuStreamIsCapturing cuGraphLaunch cuStreamIsCapturing_ptsz cuGraphLaunch_ptsz }
