//! What NVML says of GPU 0: an independent view of its memory.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

use libloading::Library;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// GPU 0.
#[derive(Clone)]
pub struct Gpu {
    library: Arc<Library>,
    /// Address of NVML's object.
    device: usize,
}

impl Gpu {
    /// Opens NVML.
    pub fn open(library: &str) -> Result<Self, String> {
        // SAFETY: loading NVML runs its constructors, as in every program that uses it.
        let library = unsafe { Library::new(library) }.map_err(|e| format!("{library}: {e}"))?;
        let mut device: *mut c_void = null_mut();
        // SAFETY: the types are those of nvml.h.
        let code = unsafe {
            let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2").map_err(|e| e.to_string())?;
            let find =
                library.get::<unsafe extern "C" fn(u32, *mut *mut c_void) -> c_int>(b"nvmlDeviceGetHandleByIndex_v2");
            let find = find.map_err(|e| e.to_string())?;
            init() | find(0, &raw mut device)
        };
        if code != 0 {
            return Err(format!("NVML finds no GPU: error {code}"));
        }
        Ok(Self { library: Arc::new(library), device: device.expose_provenance() })
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let mut memory = Memory::default();
        // SAFETY: the type is that of nvml.h, and NVML writes to `memory`.
        unsafe {
            let info =
                self.library.get::<unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int>(b"nvmlDeviceGetMemoryInfo");
            info.map(|info| info(std::ptr::with_exposed_provenance_mut(self.device), &raw mut memory))
        }
        .map_or(0, |_| memory.used)
    }

    /// A text about the GPU, by the name of the function.
    pub fn text(&self, function: &str) -> String {
        let mut text = [0_u8; 96];
        // SAFETY: the type is that of nvml.h, and NVML writes at most 96 bytes.
        let code = unsafe {
            let get =
                self.library.get::<unsafe extern "C" fn(*mut c_void, *mut c_char, u32) -> c_int>(function.as_bytes());
            get.map(|get| get(std::ptr::with_exposed_provenance_mut(self.device), text.as_mut_ptr().cast(), 96))
        };
        let text = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned());
        text.ok().filter(|_| code.is_ok_and(|code| code == 0)).unwrap_or_default()
    }

    /// The driver's version.
    pub fn driver(&self) -> String {
        let mut text = [0_u8; 96];
        // SAFETY: as above.
        unsafe {
            let get =
                self.library.get::<unsafe extern "C" fn(*mut c_char, u32) -> c_int>(b"nvmlSystemGetDriverVersion");
            drop(get.map(|get| get(text.as_mut_ptr().cast(), 96)));
        }
        CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Begins to watch the use of memory.
    pub fn watch(&self) -> Watch {
        let (gpu, base) = (self.clone(), self.used());
        let (most, ended) = (Arc::new(AtomicU64::new(base)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (Arc::clone(&most), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            while !end.load(SeqCst) {
                seen.fetch_max(gpu.used(), SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Watch { base, most, ended, thread: Some(thread) }
    }
}

/// The most memory in use while it lives.
pub struct Watch {
    base: u64,
    most: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Bytes in use at most, less those at the begin.
    pub fn end(mut self) -> u64 {
        self.ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        self.most.load(SeqCst).saturating_sub(self.base)
    }
}
