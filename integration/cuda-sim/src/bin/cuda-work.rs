//! `cuda-work`: allocates GPU memory through `libcuda.so.1` as a CUDA program does, and prints what it got.
#![allow(unsafe_code, reason = "calls C functions of CUDA, whose signatures are those of cuda.h")]

use std::{
    error::Error,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    process::ExitCode,
    ptr::null_mut,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use libloading::Library;
use nix::sys::signal::{SigSet, Signal};

/// A CUDA program.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The library.
    #[arg(long, default_value = "libcuda.so.1")]
    library: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the device, and its memory as CUDA shows it.
    Show,
    /// Reads lines with a function's name, a CUDA version and flags, and prints which file and symbol `cuGetProcAddress` returns for each.
    Routes,
    /// Allocates until it has `count` blocks or CUDA refuses one.
    Allocate(Allocate),
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
struct Allocate {
    /// How.
    #[arg(long, value_enum, default_value_t = Kind::Plain)]
    kind: Kind,
    /// Bytes of a block, such as 64Mi or 1Gi.
    #[arg(long, default_value = "64Mi", value_parser = bytes)]
    size: usize,
    /// Number of blocks.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Frees each block before it allocates the next one.
    #[arg(long)]
    free: bool,
    /// Ends with a failure if not every block was granted.
    #[arg(long)]
    all: bool,
    /// Keeps what it has until SIGTERM or SIGINT.
    #[arg(long)]
    hold: bool,
    /// Frees everything, or resets the device, and then allocates as many blocks in this way.
    #[arg(long, value_enum)]
    then: Option<Kind>,
    /// Resets the device before `then` instead of freeing.
    #[arg(long, requires = "then")]
    reset: bool,
    /// Forks after the allocations, and the child allocates as well, which CUDA does not permit.
    #[arg(long)]
    fork: bool,
}

/// A family of allocations.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// `cuMemAlloc`.
    Plain,
    /// `cuMemAllocPitch`.
    Pitch,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`.
    Async,
    /// `cuMemCreate`.
    Virtual,
    /// `cuArrayCreate`.
    Array,
    /// `cuMipmappedArrayCreate`.
    Mipmap,
}

/// A function that failed, with its `CUresult`.
#[derive(Debug)]
struct Failed(&'static str, c_int);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(call, code) = self;
        write!(f, "{call}: CUDA error {code}")
    }
}

impl Error for Failed {}

/// Calls a function of the library by its name, as a linked program does.
macro_rules! cuda {
    ($cuda:expr, $name:ident($($argument:expr => $ty:ty),* $(,)?)) => {{
        // SAFETY: the type is that of cuda.h, and the arguments are what it demands.
        let code = unsafe {
            let function = $cuda.get::<unsafe extern "C" fn($($ty),*) -> c_int>(stringify!($name).as_bytes());
            function.map(|function| function($($argument),*))
        };
        match code {
            Ok(0) => Ok(()),
            Ok(code) => Err(Failed(stringify!($name), code)),
            Err(_) => Err(Failed(stringify!($name), 500)),
        }
    }};
}

/// Something to free.
#[derive(Clone, Copy)]
enum Block {
    Pointer(u64),
    Stream(u64),
    Handle(u64),
    Array(*mut c_void),
    Mipmap(*mut c_void),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda-work: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // SAFETY: loading CUDA's library runs its constructors, as in every CUDA program.
    let cuda = unsafe { Library::new(&arguments.library) }?;
    match (arguments.command, begin(&cuda)) {
        (Command::Allocate(Allocate { all: false, .. }), Err(Failed(_, code))) => {
            // without memory for a context there is none for a block
            println!("granted=0 code={code}");
            Ok(())
        }
        (_, Err(failed)) => Err(failed.into()),
        (Command::Show, Ok(())) => Ok(show(&cuda)?),
        (Command::Routes, Ok(())) => routes(&cuda),
        (Command::Allocate(allocate), Ok(())) => work(&cuda, &allocate),
    }
}

/// Initialises CUDA and makes the primary context of device 0 current.
fn begin(cuda: &Library) -> Result<(), Failed> {
    cuda!(cuda, cuInit(0 => c_uint))?;
    let mut context: *mut c_void = null_mut();
    cuda!(cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut *mut c_void, 0 => c_int))?;
    cuda!(cuda, cuCtxSetCurrent(context => *mut c_void))
}

fn show(cuda: &Library) -> Result<(), Failed> {
    let (mut free, mut total, mut of_device) = (0, 0, 0);
    cuda!(cuda, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize))?;
    cuda!(cuda, cuDeviceTotalMem_v2(&raw mut of_device => *mut usize, 0 => c_int))?;
    println!("total={}MiB free={}MiB device={}MiB", total >> 20, free >> 20, of_device >> 20);
    Ok(())
}

fn routes(cuda: &Library) -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (Some(name), Some(version), Some(flags)) = (words.next(), words.next(), words.next()) else { continue };
        let symbol = CString::new(name)?;
        let (mut function, mut status): (*const c_void, c_int) = (std::ptr::null(), -1);
        let (version, flags): (c_int, u64) = (version.parse()?, flags.parse()?);
        cuda!(cuda, cuGetProcAddress_v2(
            symbol.as_ptr() => *const c_char, &raw mut function => *mut *const c_void, version => c_int, flags => u64,
            &raw mut status => *mut c_int,
        ))?;
        println!("{line} -> {} {status}", place(function).unwrap_or_else(|| "none".to_owned()));
    }
    Ok(())
}

/// The file and the symbol of an address.
fn place(function: *const c_void) -> Option<String> {
    // SAFETY: Dl_info is plain data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only reads the address, and fills `info`.
    if function.is_null() || unsafe { libc::dladdr(function, &raw mut info) } == 0 {
        return None;
    }
    // SAFETY: a name that is not null is NUL-terminated and lives as long as the library is loaded.
    let text =
        |name: *const c_char| (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    Some(format!("{} {}", text(info.dli_fname)?, text(info.dli_sname)?))
}

fn work(cuda: &Library, wanted: &Allocate) -> Result<(), Box<dyn Error>> {
    // the first process of a container gets a signal without a handler only if it waits for it
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    signals.thread_block()?;
    let mut held = Vec::new();
    let (mut granted, mut refused) = (0, None);
    for _ in 0..wanted.count {
        match allocate(cuda, wanted.kind, wanted.size) {
            Ok(block) if wanted.free => free(cuda, block)?,
            Ok(block) => held.push(block),
            Err(failed) => {
                refused = Some(failed);
                break;
            }
        }
        granted += 1;
    }
    let code = refused.as_ref().map_or(0, |Failed(_, code)| *code);
    println!("granted={granted} code={code}");
    show(cuda)?;
    if wanted.fork {
        fork(cuda, wanted)?;
    }
    if let Some(kind) = wanted.then {
        let before = std::mem::take(&mut held);
        if wanted.reset {
            cuda!(cuda, cuDevicePrimaryCtxReset_v2(0 => c_int))?;
            begin(cuda)?;
        } else {
            before.into_iter().try_for_each(|block| free(cuda, block))?;
        }
        let again: Vec<Result<Block, Failed>> = (0..wanted.count).map(|_| allocate(cuda, kind, wanted.size)).collect();
        let code = again.iter().find_map(|block| block.as_ref().err()).map_or(0, |Failed(_, code)| *code);
        held = again.into_iter().flatten().collect();
        println!("then granted={} code={code}", held.len());
    }
    if let Some(failed) = refused.filter(|_| wanted.all) {
        return Err(failed.into());
    }
    if wanted.hold {
        signals.wait()?;
    }
    held.into_iter().try_for_each(|block| free(cuda, block))?;
    Ok(())
}

fn fork(cuda: &Library, wanted: &Allocate) -> Result<(), Box<dyn Error>> {
    // SAFETY: this program has one thread.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => {
            let code = allocate(cuda, wanted.kind, wanted.size).map_or_else(|Failed(_, code)| code, |_| 0);
            println!("child code={code}");
            std::process::exit(0);
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None)?;
            Ok(())
        }
    }
}

fn allocate(cuda: &Library, kind: Kind, size: usize) -> Result<Block, Failed> {
    let (mut pointer, mut array): (u64, *mut c_void) = (0, null_mut());
    match kind {
        Kind::Plain => {
            cuda!(cuda, cuMemAlloc_v2(&raw mut pointer => *mut u64, size => usize))?;
            Ok(Block::Pointer(pointer))
        }
        Kind::Managed => {
            cuda!(cuda, cuMemAllocManaged(&raw mut pointer => *mut u64, size => usize, 1 => c_uint))?;
            Ok(Block::Pointer(pointer))
        }
        Kind::Pitch => {
            let mut pitch = 0;
            cuda!(cuda, cuMemAllocPitch_v2(
                &raw mut pointer => *mut u64, &raw mut pitch => *mut usize, size / 1024 => usize, 1024 => usize, 4 => c_uint,
            ))?;
            Ok(Block::Pointer(pointer))
        }
        Kind::Async => {
            let stream = null_mut();
            cuda!(cuda, cuMemAllocAsync(&raw mut pointer => *mut u64, size => usize, stream => *mut c_void))?;
            Ok(Block::Stream(pointer))
        }
        Kind::Virtual => {
            // kind pinned, no handle types, location: device 0
            let properties: [c_int; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
            cuda!(cuda, cuMemCreate(
                &raw mut pointer => *mut u64, size => usize, properties.as_ptr() => *const c_int, 0 => u64,
            ))?;
            Ok(Block::Handle(pointer))
        }
        Kind::Array => {
            // width, height, format float, one channel
            let descriptor: [usize; 3] = [size / 4096, 1024, 0x20 | 1 << 32];
            cuda!(cuda, cuArrayCreate_v2(&raw mut array => *mut *mut c_void, descriptor.as_ptr() => *const usize))?;
            Ok(Block::Array(array))
        }
        Kind::Mipmap => {
            // width, height, depth, format float, one channel, no flags; one level
            let descriptor: [usize; 5] = [size / 4096, 1024, 0, 0x20 | 1 << 32, 0];
            cuda!(cuda, cuMipmappedArrayCreate(
                &raw mut array => *mut *mut c_void, descriptor.as_ptr() => *const usize, 1 => c_uint,
            ))?;
            Ok(Block::Mipmap(array))
        }
    }
}

fn free(cuda: &Library, block: Block) -> Result<(), Failed> {
    match block {
        Block::Pointer(pointer) => cuda!(cuda, cuMemFree_v2(pointer => u64)),
        Block::Stream(pointer) => cuda!(cuda, cuMemFreeAsync(pointer => u64, null_mut() => *mut c_void)),
        Block::Handle(handle) => cuda!(cuda, cuMemRelease(handle => u64)),
        Block::Array(array) => cuda!(cuda, cuArrayDestroy(array => *mut c_void)),
        Block::Mipmap(array) => cuda!(cuda, cuMipmappedArrayDestroy(array => *mut c_void)),
    }
}

/// Bytes of a quantity as Kubernetes writes it.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))).ok_or("a quantity")?;
    let number: usize = number.parse().map_err(|e| format!("such as 512Mi or 1Gi: {e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too much".into())
}
