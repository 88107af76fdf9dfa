//! Launching kernels of one length for some time: which part of the time did they run?

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use libloading::Library;

use crate::{
    Failed,
    kernel::{BLOCKS, Handle, Kernel},
};

/// Kernels in a graph.
const GRAPH: u32 = 10;
/// Launches after which an asynchronous program waits for the GPU.
const RUN: u64 = 1000;

/// Kernels, one after another.
#[derive(Args)]
pub struct Launch {
    /// Microseconds of a kernel that has the GPU to itself.
    #[arg(long, default_value_t = 100)]
    micros: u32,
    /// Milliseconds for which kernels are launched.
    #[arg(long, default_value_t = 3000)]
    millis: u64,
    /// How.
    #[arg(long, value_enum, default_value_t = Mode::Async)]
    mode: Mode,
    /// Streams that are used in turn.
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Microseconds for which the program waits after each kernel that has ended, without another one.
    #[arg(long, default_value_t = 0)]
    idle: u64,
    /// Blocks of a kernel.
    #[arg(long, default_value_t = BLOCKS)]
    blocks: u32,
    /// Nanoseconds of an iteration, as another run has printed it; measured if it is not given.
    #[arg(long)]
    iteration: Option<f64>,
}

/// How a program launches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Many launches, and then it waits.
    Async,
    /// It waits after each launch.
    Each,
    /// A graph of ten kernels.
    Graph,
}

/// Prints part of the time, kernels, and nanoseconds of an iteration.
pub fn run(cuda: &Library, wanted: &Launch) -> Result<(), Failed> {
    let kernel = Kernel::load(cuda)?.with_blocks(wanted.blocks);
    let iteration = wanted.iteration.map_or_else(|| kernel.iteration(), Ok)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of iterations")]
    let iterations = (f64::from(wanted.micros) * 1000.0 / iteration) as u64;
    let streams: Vec<Handle> = (0..wanted.streams.max(1)).map(|_| kernel.stream()).collect::<Result<_, _>>()?;
    let graph = match (wanted.mode, streams.first()) {
        (Mode::Graph, Some(stream)) => Some(kernel.graph(iterations, GRAPH, *stream)?),
        _ => None,
    };
    let begin = Instant::now();
    let mut kernels = 0_u64;
    let mut in_turn = streams.iter().cycle();
    while begin.elapsed() < Duration::from_millis(wanted.millis) {
        let Some(stream) = in_turn.next() else { break };
        match graph {
            Some(graph) => kernel.launch_graph(graph, *stream)?,
            None => kernel.launch(iterations, *stream)?,
        }
        kernels += if graph.is_some() { GRAPH.into() } else { 1 };
        if wanted.mode == Mode::Each || wanted.idle > 0 || kernels.is_multiple_of(RUN) {
            streams.iter().try_for_each(|stream| kernel.synchronize(*stream))?;
        }
        if wanted.idle > 0 {
            std::thread::sleep(Duration::from_micros(wanted.idle));
        }
    }
    streams.iter().try_for_each(|stream| kernel.synchronize(*stream))?;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let worked = kernels as f64 * f64::from(wanted.micros) / 1e6;
    println!("percent={:.1} kernels={kernels} seconds={seconds:.2} iteration={iteration}", 100.0 * worked / seconds);
    Ok(())
}
