//! What programs see: the share is the GPU.

use crate::{
    abi::{CuResult, Device, SUCCESS},
    graph_memory, pool,
    share::Share,
};

/// A number of bytes, in the 32 or 64 bits that a function has for it.
pub trait Bytes: Copy {
    /// As a number.
    fn get(self) -> u64;
    /// This number, or the largest one.
    fn at_most(bytes: u64) -> Self;
}

impl Bytes for usize {
    fn get(self) -> u64 {
        self as u64
    }

    fn at_most(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

impl Bytes for u32 {
    fn get(self) -> u64 {
        self.into()
    }

    fn at_most(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

/// Free and total memory of the current device. The driver checks the arguments.
pub fn memory<T: Bytes>(free: *mut T, total: *mut T, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code != SUCCESS {
        return code;
    }
    let Some(share) = Share::of_current_context() else { return code };
    pool::refresh(share);
    graph_memory::settle(share);
    // SAFETY: the driver has just written to those that are not null.
    unsafe {
        if !free.is_null() {
            let really = free.read().get();
            free.write(T::at_most(share.left().min(really)));
        }
        if let (false, Some(visible)) = (total.is_null(), share.visible()) {
            total.write(T::at_most(visible));
        }
    }
    code
}

/// Memory of a device.
pub fn total<T: Bytes>(bytes: *mut T, device: Device, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if let (SUCCESS, Some(visible)) = (code, Share::of_device(device).and_then(Share::visible)) {
        // SAFETY: the driver has just written to it.
        unsafe { bytes.write(T::at_most(visible)) };
    }
    code
}
