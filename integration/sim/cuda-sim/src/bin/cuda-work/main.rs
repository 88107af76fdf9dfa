//! `cuda-work`: allocates GPU memory through `libcuda.so.1` as a CUDA program does, and prints what it got.
#![allow(unsafe_code, reason = "calls C functions of CUDA, whose signatures are those of cuda.h")]

use std::{
    error::Error,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::{Path, PathBuf},
    process::ExitCode,
    ptr::null_mut,
};

use clap::{Parser, Subcommand};
use libloading::Library;

/// Calls a function of the library by its name, as a linked program does.
macro_rules! cuda {
    ($cuda:expr, $name:ident($($argument:expr => $ty:ty),* $(,)?)) => {{
        // SAFETY: the type is that of cuda.h, and the arguments are what it demands.
        let code = unsafe {
            let function = $cuda.get::<unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>(stringify!($name).as_bytes());
            function.map(|function| function($($argument),*))
        };
        match code {
            Ok(0) => Ok(()),
            Ok(code) => Err(Failed(stringify!($name), code)),
            Err(_) => Err(Failed(stringify!($name), 500)),
        }
    }};
}

mod allocate;
mod graph;
mod kernel;
mod launch;
mod residue;
mod script;
mod script_content;
mod script_graph;
mod script_import;
mod script_table;
mod time;
mod watch;

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
    /// Prints the memory that CUDA shows each time it changes, until stdin ends.
    Watch,
    /// Reads lines with a function's name, a CUDA version and flags, and prints which file and symbol `cuGetProcAddress` returns for each.
    Routes {
        /// Calls the function as CUDA 11 has it, which tells no status.
        #[arg(long)]
        v1: bool,
    },
    /// Loads a CUDA runtime and prints the answer of `cudaGetDeviceCount`, for which it asks CUDA's library for all that it uses.
    Runtime {
        /// Path of `libcudart.so`.
        file: PathBuf,
    },
    /// Reads calls, one a line, and prints the code of each.
    Script {
        /// Begins without a context.
        #[arg(long)]
        bare: bool,
    },
    /// Allocates until it has `count` blocks or CUDA refuses one.
    Allocate(allocate::Allocate),
    /// Leaves a pattern in GPU memory.
    Leave(residue::Leave),
    /// Searches GPU memory for what another program has left.
    Search(residue::Search),
    /// Launches kernels, and prints for which part of the time they ran.
    Launch(launch::Launch),
    /// Runs a kernel that writes to memory that does not exist, and prints the code of CUDA.
    Fault,
    /// Calls something many times, and prints nanoseconds of a call.
    Time(time::Time),
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
    if let Command::Runtime { file } = &arguments.command {
        return runtime(file);
    }
    // SAFETY: loading CUDA's library runs its constructors, as in every CUDA program.
    let cuda = unsafe { Library::new(&arguments.library) }?;
    let begun = match arguments.command {
        Command::Script { bare: true } => cuda!(cuda, cuInit(0 => c_uint)),
        _ => begin(&cuda),
    };
    match (arguments.command, begun) {
        (Command::Allocate(allocate::Allocate { all: false, .. }), Err(Failed(_, code))) => {
            // without memory for a context there is none for a block
            println!("granted=0 code={code}");
            Ok(())
        }
        (_, Err(failed)) => Err(failed.into()),
        (Command::Runtime { .. }, Ok(())) => Ok(()),
        (Command::Show, Ok(())) => Ok(show(&cuda)?),
        (Command::Watch, Ok(())) => watch::run(&cuda),
        (Command::Routes { v1 }, Ok(())) => routes(&cuda, v1),
        (Command::Script { .. }, Ok(())) => script::run(&cuda),
        (Command::Allocate(wanted), Ok(())) => allocate::run(&cuda, &wanted),
        (Command::Leave(wanted), Ok(())) => residue::leave(&cuda, &wanted),
        (Command::Search(wanted), Ok(())) => residue::search(&cuda, &wanted),
        (Command::Launch(wanted), Ok(())) => Ok(launch::run(&cuda, &wanted)?),
        (Command::Fault, Ok(())) => Ok(kernel::fault(&cuda)?),
        (Command::Time(wanted), Ok(())) => Ok(time::run(&cuda, wanted)?),
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

fn runtime(file: &Path) -> Result<(), Box<dyn Error>> {
    // SAFETY: loading a CUDA runtime runs its constructors, as in every program that uses it.
    let runtime = unsafe { Library::new(file) }?;
    let mut count = 0;
    match cuda!(runtime, cudaGetDeviceCount(&raw mut count => *mut c_int)) {
        Ok(()) => println!("devices={count} code=0"),
        Err(Failed(_, code)) => println!("devices=none code={code}"),
    }
    Ok(())
}

fn routes(cuda: &Library, v1: bool) -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (Some(name), Some(version), Some(flags)) = (words.next(), words.next(), words.next()) else { continue };
        let symbol = CString::new(name)?;
        let (mut function, mut status): (*const c_void, c_int) = (std::ptr::null(), -1);
        let (version, flags): (c_int, u64) = (version.parse()?, flags.parse()?);
        let answer = if v1 {
            cuda!(cuda, cuGetProcAddress(
                symbol.as_ptr() => *const c_char, &raw mut function => *mut *const c_void, version => c_int, flags => u64,
            ))
        } else {
            cuda!(cuda, cuGetProcAddress_v2(
                symbol.as_ptr() => *const c_char, &raw mut function => *mut *const c_void, version => c_int, flags => u64,
                &raw mut status => *mut c_int,
            ))
        };
        if let Err(Failed(_, code)) = answer {
            // such as a version that the driver does not know
            println!("{line} -> none error {code}");
            continue;
        }
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

/// Bytes of a quantity as Kubernetes writes it.
fn bytes(text: &str) -> Result<usize, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))).ok_or("a quantity")?;
    let number: usize = number.parse().map_err(|e| format!("such as 512Mi or 1Gi: {e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too much".into())
}
