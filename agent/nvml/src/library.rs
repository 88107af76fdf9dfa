//! Finding, loading and calling the library.

use std::{
    ffi::{CStr, c_char, c_int},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::NvmlLib;

use crate::{NvmlFailure, OpenError, code};

/// Where distributions and NVIDIA's driver container put the library, below a driver root.
const FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    "lib/aarch64-linux-gnu",
];
const SONAME: &str = "libnvidia-ml.so.1";

/// The library under a driver root, or `None` when there is none.
pub fn find_library(root: &Path) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| root.join(folder).join(SONAME)).find(|path| path.exists())
}

/// Observes every call.
pub trait Observer {
    /// A call begins.
    fn began(&self, _call: &'static str) {}
    /// It returned this code.
    fn ended(&self, _call: &'static str, _code: u32, _took: Duration) {}
}

/// Ignores all calls.
#[derive(Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// NVML, initialised; shut down when dropped.
pub struct Nvml {
    pub(crate) lib: NvmlLib,
    observer: Box<dyn Observer>,
    path: PathBuf,
}

/// Calls a function of the library and turns its code into a `Result`.
macro_rules! call {
    ($nvml:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let nvml: &$crate::Nvml = $nvml;
        let function = nvml.lib.$function.as_ref();
        nvml.observed(stringify!($function), || match function {
            // SAFETY: the symbol was resolved under its own name and the bindings give its C signature; handles come from
            // this library since its last initialisation and live no longer than `Nvml`; pointers are to live values, and
            // where the function fills an array its length goes with it.
            Ok(function) => unsafe { function($($argument),*) },
            Err(_) => $crate::code::FUNCTION_NOT_FOUND,
        })
    }};
}
pub(crate) use call;

impl Nvml {
    /// Loads the library at `path` (or by soname, when the path is only a name) and initialises it.
    ///
    /// # Errors
    /// When it does not load, or the driver is not there.
    pub fn open(path: impl Into<PathBuf>, observer: Box<dyn Observer>) -> Result<Self, OpenError> {
        let path = path.into();
        // SAFETY: loading runs the library's constructors, which is what loading NVIDIA's library means; it has no others
        // than every program that uses NVML runs.
        let lib = unsafe { NvmlLib::new(&path) };
        let lib = lib.map_err(|error| OpenError::Load { path: path.clone(), reason: error.to_string() })?;
        let started = Instant::now();
        observer.began("nvmlInit_v2");
        let code = match lib.nvmlInit_v2.as_ref() {
            // SAFETY: takes no argument and may be called by any thread.
            Ok(init) => unsafe { init() },
            Err(_) => code::FUNCTION_NOT_FOUND,
        };
        observer.ended("nvmlInit_v2", code, started.elapsed());
        if code != code::SUCCESS {
            return Err(NvmlFailure { call: "nvmlInit_v2", code, message: message(&lib, code) }.into());
        }
        Ok(Self { lib, observer, path })
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the kernel driver, such as `580.95.05`.
    pub fn driver_version(&self) -> Result<String, NvmlFailure> {
        text(|buffer, length| call!(self, nvmlSystemGetDriverVersion(buffer, length)))
    }

    /// CUDA version that the driver supports, such as `13.0`.
    pub fn cuda_version(&self) -> Result<String, NvmlFailure> {
        let version: c_int = output(0, |version| call!(self, nvmlSystemGetCudaDriverVersion_v2(version)))?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> Result<u32, NvmlFailure> {
        output(0, |count| call!(self, nvmlDeviceGetCount_v2(count)))
    }

    pub(crate) fn observed(&self, call: &'static str, function: impl FnOnce() -> u32) -> Result<(), NvmlFailure> {
        let started = Instant::now();
        self.observer.began(call);
        let code = function();
        self.observer.ended(call, code, started.elapsed());
        if code == code::SUCCESS { Ok(()) } else { Err(self.failure(call, code)) }
    }

    pub(crate) fn failure(&self, call: &'static str, code: u32) -> NvmlFailure {
        NvmlFailure { call, code, message: message(&self.lib, code) }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // fails only if the driver is gone
        let _ = call!(self, nvmlShutdown());
    }
}

/// The value that a call writes to its output argument, which is `initial` before.
pub(crate) fn output<T>(initial: T, call: impl FnOnce(*mut T) -> Result<(), NvmlFailure>) -> Result<T, NvmlFailure> {
    let mut value = initial;
    call(&raw mut value)?;
    Ok(value)
}

/// The elements that a call writes to a buffer, of at most `capacity` elements.
pub(crate) fn list<T: Clone>(
    empty: T,
    capacity: u32,
    call: impl FnOnce(*mut T, *mut u32) -> Result<(), NvmlFailure>,
) -> Result<Vec<T>, NvmlFailure> {
    let mut buffer = vec![empty; capacity as usize];
    let count = output(capacity, |count| call(buffer.as_mut_ptr(), count))?;
    buffer.truncate(count as usize);
    Ok(buffer)
}

/// The text that a call writes to a buffer of a length.
pub(crate) fn text(call: impl FnOnce(*mut c_char, u32) -> Result<(), NvmlFailure>) -> Result<String, NvmlFailure> {
    Ok(string(&output([0; 96], |buffer: *mut [c_char; 96]| call(buffer.cast(), 96))?))
}

/// NVML's message for a code.
fn message(lib: &NvmlLib, code: u32) -> String {
    let Ok(function) = lib.nvmlErrorString.as_ref() else { return format!("NVML error {code}") };
    // SAFETY: takes any number and needs no initialisation.
    let text = unsafe { function(code) };
    if text.is_null() {
        return format!("NVML error {code}");
    }
    // SAFETY: NVML returns a static string that ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A C buffer up to its first NUL.
pub(crate) fn string(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).flat_map(|c| c.to_ne_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
