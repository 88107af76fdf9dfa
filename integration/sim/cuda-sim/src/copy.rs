//! Copies and fills of memory; see [`crate::content`]. Those with the host wait for what was launched before them.

use std::{
    ffi::{c_uchar, c_uint, c_void},
    slice,
};

use crate::{
    abi::{CAPTURE_UNSUPPORTED, CuResult, Failure, Handle, INVALID_VALUE, Pointer},
    engine::wait_until,
    process::{FIRST_ADDRESS, Process, answer, cuda, current, number},
};

/// Most bytes of a copy at a time.
const CHUNK: u64 = 1 << 20;

impl Process {
    fn host_to_device(&mut self, to: Pointer, from: *const c_void, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA demands so many readable bytes of the host.
        self.write_memory(to, unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) })
    }

    fn device_to_host(&mut self, to: *mut c_void, from: Pointer, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: CUDA demands so many writable bytes of the host, which nothing else reads or writes meanwhile.
        self.read_memory(from, unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), bytes) })
    }

    fn on_device(&mut self, to: Pointer, from: Pointer, bytes: usize) -> Result<(), Failure> {
        let bytes = bytes as u64;
        // before anything is copied
        self.check_memory(to, bytes)?;
        self.check_memory(from, bytes)?;
        let mut buffer = Vec::new();
        for offset in (0..bytes).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
            buffer.resize(usize::try_from(CHUNK.min(bytes - offset)).unwrap_or(0), 0);
            self.read_memory(from + offset, &mut buffer)?;
            self.write_memory(to + offset, &buffer)?;
        }
        Ok(())
    }

    /// A copy between two addresses, each of the host or of a device.
    fn anywhere(&mut self, to: Pointer, from: Pointer, bytes: usize) -> Result<(), Failure> {
        let [to_host, from_host] =
            [to, from].map(|address| usize::try_from(address).ok().filter(|_| !self.is_ours(address)));
        match (to_host, from_host) {
            (None, None) => self.on_device(to, from, bytes),
            (None, Some(from)) => self.host_to_device(to, std::ptr::with_exposed_provenance(from), bytes),
            (Some(to), None) => self.device_to_host(std::ptr::with_exposed_provenance_mut(to), from, bytes),
            (Some(0), _) | (_, Some(0)) => Err(INVALID_VALUE),
            (Some(to), Some(from)) => {
                let (to, from): (*mut u8, *const u8) =
                    (std::ptr::with_exposed_provenance_mut(to), std::ptr::with_exposed_provenance(from));
                // SAFETY: CUDA demands so many bytes of the host at both.
                unsafe { std::ptr::copy(from, to, bytes) };
                Ok(())
            }
        }
    }

    /// An address that the library gave out, or gives out next, judged by its range.
    fn is_ours(&self, address: Pointer) -> bool {
        (FIRST_ADDRESS..self.end_of_addresses()).contains(&address)
    }

    /// Graphs have no nodes that copy.
    fn not_captured(&self, stream: Handle) -> Result<(), Failure> {
        if self.streams.captures.contains_key(&number(stream)) { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}

/// Runs a copy, and waits for what was launched before: by the context, or on the thread's stream alone.
fn after_work(name: &str, per_thread: bool, body: impl FnOnce(&mut Process) -> Result<(), Failure>) -> CuResult {
    let mut end = 0;
    let code = answer(name, |process| {
        let streams = &process.streams;
        end = if per_thread { streams.ready(current(), 0) } else { streams.all_ready(current()) };
        body(process)
    });
    wait_until(end);
    code
}

macro_rules! with_host {
    ($($name:ident $per_thread:literal ($to:ty, $from:ty) $copy:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: $to, from: $from, bytes: usize) -> CuResult {
            after_work(stringify!($name), $per_thread, |process| process.$copy(to, from, bytes))
        }
    )*};
}
with_host! {
    cuMemcpyHtoD_v2 false (Pointer, *const c_void) host_to_device
    cuMemcpyHtoD_v2_ptds true (Pointer, *const c_void) host_to_device
    cuMemcpyDtoH_v2 false (*mut c_void, Pointer) device_to_host
    cuMemcpyDtoH_v2_ptds true (*mut c_void, Pointer) device_to_host
    cuMemcpy false (Pointer, Pointer) anywhere
    cuMemcpy_ptds true (Pointer, Pointer) anywhere
}

macro_rules! on_stream {
    ($($name:ident ($to:ty, $from:ty) $copy:ident)*) => {cuda! {$(
        fn $name(process, to: $to, from: $from, bytes: usize, stream: Handle) {
            process.not_captured(stream)?;
            process.$copy(to, from, bytes)
        }
    )*}};
}
on_stream! {
    cuMemcpyHtoDAsync_v2 (Pointer, *const c_void) host_to_device
    cuMemcpyHtoDAsync_v2_ptsz (Pointer, *const c_void) host_to_device
    cuMemcpyDtoHAsync_v2 (*mut c_void, Pointer) device_to_host
    cuMemcpyDtoHAsync_v2_ptsz (*mut c_void, Pointer) device_to_host
    cuMemcpyDtoDAsync_v2 (Pointer, Pointer) on_device
    cuMemcpyDtoDAsync_v2_ptsz (Pointer, Pointer) on_device
    cuMemcpyAsync (Pointer, Pointer) anywhere
    cuMemcpyAsync_ptsz (Pointer, Pointer) anywhere
}

macro_rules! fills {
    ($($name:ident $thread:ident $on_stream:ident $on_thread:ident $unit:ty)*) => {cuda! {$(
        fn $name(process, to: Pointer, value: $unit, count: usize) {
            process.fill_memory(to, &value.to_ne_bytes(), count as u64)
        }

        fn $thread(process, to: Pointer, value: $unit, count: usize) {
            process.fill_memory(to, &value.to_ne_bytes(), count as u64)
        }

        fn $on_stream(process, to: Pointer, value: $unit, count: usize, stream: Handle) {
            process.not_captured(stream)?;
            process.fill_memory(to, &value.to_ne_bytes(), count as u64)
        }

        fn $on_thread(process, to: Pointer, value: $unit, count: usize, stream: Handle) {
            process.not_captured(stream)?;
            process.fill_memory(to, &value.to_ne_bytes(), count as u64)
        }
    )*}};
}
fills! {
    cuMemsetD8_v2 cuMemsetD8_v2_ptds cuMemsetD8Async cuMemsetD8Async_ptsz c_uchar
    cuMemsetD32_v2 cuMemsetD32_v2_ptds cuMemsetD32Async cuMemsetD32Async_ptsz c_uint
}

cuda! {
    fn cuMemcpyDtoD_v2(process, to: Pointer, from: Pointer, bytes: usize) {
        process.on_device(to, from, bytes)
    }

    fn cuMemcpyDtoD_v2_ptds(process, to: Pointer, from: Pointer, bytes: usize) {
        process.on_device(to, from, bytes)
    }
}
