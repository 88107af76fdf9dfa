//! Kernels. One with the name `work` runs for as many nanoseconds as its first argument says, others for two microseconds.

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::{
    abi::{Failure, Handle, INVALID_HANDLE, INVALID_VALUE, get, put},
    graphs::Work,
    process::{Process, cuda, current, handle, number},
};

/// Nanoseconds of a kernel that says nothing about its duration.
const DURATION: u64 = 2_000;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

impl Process {
    /// Runs something on a stream of the current context, or keeps it for a graph.
    pub fn run(&mut self, stream: usize, duration: u64) -> Result<(), Failure> {
        if let Some(graph) = self.streams.captures.get(&stream).copied() {
            let node = self.handle();
            return self.graphs.capture(graph, node, Work::Kernel(duration));
        }
        self.run_until(stream, duration).map(drop)
    }

    /// Runs something on a stream that captures nothing; returns when it ends.
    pub fn run_until(&mut self, stream: usize, duration: u64) -> Result<u64, Failure> {
        let end = self.execute(self.streams.ready(current(), stream), duration)?;
        self.streams.set_ready(current(), stream, end);
        Ok(end)
    }

    fn launch(&mut self, function: Handle, arguments: *const *const u64, stream: Handle) -> Result<(), Failure> {
        let name = self.streams.functions.get(&number(function)).ok_or(INVALID_HANDLE)?;
        let duration = if name == "work" { get(get(arguments)?)? } else { DURATION };
        self.run(number(stream), duration)
    }
}

cuda! {
    fn cuModuleLoadData(process, module: *mut Handle, image: *const c_void) {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        process.current_device()?;
        let created = process.handle();
        put(module, handle(created))
    }

    fn cuModuleGetFunction(process, function: *mut Handle, _module: Handle, name: *const c_char) {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA demands a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let created = process.handle();
        process.streams.functions.insert(created, name);
        put(function, handle(created))
    }
}

macro_rules! launches {
    ($($kernel:ident $ex:ident $cooperative:ident)*) => {cuda! {$(
        fn $kernel(
            process, function: Handle, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
            _shared: c_uint, stream: Handle, arguments: *const *const u64, _extra: *const c_void,
        ) {
            process.launch(function, arguments, stream)
        }

        fn $ex(process, config: *const LaunchConfig, function: Handle, arguments: *const *const u64, _extra: *const c_void) {
            let config = get(config)?;
            process.launch(function, arguments, config.stream)
        }

        fn $cooperative(
            process, function: Handle, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
            _shared: c_uint, stream: Handle, arguments: *const *const u64,
        ) {
            process.launch(function, arguments, stream)
        }
    )*}};
}
launches! {
    cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
    cuLaunchKernel_ptsz cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel_ptsz
}
