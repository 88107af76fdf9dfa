//! Content of memory: a pattern that a program leaves in it, and the search of a later program for what others have left.

use std::{
    error::Error,
    ffi::{c_int, c_uchar, c_uint, c_void},
    ptr::null_mut,
};

use clap::{Args, ValueEnum};
use libloading::Library;
use nix::sys::signal::{SigSet, Signal};

use crate::{
    Failed,
    allocate::{Block, Kind, allocate},
};

/// Sizes of the blocks in which all memory is allocated: large ones as long as there are any.
const BLOCKS: [usize; 2] = [64 << 20, 2 << 20];
/// Bytes that are copied at a time.
const PIECE: usize = 2 << 20;
/// Bytes after which the pattern repeats.
const LINE: usize = 64;
/// No `CUresult`: memory contains something else than expected.
pub const DIFFERENT: c_int = 10_000;
/// No `CUresult`: the search has found the pattern.
pub const FOUND: c_int = 10_001;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// Writes a pattern into new memory, and reads it back.
#[derive(Args)]
pub struct Leave {
    /// Chooses the pattern.
    #[arg(long)]
    seed: u64,
    /// Bytes, such as 64Mi.
    #[arg(long, default_value = "64Mi", value_parser = crate::bytes)]
    size: usize,
    /// Keeps it until SIGTERM or SIGINT, and never frees it.
    #[arg(long)]
    hold: bool,
}

/// Allocates all memory that it gets, and searches it for a pattern that another program has left.
#[derive(Args)]
pub struct Search {
    /// Chooses the pattern.
    #[arg(long)]
    seed: u64,
    /// Keeps the memory until SIGTERM or SIGINT.
    #[arg(long)]
    hold: bool,
}

/// The form of a function.
#[derive(Clone, Copy, ValueEnum)]
pub enum Form {
    /// With the legacy default stream.
    Plain,
    /// With the default stream of the thread.
    Thread,
    /// On a stream.
    Async,
    /// On a stream, of the thread if it is the default one.
    AsyncThread,
    /// `cuMemcpy`, which tells by itself what is of the host.
    Any,
    /// `cuMemcpy` with the default stream of the thread.
    AnyThread,
    /// `cuMemcpyAsync`.
    AnyAsync,
    /// `cuMemcpyAsync` on the thread's stream.
    AnyAsyncThread,
}

pub fn leave(cuda: &Library, wanted: &Leave) -> Result<(), Box<dyn Error>> {
    let signals = blocked()?;
    let Block::Pointer(pointer) = allocate(cuda, Kind::Plain, wanted.size)? else { return Err("no pointer".into()) };
    write(cuda, pointer, wanted.size, wanted.seed, Form::Plain)?;
    verify(cuda, pointer, wanted.size, wanted.seed, Form::Plain)?;
    println!("left={}MiB", wanted.size >> 20);
    if wanted.hold {
        signals.wait()?;
    }
    Ok(())
}

pub fn search(cuda: &Library, wanted: &Search) -> Result<(), Box<dyn Error>> {
    let signals = blocked()?;
    let blocks = all(cuda)?;
    let (searched, found) = found(cuda, &blocks, wanted.seed)?;
    println!("searched={}MiB found={found}", searched >> 20);
    if wanted.hold {
        signals.wait()?;
    }
    Ok(())
}

/// The first process of a container gets a signal without a handler only if it waits for it.
fn blocked() -> nix::Result<SigSet> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    signals.thread_block()?;
    Ok(signals)
}

/// Bytes of the pattern until it repeats, none of them zero.
fn line(seed: u64) -> [u8; LINE] {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3] | 1
    })
}

/// Writes the pattern from an address on.
pub fn write(cuda: &Library, to: u64, bytes: usize, seed: u64, form: Form) -> Result<(), Failed> {
    let pattern = line(seed).repeat(PIECE / LINE);
    pieces(bytes).try_for_each(|(at, count)| to_device(cuda, to + at, pattern.as_ptr().cast(), count, form))
}

/// Fails unless memory contains the pattern.
pub fn verify(cuda: &Library, from: u64, bytes: usize, seed: u64, form: Form) -> Result<(), Failed> {
    contains(cuda, from, bytes, &line(seed).repeat(PIECE / LINE), form)
}

/// Fails unless memory contains these bytes again and again.
pub fn contains(cuda: &Library, from: u64, bytes: usize, expected: &[u8], form: Form) -> Result<(), Failed> {
    let mut piece = vec![0; PIECE];
    for (at, count) in pieces(bytes) {
        to_host(cuda, piece.as_mut_ptr().cast(), from + at, count, form)?;
        if piece.get(..count) != expected.get(..count) {
            return Err(Failed("content", DIFFERENT));
        }
    }
    Ok(())
}

/// Offsets and sizes of the pieces of so many bytes.
fn pieces(bytes: usize) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes).step_by(PIECE).map(move |at| (at as u64, PIECE.min(bytes - at)))
}

/// Allocates until the driver refuses the smallest block; addresses and sizes.
pub fn all(cuda: &Library) -> Result<Vec<(u64, usize)>, Failed> {
    let mut blocks = Vec::new();
    for size in BLOCKS {
        loop {
            match allocate(cuda, Kind::Plain, size) {
                Ok(Block::Pointer(pointer)) => blocks.push((pointer, size)),
                Ok(_) | Err(Failed(_, OUT_OF_MEMORY)) => break,
                Err(failed) => return Err(failed),
            }
        }
    }
    Ok(blocks)
}

/// Bytes that were searched, and how often the line of the pattern is in them.
pub fn found(cuda: &Library, blocks: &[(u64, usize)], seed: u64) -> Result<(usize, usize), Failed> {
    let (line, nothing, mut piece) = (line(seed), vec![0; PIECE], vec![0; PIECE]);
    let (mut searched, mut count) = (0, 0);
    for (block, bytes) in blocks {
        for (at, size) in pieces(*bytes) {
            to_host(cuda, piece.as_mut_ptr().cast(), block + at, size, Form::Plain)?;
            searched += size;
            // most is empty, and compared at once
            if piece != nothing {
                count += piece.windows(LINE).filter(|window| **window == line).count();
            }
        }
    }
    Ok((searched, count))
}

/// Copies from the host.
fn to_device(cuda: &Library, to: u64, from: *const c_void, bytes: usize, form: Form) -> Result<(), Failed> {
    let (stream, address): (*mut c_void, u64) = (null_mut(), from.expose_provenance() as u64);
    match form {
        Form::Plain => cuda!(cuda, cuMemcpyHtoD_v2(to => u64, from => *const c_void, bytes => usize)),
        Form::Thread => cuda!(cuda, cuMemcpyHtoD_v2_ptds(to => u64, from => *const c_void, bytes => usize)),
        Form::Async => cuda!(cuda, cuMemcpyHtoDAsync_v2(
            to => u64, from => *const c_void, bytes => usize, stream => *mut c_void,
        )),
        Form::AsyncThread => cuda!(cuda, cuMemcpyHtoDAsync_v2_ptsz(
            to => u64, from => *const c_void, bytes => usize, stream => *mut c_void,
        )),
        _ => anywhere(cuda, to, address, bytes, form),
    }?;
    synchronize(cuda, form)
}

/// Copies to the host.
fn to_host(cuda: &Library, to: *mut c_void, from: u64, bytes: usize, form: Form) -> Result<(), Failed> {
    let (stream, address): (*mut c_void, u64) = (null_mut(), to.expose_provenance() as u64);
    match form {
        Form::Plain => cuda!(cuda, cuMemcpyDtoH_v2(to => *mut c_void, from => u64, bytes => usize)),
        Form::Thread => cuda!(cuda, cuMemcpyDtoH_v2_ptds(to => *mut c_void, from => u64, bytes => usize)),
        Form::Async => cuda!(cuda, cuMemcpyDtoHAsync_v2(
            to => *mut c_void, from => u64, bytes => usize, stream => *mut c_void,
        )),
        Form::AsyncThread => cuda!(cuda, cuMemcpyDtoHAsync_v2_ptsz(
            to => *mut c_void, from => u64, bytes => usize, stream => *mut c_void,
        )),
        _ => anywhere(cuda, address, from, bytes, form),
    }?;
    synchronize(cuda, form)
}

/// Copies on the device.
pub fn copy(cuda: &Library, to: u64, from: u64, bytes: usize, form: Form) -> Result<(), Failed> {
    let stream: *mut c_void = null_mut();
    match form {
        Form::Plain => cuda!(cuda, cuMemcpyDtoD_v2(to => u64, from => u64, bytes => usize)),
        Form::Thread => cuda!(cuda, cuMemcpyDtoD_v2_ptds(to => u64, from => u64, bytes => usize)),
        Form::Async => cuda!(cuda, cuMemcpyDtoDAsync_v2(
            to => u64, from => u64, bytes => usize, stream => *mut c_void,
        )),
        Form::AsyncThread => cuda!(cuda, cuMemcpyDtoDAsync_v2_ptsz(
            to => u64, from => u64, bytes => usize, stream => *mut c_void,
        )),
        _ => anywhere(cuda, to, from, bytes, form),
    }?;
    synchronize(cuda, form)
}

fn anywhere(cuda: &Library, to: u64, from: u64, bytes: usize, form: Form) -> Result<(), Failed> {
    let stream: *mut c_void = null_mut();
    match form {
        Form::AnyThread => cuda!(cuda, cuMemcpy_ptds(to => u64, from => u64, bytes => usize)),
        Form::AnyAsync => cuda!(cuda, cuMemcpyAsync(to => u64, from => u64, bytes => usize, stream => *mut c_void)),
        Form::AnyAsyncThread => cuda!(cuda, cuMemcpyAsync_ptsz(
            to => u64, from => u64, bytes => usize, stream => *mut c_void,
        )),
        _ => cuda!(cuda, cuMemcpy(to => u64, from => u64, bytes => usize)),
    }
}

/// Sets every byte, or every word of four bytes.
pub fn fill(cuda: &Library, to: u64, bytes: usize, value: u32, form: Form, words: bool) -> Result<(), Failed> {
    let (stream, byte): (*mut c_void, c_uchar) = (null_mut(), value.to_le_bytes()[0]);
    let count = if words { bytes / 4 } else { bytes };
    match (words, form) {
        (false, Form::Thread) => cuda!(cuda, cuMemsetD8_v2_ptds(to => u64, byte => c_uchar, count => usize)),
        (false, Form::Async) => cuda!(cuda, cuMemsetD8Async(
            to => u64, byte => c_uchar, count => usize, stream => *mut c_void,
        )),
        (false, Form::AsyncThread) => cuda!(cuda, cuMemsetD8Async_ptsz(
            to => u64, byte => c_uchar, count => usize, stream => *mut c_void,
        )),
        (false, _) => cuda!(cuda, cuMemsetD8_v2(to => u64, byte => c_uchar, count => usize)),
        (true, Form::Thread) => cuda!(cuda, cuMemsetD32_v2_ptds(to => u64, value => c_uint, count => usize)),
        (true, Form::Async) => cuda!(cuda, cuMemsetD32Async(
            to => u64, value => c_uint, count => usize, stream => *mut c_void,
        )),
        (true, Form::AsyncThread) => cuda!(cuda, cuMemsetD32Async_ptsz(
            to => u64, value => c_uint, count => usize, stream => *mut c_void,
        )),
        (true, _) => cuda!(cuda, cuMemsetD32_v2(to => u64, value => c_uint, count => usize)),
    }?;
    synchronize(cuda, form)
}

/// Waits for a copy on a stream: as a program has to before it reads the result.
fn synchronize(cuda: &Library, form: Form) -> Result<(), Failed> {
    match form {
        Form::Async | Form::AsyncThread | Form::AnyAsync | Form::AnyAsyncThread => cuda!(cuda, cuCtxSynchronize()),
        _ => Ok(()),
    }
}
