//! The driver as a whole: versions, messages, process names.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::OnceLock;

use silicon::Code;
use silicon::machine::{CUDA_VERSION, DRIVER_VERSION, NVML_VERSION};

use crate::call::{
    nvml,
    out::{put, put_text},
};

/// Messages for codes 0 to this one are kept; all others are unknown errors.
const CODES: u32 = 32;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    static MESSAGES: OnceLock<Vec<CString>> = OnceLock::new();
    let messages = MESSAGES.get_or_init(|| {
        let text = |code| CString::new(Code(code).message()).unwrap_or_default();
        (0..=CODES).map(text).collect()
    });
    let unknown = c"Unknown Error".as_ptr();
    messages.get(result as usize).map_or(unknown, |text| text.as_ptr())
}

nvml! {
    fn nvmlSystemGetDriverVersion(_ctx, version: *mut c_char, length: c_uint) {
        put_text(version, length, DRIVER_VERSION)
    }

    fn nvmlSystemGetNVMLVersion(_ctx, version: *mut c_char, length: c_uint) {
        put_text(version, length, NVML_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion(_ctx, version: *mut c_int) {
        put(version, CUDA_VERSION)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(_ctx, version: *mut c_int) {
        put(version, CUDA_VERSION)
    }

    fn nvmlSystemGetProcessName(_ctx, pid: c_uint, name: *mut c_char, length: c_uint) {
        let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| Code::NOT_FOUND)?;
        put_text(name, length, text.trim_end())
    }
}
