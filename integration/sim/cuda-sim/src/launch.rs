//! Kernels. One with the name `work` runs for as many nanoseconds as its first argument says, others for two microseconds; one with the name `wrong`
//! accesses memory that does not exist.

use std::ffi::{CStr, c_char, c_uint, c_void};

use silicon::activity::Load;

use crate::{
    abi::{Failure, Handle, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, UNKNOWN, get, put},
    graphs::Work,
    process::{Process, cuda, current, handle, number},
};

/// Nanoseconds of a kernel that says nothing about its duration.
const DURATION: u64 = 2_000;
/// Xid of a memory page fault (docs.nvidia.com/deploy/xid-errors).
const PAGE_FAULT: u64 = 31;

/// Blocks of a grid, or threads of a block, in each direction.
type Size = [c_uint; 3];

fn product(size: Size) -> u64 {
    size.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: Size,
    block: Size,
    shared: c_uint,
    stream: Handle,
    attributes: *const c_void,
    count: c_uint,
}

impl Process {
    /// Runs something on a stream of the current context, or keeps it for a graph.
    pub fn run(&mut self, stream: usize, load: Load) -> Result<(), Failure> {
        if let Some(graph) = self.streams.captures.get(&stream).copied() {
            let node = self.handle();
            return self.graphs.capture(graph, node, Work::Kernel(load));
        }
        self.run_until(stream, load).map(drop)
    }

    /// Runs something on a stream that captures nothing; returns when it ends.
    pub fn run_until(&mut self, stream: usize, load: Load) -> Result<u64, Failure> {
        let ready = self.streams.ready(current(), stream);
        let end = self.engine()?.execute(ready, load);
        self.streams.set_ready(current(), stream, end);
        Ok(end)
    }

    fn launch(
        &mut self,
        function: Handle,
        (grid, block): (Size, Size),
        arguments: *const *const u64,
        stream: Handle,
    ) -> Result<(), Failure> {
        let name = self.streams.functions.get(&number(function)).ok_or(INVALID_HANDLE)?;
        if name == "wrong" {
            return self.page_fault();
        }
        let duration = if name == "work" { get(get(arguments)?)? } else { DURATION };
        let load = self.engine()?.load(duration, product(grid), product(block));
        self.run(number(stream), load)
    }

    /// The driver reports a fault of the device. A launch may return an error of the kernel, and so no state of the context is kept for it.
    fn page_fault(&self) -> Result<(), Failure> {
        let device = self.devices.get(self.current_device()?).ok_or(INVALID_DEVICE)?;
        let (gpu, instance) = (device.identity.gpu, device.identity.instance.map(|(gi, _)| gi));
        let raised = self.store.change(|machine, _| machine.raise_xid(gpu, instance, PAGE_FAULT));
        raised.map_err(|_| UNKNOWN)?;
        Err(ILLEGAL_ADDRESS)
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
            process, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            _shared: c_uint, stream: Handle, arguments: *const *const u64, _extra: *const c_void,
        ) {
            process.launch(function, ([gx, gy, gz], [bx, by, bz]), arguments, stream)
        }

        fn $ex(process, config: *const LaunchConfig, function: Handle, arguments: *const *const u64, _extra: *const c_void) {
            let config = get(config)?;
            process.launch(function, (config.grid, config.block), arguments, config.stream)
        }

        fn $cooperative(
            process, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            _shared: c_uint, stream: Handle, arguments: *const *const u64,
        ) {
            process.launch(function, ([gx, gy, gz], [bx, by, bz]), arguments, stream)
        }
    )*}};
}
launches! {
    cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
    cuLaunchKernel_ptsz cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel_ptsz
}
