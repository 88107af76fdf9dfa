//! Functions of the driver's own library.

use std::{
    ffi::{CStr, c_void},
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

/// The driver's library in containers; also in `build.rs`, which makes it a dependency.
const LIBRARY: &CStr = c"/run/gputenancy/driver/libcuda.so.1";

/// A function of the driver's library, found at the first call.
pub struct Real {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Real {
    /// The function with this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, function: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; `None` if this driver does not have it.
    pub fn address(&self) -> Option<*mut c_void> {
        let known = self.function.load(Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // several threads find the same address
        let found = find(self.name)?;
        self.function.store(found, Relaxed);
        Some(found)
    }
}

/// A function by name.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: takes a path; the library is a dependency of this one, so it is loaded already and none of its code runs.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library and a NUL-terminated name. The library stays loaded as long as this one.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: closes what was opened above; the dependency keeps the library.
    unsafe { libc::dlclose(library) };
    (!found.is_null()).then_some(found)
}

/// Declares a function of the driver's library that the shim calls: `driver!(cuCtxGetDevice(device: *mut Device))`.
macro_rules! driver {
    ($name:ident($($argument:expr => $ty:ty),* $(,)?)) => {{
        static REAL: $crate::real::Real = {
            // SAFETY: the literal ends with NUL and has no other.
            const NAME: &::std::ffi::CStr = unsafe {
                ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            };
            $crate::real::Real::new(NAME)
        };
        match REAL.address() {
            Some(address) => {
                // SAFETY: the address is that of the function with this name in the driver's library, whose type is that of cuda.h.
                let function = unsafe {
                    ::std::mem::transmute::<
                        *mut ::std::ffi::c_void,
                        unsafe extern "C" fn($($ty),*) -> $crate::abi::CuResult,
                    >(address)
                };
                // SAFETY: the arguments are those of the program, or values of this function.
                unsafe { function($($argument),*) }
            }
            None => $crate::abi::NOT_SUPPORTED,
        }
    }};
}
pub(crate) use driver;
