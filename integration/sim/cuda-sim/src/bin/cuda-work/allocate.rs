//! Allocating and freeing.

use std::{
    error::Error,
    ffi::{c_int, c_uint, c_void},
    os::unix::process::CommandExt,
    process::Command,
    ptr::null_mut,
};

use clap::{Args, ValueEnum};
use libloading::Library;
use nix::sys::signal::{SigSet, Signal};

use crate::{Failed, begin, graph, show};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub struct Allocate {
    /// How.
    #[arg(long, value_enum, default_value_t = Kind::Plain)]
    kind: Kind,
    /// Bytes of a block, such as 64Mi or 1Gi.
    #[arg(long, default_value = "64Mi", value_parser = crate::bytes)]
    size: usize,
    /// Number of blocks.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Frees each block before it allocates the next one.
    #[arg(long)]
    free: bool,
    /// Ends with a failure if not every block was granted.
    #[arg(long)]
    pub all: bool,
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
    /// Replaces itself, with what it has, by a program that allocates so many blocks in this way.
    #[arg(long, value_enum)]
    exec: Option<Kind>,
}

/// A family of allocations.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
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
    /// `cuArray3DCreate`.
    Volume,
    /// `cuMemAllocAsync` on the stream of the calling thread.
    Thread,
    /// `cuArrayCreate` of before CUDA 3.2.
    Array32,
    /// `cuArray3DCreate` of before CUDA 3.2.
    Volume32,
    /// A graph that allocates, launched once for each block.
    Graph,
}

/// Something to free.
#[derive(Clone, Copy)]
pub enum Block {
    Pointer(u64),
    Stream(u64),
    Handle(u64),
    Array(*mut c_void),
    Mipmap(*mut c_void),
    /// The graph, what was instantiated, and the address that it has left allocated.
    Graph(*mut c_void, *mut c_void, u64),
}

pub fn run(cuda: &Library, wanted: &Allocate) -> Result<(), Box<dyn Error>> {
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
    if let Some(kind) = wanted.exec {
        return Err(exec(kind, wanted)?.into());
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

/// Becomes another program with the same process id; returns only an error.
fn exec(kind: Kind, wanted: &Allocate) -> Result<std::io::Error, Box<dyn Error>> {
    let kind = kind.to_possible_value().ok_or("a kind without a name")?;
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["allocate", "--kind", kind.get_name(), "--size", &wanted.size.to_string()]);
    Ok(program.arg("--count").arg(wanted.count.to_string()).exec())
}

pub fn allocate(cuda: &Library, kind: Kind, size: usize) -> Result<Block, Failed> {
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
        Kind::Thread => {
            let stream = null_mut();
            cuda!(cuda, cuMemAllocAsync_ptsz(&raw mut pointer => *mut u64, size => usize, stream => *mut c_void))?;
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
        Kind::Volume => {
            // width, height, depth, format float, one channel, no flags
            let descriptor: [usize; 5] = [size / 4096, 32, 32, 0x20 | 1 << 32, 0];
            cuda!(cuda, cuArray3DCreate_v2(&raw mut array => *mut *mut c_void, descriptor.as_ptr() => *const usize))?;
            Ok(Block::Array(array))
        }
        Kind::Array32 => {
            let width = u32::try_from(size / 4096).unwrap_or(u32::MAX);
            let descriptor: [c_uint; 4] = [width, 1024, 0x20, 1];
            cuda!(cuda, cuArrayCreate(&raw mut array => *mut *mut c_void, descriptor.as_ptr() => *const c_uint))?;
            Ok(Block::Array(array))
        }
        Kind::Volume32 => {
            let width = u32::try_from(size / 4096).unwrap_or(u32::MAX);
            let descriptor: [c_uint; 6] = [width, 32, 32, 0x20, 1, 0];
            cuda!(cuda, cuArray3DCreate(&raw mut array => *mut *mut c_void, descriptor.as_ptr() => *const c_uint))?;
            Ok(Block::Array(array))
        }
        Kind::Graph => {
            let (graph, executable, pointer) = graph::launched(cuda, size as u64)?;
            Ok(Block::Graph(graph, executable, pointer))
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

pub fn free(cuda: &Library, block: Block) -> Result<(), Failed> {
    match block {
        Block::Pointer(pointer) => cuda!(cuda, cuMemFree_v2(pointer => u64)),
        Block::Stream(pointer) => cuda!(cuda, cuMemFreeAsync(pointer => u64, null_mut() => *mut c_void)),
        Block::Handle(handle) => cuda!(cuda, cuMemRelease(handle => u64)),
        Block::Array(array) => cuda!(cuda, cuArrayDestroy(array => *mut c_void)),
        Block::Mipmap(array) => cuda!(cuda, cuMipmappedArrayDestroy(array => *mut c_void)),
        Block::Graph(graph, executable, pointer) => {
            cuda!(cuda, cuMemFree_v2(pointer => u64))?;
            graph::destroy_executable(cuda, executable)?;
            graph::destroy(cuda, graph)
        }
    }
}
