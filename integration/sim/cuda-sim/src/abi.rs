//! Types and codes of `cuda.h`, and values behind pointers.

use std::ffi::{c_int, c_void};

/// `CUresult`.
pub type CuResult = c_int;
/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`.
pub type Pointer = u64;
/// `CUcontext`, `CUstream`, `CUmemoryPool`, `CUarray`: addresses that name an object.
pub type Handle = *mut c_void;

/// A `CUresult` that is no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub CuResult);

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Failure = Failure(1);
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Failure = Failure(2);
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub const NOT_INITIALIZED: Failure = Failure(3);
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
pub const DEVICE_UNAVAILABLE: Failure = Failure(46);
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: Failure = Failure(100);
/// `CUDA_ERROR_INVALID_DEVICE`.
pub const INVALID_DEVICE: Failure = Failure(101);
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: Failure = Failure(201);
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Failure = Failure(500);
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: Failure = Failure(600);
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const ILLEGAL_ADDRESS: Failure = Failure(700);
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Failure = Failure(801);
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURE_UNSUPPORTED: Failure = Failure(900);
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: Failure = Failure(400);
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: Failure = Failure(999);

/// Writes one value to where the caller wants it.
pub fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA demands that a pointer that is not null points to a writable value of its type.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads one value of the caller.
pub fn get<T: Copy>(from: *const T) -> Result<T, Failure> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA demands that a pointer that is not null points to a readable value of its type.
    Ok(unsafe { from.read() })
}
