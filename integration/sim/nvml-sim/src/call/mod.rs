//! Common parts of all calls: initialisation, injected faults, latency and history.

pub mod context;
pub mod handle;
pub mod out;
pub mod stubs;

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use silicon::fault::{self, Call, Effect, Fault};
use silicon::visible::{self, View};
use silicon::{Code, Store, store};

use self::context::Context;
use crate::library;

/// Calls that change a GPU.
const CHANGES: &[&str] = &[
    "nvmlDeviceSetMigMode",
    "nvmlDeviceSetPersistenceMode",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
];

/// Exports NVML functions: the body sees the context of the call and ends with success or a code.
///
/// In brackets the argument that names the GPU, so that faults can be limited to one.
macro_rules! nvml {
    ($(fn $name:ident $([$handle:ident])? ($ctx:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            #[allow(unused_mut, unused_assignments)]
            let mut gpu: Option<u32> = None;
            $(gpu = crate::call::handle::gpu_of($handle.addr());)?
            crate::call::run(stringify!($name), gpu, |$ctx: &crate::call::context::Context| $body)
        }
    )*};
}
pub(crate) use nvml;

/// Runs one call.
pub fn run(name: &str, gpu: Option<u32>, body: impl FnOnce(&Context) -> Result<(), Code>) -> nvmlReturn_t {
    let Some(store) = library::store() else { return Code::UNINITIALIZED.0 };
    let call = Call { name, changes: CHANGES.contains(&name), gpu, process: process_name() };
    trace(store.dir(), &call);
    let effect = fault(&store, &call);
    match effect {
        Some(Effect::Fail(code)) => return code,
        Some(Effect::Hang(ms)) => std::thread::sleep(Duration::from_millis(ms)),
        Some(Effect::KillBefore) => die(),
        Some(Effect::KillAfter) | None => {}
    }
    let answer = store.read().map_err(|e| e.code()).and_then(|machine| {
        let view = View::of(&machine, std::env::var_os(visible::VARIABLE));
        body(&Context { machine, view, store })
    });
    if effect == Some(Effect::KillAfter) {
        die();
    }
    answer.map_or_else(|code| code.0, |()| 0)
}

/// The effect of an injected fault on this call; only processes that may change the state are affected.
fn fault(store: &Store, call: &Call<'_>) -> Option<Effect> {
    let path = store.dir().join(fault::FILE);
    if !read_faults(&path).is_some_and(|faults| fault::concerned(&faults, call)) {
        return None;
    }
    let _lock = store.lock().ok()?;
    let mut faults = read_faults(&path)?;
    let effect = fault::meet(&mut faults, call);
    store::replace(&path, &serde_json::to_vec(&faults).ok()?).ok()?;
    effect
}

fn read_faults(path: &Path) -> Option<Vec<Fault>> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Writes the call to the trace, if there is one.
fn trace(dir: &Path, call: &Call<'_>) {
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(dir.join(fault::TRACE)) {
        let _ = writeln!(file, "{} {} {}", std::process::id(), call.process, call.name);
    }
}

fn process_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let exe = std::fs::read_link("/proc/self/exe").ok();
        exe.and_then(|e| Some(e.file_name()?.to_str()?.to_owned())).unwrap_or_default()
    })
}

/// Kills the process, as the OOM killer does.
fn die() {
    // SAFETY: kill and getpid take and return plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // the signal ends this thread before the system call returns
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
