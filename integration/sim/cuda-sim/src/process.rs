//! The state of this process: devices, contexts, and what they hold.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::{CStr, OsStr, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use silicon::{
    Machine, Store,
    attach::{self, Attachment, attach},
    clients::Client,
    mps, paths,
};

use crate::abi::{
    CuResult, DEVICE_UNAVAILABLE, Failure, Handle, INVALID_CONTEXT, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED,
    OUT_OF_MEMORY, UNKNOWN,
};
pub use crate::blocks::BLOCK;
use crate::{
    content::Content,
    engine::Engine,
    faults::{self, Faults},
    graphs::Graphs,
    imports::Imports,
    pieces::Pieces,
    streams::Streams,
};

/// Bytes that the first context of a process takes on a device. Chosen; on hardware 250 to 520 MiB by GPU, driver and loaded modules.
pub const CONTEXT: u64 = 300 << 20;
/// The first address that is given out. The kernel maps a program's files, heap and stacks elsewhere.
pub const FIRST_ADDRESS: u64 = 0x2000_0000_0000;
/// From this size in bytes on an allocation has blocks of its own.
const LARGE: u64 = 1 << 20;

/// An allocation.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub device: usize,
    pub bytes: u64,
    /// The context in which it was allocated, with which it ends.
    pub context: usize,
    /// Index of the pool that it is of, with which it ends instead.
    pub pool: Option<usize>,
}

/// An array.
#[derive(Clone, Copy, Debug)]
pub struct Array {
    pub device: usize,
    pub bytes: u64,
    /// The context in which it was created, with which it ends.
    pub context: usize,
}

/// A pool of one device.
#[derive(Clone, Debug)]
pub struct Pool {
    pub device: usize,
    pub pieces: Pieces,
    /// Where an allocation is in the pieces, by its address.
    pub places: BTreeMap<u64, u64>,
    /// The most bytes that it has had.
    pub high: u64,
    pub threshold: u64,
    pub is_default: bool,
}

/// Physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// `None` for memory of the host.
    pub device: Option<usize>,
    pub bytes: u64,
    pub handles: u32,
    pub mappings: u32,
}

/// Physical memory by handle, and mappings by address.
#[derive(Debug, Default)]
pub struct VirtualMemory {
    pub memory: BTreeMap<u64, Memory>,
    pub mappings: BTreeMap<u64, (u64, u64)>,
}

/// A GPU or MIG device.
#[derive(Clone, Debug)]
pub struct Identity {
    pub gpu: u32,
    pub instance: Option<(u32, u32)>,
    pub name: String,
    pub uuid: [u8; 16],
    pub gpu_uuid: [u8; 16],
    pub capability: (c_int, c_int),
}

/// A device of this process.
pub struct DeviceState {
    pub identity: Identity,
    /// Contexts on it.
    pub contexts: u32,
    /// Bytes of allocations that take blocks of their own.
    pub large: u64,
    /// Bytes of allocations that share blocks.
    pub small: u64,
    attachment: Option<Attachment>,
    /// The connection to the MPS server, as long as the process lives.
    server: Option<mps::Connection>,
    /// What runs the kernels.
    engine: Option<Engine>,
}

impl DeviceState {
    /// Bytes that it takes of the device.
    fn physical(&self) -> u64 {
        let context = if self.contexts == 0 { 0 } else { CONTEXT };
        context + self.large + self.small.next_multiple_of(BLOCK)
    }

    /// Adds an allocation of this size in bytes.
    pub fn add(&mut self, bytes: u64) {
        match bytes {
            LARGE.. => self.large += bytes.next_multiple_of(BLOCK),
            _ => self.small += bytes,
        }
    }

    /// Removes an allocation of this size in bytes.
    pub fn remove(&mut self, bytes: u64) {
        match bytes {
            LARGE.. => self.large = self.large.saturating_sub(bytes.next_multiple_of(BLOCK)),
            _ => self.small = self.small.saturating_sub(bytes),
        }
    }
}

/// A context: a number that is its handle, and a device.
pub struct Context {
    pub device: usize,
    pub primary: bool,
    /// How often the primary one was retained more than it was released.
    pub retained: u32,
}

/// Everything that this process has.
pub struct Process {
    pid: u32,
    pub store: Store,
    faults: Option<Faults>,
    pub devices: Vec<DeviceState>,
    pub contexts: BTreeMap<usize, Context>,
    pub allocations: BTreeMap<u64, Allocation>,
    pub arrays: BTreeMap<usize, Array>,
    pub pools: BTreeMap<usize, Pool>,
    pub virtual_memory: VirtualMemory,
    pub streams: Streams,
    pub graphs: Graphs,
    pub imports: Imports,
    pub content: Content,
    next_handle: usize,
    next_address: u64,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Exports functions: the body sees the process and ends with success or a failure.
macro_rules! cuda {
    ($(fn $name:ident($process:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::CuResult {
            $crate::process::answer(stringify!($name), |$process: &mut $crate::process::Process| $body)
        }
    )*};
}
pub(crate) use cuda;

/// Runs the body of a function of an initialised library, unless a fault hits the function.
pub fn answer(name: &str, body: impl FnOnce(&mut Process) -> Result<(), Failure>) -> CuResult {
    with(name, body).map_or_else(|Failure(code)| code, |()| 0)
}

/// The state of an initialised library. A child after `fork` has none: CUDA cannot be used there unless it was initialised there.
fn with(name: &str, body: impl FnOnce(&mut Process) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = process.as_mut().filter(|process| process.pid == std::process::id()).ok_or(NOT_INITIALIZED)?;
    let Some(faults) = &process.faults else { return body(process) };
    let ends = faults.before(&process.store, name)?;
    let answer = body(process);
    if ends {
        faults::end();
    }
    answer
}

/// `cuInit` with what finds the devices.
pub fn initialize(visible: impl FnOnce(&Machine) -> Vec<Identity>) -> Result<(), Failure> {
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = process.as_ref() {
        return if known.pid == std::process::id() { Ok(()) } else { Err(NOT_INITIALIZED) };
    }
    let store = Store::new(state_folder());
    let machine = store.read().map_err(|_| NO_DEVICE)?;
    let state = |identity| DeviceState {
        identity,
        contexts: 0,
        large: 0,
        small: 0,
        attachment: None,
        server: None,
        engine: None,
    };
    let devices: Vec<DeviceState> = visible(&machine).into_iter().map(state).collect();
    if devices.is_empty() {
        return Err(NO_DEVICE);
    }
    *process = Some(Process {
        pid: std::process::id(),
        faults: Faults::of(store.dir()),
        store,
        devices,
        contexts: BTreeMap::new(),
        allocations: BTreeMap::new(),
        arrays: BTreeMap::new(),
        pools: BTreeMap::new(),
        virtual_memory: VirtualMemory::default(),
        streams: Streams::default(),
        graphs: Graphs::default(),
        imports: Imports::default(),
        content: Content::default(),
        next_handle: 0x1000,
        next_address: FIRST_ADDRESS,
    });
    Ok(())
}

impl Process {
    /// The device with this ordinal.
    pub fn device(&mut self, ordinal: i32) -> Result<&mut DeviceState, Failure> {
        let at = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        self.devices.get_mut(at).ok_or(INVALID_DEVICE)
    }

    /// Ordinal of the device of the calling thread's context.
    pub fn current_device(&self) -> Result<usize, Failure> {
        self.contexts.get(&current()).map(|context| context.device).ok_or(INVALID_CONTEXT)
    }

    /// A new number for an object.
    pub fn handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// A new range of addresses.
    pub fn address(&mut self, bytes: u64) -> u64 {
        let address = self.next_address;
        self.next_address += bytes.max(1).next_multiple_of(BLOCK);
        address
    }

    /// The end of the addresses that were given out.
    pub fn end_of_addresses(&self) -> u64 {
        self.next_address
    }

    /// Bytes of a device, and of these the free ones.
    pub fn memory(&self, ordinal: usize) -> Result<(u64, u64), Failure> {
        let device = self.devices.get(ordinal).ok_or(INVALID_DEVICE)?;
        let client = client(&device.identity, 0);
        let (total, free) = attach::memory(&self.store, &client).map_err(|_| UNKNOWN)?;
        let own = device.physical();
        Ok((total, free.saturating_sub(own)))
    }

    /// What runs the kernels of the current device.
    pub fn engine(&mut self) -> Result<&Engine, Failure> {
        let ordinal = self.current_device()?;
        let device = self.devices.get_mut(ordinal).ok_or(INVALID_DEVICE)?;
        Ok(match &mut device.engine {
            Some(engine) => engine,
            unknown => {
                let slot = device.attachment.as_ref().map(Attachment::slot);
                let variable = std::env::var(mps::THREADS_VARIABLE).ok();
                let threads = device.server.as_ref().map(|server| server.threads(variable.as_deref()));
                let of = (device.identity.gpu, device.identity.instance);
                unknown.insert(Engine::open(&self.store, of, slot, threads).map_err(|_| UNKNOWN)?)
            }
        })
    }

    /// Changes what this process holds on a device; the change is undone if the device has not enough memory.
    pub fn change(&mut self, ordinal: usize, change: impl FnOnce(&mut DeviceState)) -> Result<(), Failure> {
        let Self { store, devices, .. } = self;
        let device = devices.get_mut(ordinal).ok_or(INVALID_DEVICE)?;
        let before = (device.contexts, device.large, device.small);
        change(device);
        let settled = settle(store, device);
        if settled.is_err() {
            (device.contexts, device.large, device.small) = before;
        }
        self.free_content();
        settled
    }
}

/// Tells the simulated device what this process holds.
fn settle(store: &Store, device: &mut DeviceState) -> Result<(), Failure> {
    let wanted = device.physical();
    let answer = match &mut device.attachment {
        Some(attachment) => attachment.resize(store, wanted),
        None if wanted == 0 => return Ok(()),
        None => {
            device.server = server(store, &device.identity)?;
            let attached = attach(store, &client(&device.identity, wanted), &[]);
            attached.map(|attachment| device.attachment = Some(attachment))
        }
    };
    let variable = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").ok();
    let limit = device.server.as_ref().and_then(|server| server.memory(variable.as_deref()));
    let limited = limit.is_some_and(|limit| device.large + device.small > limit);
    match answer {
        Ok(()) if limited => Err(OUT_OF_MEMORY),
        Ok(()) => Ok(()),
        Err(attach::Error::OutOfMemory { .. }) => Err(OUT_OF_MEMORY),
        Err(_) => Err(UNKNOWN),
    }
}

/// The connection to the MPS server, if there is one. A GPU that is exclusive to one process cannot be used without.
fn server(store: &Store, identity: &Identity) -> Result<Option<mps::Connection>, Failure> {
    let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    if let Some(server) = pipes.and_then(|pipes| mps::Connection::open(pipes.as_ref()).ok()) {
        return Ok(Some(server));
    }
    let machine = store.read().map_err(|_| UNKNOWN)?;
    let exclusive = machine.gpu(identity.gpu).is_ok_and(|gpu| gpu.compute_mode == mps::EXCLUSIVE_PROCESS);
    if exclusive { Err(DEVICE_UNAVAILABLE) } else { Ok(None) }
}

fn client(identity: &Identity, memory: u64) -> Client {
    let name = std::env::current_exe().ok().and_then(|exe| Some(exe.file_name()?.to_str()?.to_owned()));
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    Client {
        pid: std::process::id(),
        gpu: identity.gpu,
        instance: identity.instance,
        memory,
        name: name.unwrap_or_default(),
        owner: std::env::var("POD_NAME").ok().or_else(host).unwrap_or_default(),
        cgroups: Vec::new(),
    }
}

/// The calling thread's context.
pub fn current() -> usize {
    CURRENT.get()
}

/// Sets the calling thread's context.
pub fn set_current(context: usize) {
    CURRENT.set(context);
}

/// The number of an object.
pub fn number(handle: Handle) -> usize {
    handle.addr()
}

/// An object as the caller sees it.
pub fn handle(number: usize) -> Handle {
    std::ptr::without_provenance_mut(number)
}

/// From the variable, else from this library's path in a driver root, else a container's.
fn state_folder() -> PathBuf {
    let variable = std::env::var_os(paths::STATE_VARIABLE).filter(|v| !v.is_empty());
    let by_place = || own_path().and_then(|own| paths::state_of(&own)).filter(|state| state.exists());
    variable.map(PathBuf::from).or_else(by_place).unwrap_or_else(|| paths::STATE_IN_CONTAINER.into())
}

/// The file that this library was loaded from.
fn own_path() -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only reads the address, which is one of this library's functions, and fills `info`.
    let found = unsafe { libc::dladdr((&raw const PROCESS).cast::<c_void>(), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: after success dli_fname is a NUL-terminated path that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or_else(|_| path.into()))
}
