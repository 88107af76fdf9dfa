//! NVML's state of this process: number of initialisations, and path of the state.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use silicon::{Code, Store, paths};

struct Library {
    users: u32,
    store: Option<Arc<Store>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, store: None });

/// The store of an initialised library.
pub fn store() -> Option<Arc<Store>> {
    let library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    library.store.clone().filter(|_| library.users > 0)
}

fn init() -> Result<(), Code> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = state_folder();
    let store = match library.store.take() {
        Some(known) if known.dir() == folder => known,
        _ => Arc::new(Store::new(folder)),
    };
    store.read().map_err(|e| e.code())?;
    library.store = Some(store);
    library.users += 1;
    Ok(())
}

/// From the variable, else from this library's path in a driver root.
fn state_folder() -> PathBuf {
    let variable = std::env::var_os(paths::STATE_VARIABLE).filter(|v| !v.is_empty());
    let by_place = || own_path().and_then(|own| paths::state_of(&own));
    variable.map(PathBuf::from).or_else(by_place).unwrap_or_else(|| paths::STATE_IN_CONTAINER.into())
}

/// The file that this library was loaded from.
fn own_path() -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only reads the address, which is one of this library's functions, and fills `info`.
    let found = unsafe { libc::dladdr(nvmlShutdown as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: after success dli_fname is a NUL-terminated path that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or_else(|_| path.into()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    init().map_or_else(|code| code.0, |()| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: u32) -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if library.users == 0 {
        return Code::UNINITIALIZED.0;
    }
    library.users -= 1;
    0
}
