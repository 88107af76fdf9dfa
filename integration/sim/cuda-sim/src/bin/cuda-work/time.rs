//! How long calls take for the program.

use std::time::Instant;

use clap::{Args, ValueEnum};
use libloading::Library;

use crate::{
    Failed,
    allocate::{Kind, allocate, free},
    kernel::Kernel,
};

/// A call, many times.
#[derive(Args, Clone, Copy)]
pub struct Time {
    /// Which.
    #[arg(value_enum)]
    call: Call,
    /// How often.
    #[arg(long, default_value_t = 10_000)]
    count: u32,
    /// Allocations that exist meanwhile.
    #[arg(long, default_value_t = 0)]
    live: u32,
}

/// A call to measure.
#[derive(Clone, Copy, ValueEnum)]
enum Call {
    /// `cuMemAlloc` and `cuMemFree` of 1 KiB.
    Pair,
    /// `cuMemGetInfo`.
    Info,
    /// `cuLaunchKernel` of a kernel without iterations.
    Launch,
}

/// Prints nanoseconds of a call: the best of five rounds, which others on the machine disturbed least.
pub fn run(cuda: &Library, wanted: Time) -> Result<(), Failed> {
    let kernel = Kernel::load(cuda)?;
    let stream = kernel.stream()?;
    let live: Vec<_> = (0..wanted.live).map(|_| allocate(cuda, Kind::Plain, 1024)).collect::<Result<_, _>>()?;
    // names are looked up once: the table of symbols is not what is measured
    // SAFETY: the type is that of cuda.h.
    let info = unsafe { cuda.get::<unsafe extern "C" fn(*mut usize, *mut usize) -> i32>(b"cuMemGetInfo_v2") };
    // SAFETY: as above.
    let (alloc, release) = unsafe {
        (
            cuda.get::<unsafe extern "C" fn(*mut u64, usize) -> i32>(b"cuMemAlloc_v2"),
            cuda.get::<unsafe extern "C" fn(u64) -> i32>(b"cuMemFree_v2"),
        )
    };
    let (Ok(info), Ok(alloc), Ok(release)) = (info, alloc, release) else { return Err(Failed("symbols", 500)) };
    let launch = kernel.prepared()?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        for _ in 0..wanted.count {
            let code = match wanted.call {
                Call::Info => {
                    let (mut free, mut total) = (0, 0);
                    // SAFETY: writes to two numbers.
                    unsafe { info(&raw mut free, &raw mut total) }
                }
                Call::Pair => {
                    let mut pointer = 0;
                    // SAFETY: writes to one number, and frees what was allocated.
                    unsafe { alloc(&raw mut pointer, 1024) | release(pointer) }
                }
                Call::Launch => launch(0, stream),
            };
            if code != 0 {
                return Err(Failed("call", code));
            }
        }
        // what is launched and has not run is not done
        kernel.synchronize(stream)?;
        let each = begin.elapsed().as_nanos();
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of seconds")]
        let each = each as f64 / f64::from(wanted.count);
        best = best.min(each);
    }
    live.into_iter().try_for_each(|block| free(cuda, block))?;
    println!("nanoseconds={best:.1}");
    Ok(())
}
