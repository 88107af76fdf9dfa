//! `cuGetProcAddress`: the driver answers first, and where it returns a function that the shim replaces, the program gets the replacement of the
//! same name. So no rule about names, versions and streams is repeated here.

use std::{
    ffi::{CStr, c_void},
    sync::OnceLock,
};

use gputenancy_interpose::Function;

use crate::{
    abi::{CuResult, SUCCESS},
    real::LIBRARY,
};

/// Name of a function and the address of its replacement.
pub struct Hook {
    /// The name that the driver's library exports.
    pub name: &'static CStr,
    /// The function of this library.
    pub replacement: fn() -> *const c_void,
}

/// Addresses of the driver's functions with those of their replacements, sorted.
static REPLACEMENTS: OnceLock<Vec<(usize, usize)>> = OnceLock::new();

fn replacements(hooks: &[Hook]) -> &'static [(usize, usize)] {
    REPLACEMENTS.get_or_init(|| {
        let known =
            |hook: &Hook| Some((Function::new(LIBRARY, hook.name).address()?.addr(), (hook.replacement)().addr()));
        let mut all: Vec<(usize, usize)> = hooks.iter().filter_map(known).collect();
        all.sort_unstable();
        all
    })
}

/// Calls the driver and replaces the function that it returns, if one of these is its replacement.
pub fn route(hooks: &[Hook], function: *mut *const c_void, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code != SUCCESS || function.is_null() {
        return code;
    }
    // SAFETY: the driver has just written to it.
    let found = unsafe { function.read() };
    let all = replacements(hooks);
    if let Ok(at) = all.binary_search_by_key(&found.addr(), |(of_driver, _)| *of_driver)
        && let Some((_, replacement)) = all.get(at)
    {
        // SAFETY: as above.
        unsafe { function.write(std::ptr::with_exposed_provenance(*replacement)) };
    }
    code
}
