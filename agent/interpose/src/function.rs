//! Functions of the driver's own library.

use std::{
    ffi::{CStr, c_void},
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

/// A function of the driver's own library, found at the first call.
#[derive(Debug)]
pub struct Function {
    library: &'static CStr,
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    /// The function with this name of the library at this path, on which the calling library depends.
    pub const fn new(library: &'static CStr, name: &'static CStr) -> Self {
        Self { library, name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; `None` if this driver does not have it.
    #[inline]
    pub fn address(&self) -> Option<*mut c_void> {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { Some(known) }
    }

    #[cold]
    fn find(&self) -> Option<*mut c_void> {
        // several threads find the same address
        let found = find(self.library, self.name)?;
        self.address.store(found, Relaxed);
        Some(found)
    }
}

fn find(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: takes a path; the library is a dependency of this one, so it is loaded already and none of its code runs.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library and a NUL-terminated name. The library stays loaded as long as this one.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: closes what was opened above; the dependency keeps the library.
    unsafe { libc::dlclose(library) };
    (!found.is_null()).then_some(found)
}

/// Calls a function of the driver's own library, or evaluates to `$missing` if this driver does not have it:
/// `call!(LIBRARY, NOT_SUPPORTED, cuCtxGetDevice(device => *mut Device) -> CuResult)`.
#[macro_export]
macro_rules! call {
    ($library:expr, $missing:expr, $name:ident($($argument:expr => $ty:ty),* $(,)?) -> $code:ty) => {{
        static FUNCTION: $crate::Function = {
            // SAFETY: the literal ends with NUL and has no other.
            const NAME: &::std::ffi::CStr = unsafe {
                ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            };
            $crate::Function::new($library, NAME)
        };
        match FUNCTION.address() {
            Some(address) => {
                // SAFETY: the address is that of the function with this name in the driver's library, whose type is that of its header.
                let function = unsafe {
                    ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> $code>(address)
                };
                // SAFETY: the arguments are those of the program, or values of this function.
                unsafe { function($($argument),*) }
            }
            None => $missing,
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_is_found_in_a_library_that_is_loaded() {
        let name = c"libc.so.6";
        assert!(Function::new(name, c"getpid").address().is_some());
        assert!(Function::new(name, c"no_such_function").address().is_none());
        assert!(Function::new(c"/nowhere/libc.so.6", c"getpid").address().is_none(), "nothing is loaded");
        let pid = call!(c"libc.so.6", -1, getpid() -> libc::c_int);
        assert_eq!(u32::try_from(pid), Ok(std::process::id()));
        assert_eq!(call!(c"libc.so.6", -1, no_such_function() -> libc::c_int), -1);
    }
}
