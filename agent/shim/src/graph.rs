//! Graphs that allocate memory. Their memory is reserved in the ledger before it is reserved on the GPU, which is when a graph is launched or uploaded.
//!
//! By how much the driver grows is known only at most: graphs of a stream share memory. So a graph is uploaded before it is launched for the first
//! time in a stream: that takes the memory, runs nothing, and can be undone. A graph that was not refused then is launched.
//!
//! The driver can wait in a launch, an upload or a synchronisation for another thread of the program, so no lock is held meanwhile. The order is:
//! 1. Under [`KNOWN`]: the launch is announced ([`Launch::begin`]), then the count of changes is read, and the growth reserved and counted.
//! 2. Without a lock: upload, and launch. What other threads trim or take meanwhile stays counted as far as an announced launch may need it.
//! 3. The launch ends, and the ledger is made to agree with the driver, which releases what was reserved too much, also for memory that two
//!    threads' graphs turned out to share.
//! 4. Under [`KNOWN`]: the graph is known as ready, unless the count of changes is another one than in the first step.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use gputenancy_ledger::Denied;

use crate::{
    abi::{CuResult, Handle, InstantiateParameters, OUT_OF_MEMORY, SUCCESS},
    ended,
    graph_memory::{self, Launch},
    graph_nodes::Allocations,
    lock::Lock,
    pool,
    real::driver,
    share::Share,
    stream::Stream,
};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// An executable graph with allocations.
struct Executable {
    allocations: Allocations,
    /// Differs from that of an earlier one with the same handle.
    number: u64,
    /// The stream in which its memory is reserved, and the count of changes then.
    ready: Option<(Stream, u64)>,
    /// It was launched, and may have left something allocated.
    launched: bool,
}

/// Executable graphs with allocations, and the memory of streams.
struct Known {
    executables: BTreeMap<usize, Executable>,
    /// Bytes that the graphs of a stream share, as of this count of changes.
    shared: Vec<(Stream, u64)>,
    shared_at: u64,
    /// Launches that have left something allocated, and changes of the stream: both take perhaps what graphs shared.
    taken: u64,
    /// The stream of the last launch or upload.
    last: Option<Stream>,
    /// Number of executables so far.
    created: u64,
}

impl Known {
    const NOTHING: Self =
        Self { executables: BTreeMap::new(), shared: Vec::new(), shared_at: 0, taken: 0, last: None, created: 0 };
}

static KNOWN: Lock<Known> = Lock::new(Known::NOTHING);
/// A graph with allocations was instantiated.
static ANY: AtomicBool = AtomicBool::new(false);

/// Forgets the graphs of the parent, in a child process.
pub fn forget() {
    KNOWN.reset(Known::NOTHING);
    ANY.store(false, Relaxed);
}

/// Instantiates a graph.
pub fn instantiate(executable: *mut Handle, graph: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    let code = real();
    if code == SUCCESS && Share::of_container().is_some() {
        // SAFETY: the driver has just written to it.
        remember(unsafe { executable.read() }, Allocations::of(graph));
    }
    code
}

/// Instantiates a graph, and perhaps uploads it.
pub fn instantiate_with(
    executable: *mut Handle,
    graph: Handle,
    parameters: *const InstantiateParameters,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: CUDA demands a pointer to the parameters; null is left to the driver.
    let uploads = unsafe { parameters.as_ref() }.is_some_and(|of| of.flags & UPLOAD != 0);
    let Some(share) = Share::of_container().filter(|_| uploads) else { return instantiate(executable, graph, real) };
    let allocations = Allocations::of(graph);
    let Some(device) = allocations.device else { return instantiate(executable, graph, real) };
    graph_memory::watch(device);
    let bytes = allocations.bytes();
    if pool::reserve(share, bytes).is_err() {
        return OUT_OF_MEMORY;
    }
    let launch = Launch::begin(share, bytes);
    graph_memory::count(bytes);
    let code = real();
    let beyond = graph_memory::settle(share);
    drop(launch);
    if code != SUCCESS {
        return code;
    }
    // SAFETY: the driver has just written to it.
    let created = unsafe { executable.read() };
    if beyond && share.is_exceeded() {
        driver!(cuGraphExecDestroy(created => Handle));
        graph_memory::trim(share);
        return OUT_OF_MEMORY;
    }
    remember(created, allocations);
    code
}

fn remember(executable: Handle, allocations: Allocations) {
    let Some(device) = allocations.device else {
        if ANY.load(Relaxed) {
            // the handle of one that is gone
            KNOWN.with(|known| drop(known.executables.remove(&executable.addr())));
        }
        return;
    };
    graph_memory::watch(device);
    KNOWN.with(|known| {
        known.created = known.created.wrapping_add(1);
        let new = Executable { allocations, number: known.created, ready: None, launched: false };
        known.executables.insert(executable.addr(), new);
    });
    ANY.store(true, Relaxed);
}

/// Destroys an executable graph; the driver keeps its memory.
pub fn destroy(executable: Handle, real: impl FnOnce() -> CuResult) -> CuResult {
    if !ANY.load(Relaxed) {
        return real();
    }
    // before: afterwards another thread can get the same handle
    let known = KNOWN.with(|known| known.executables.remove(&executable.addr()));
    let code = real();
    if let Some(of) = known.filter(|_| code != SUCCESS) {
        KNOWN.with(|known| {
            known.executables.entry(executable.addr()).or_insert(of);
        });
    }
    code
}

/// Launches a graph.
pub fn launch(executable: Handle, stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, stream)) = of_allocations(executable, stream, per_thread) else { return real() };
    let upload = || driver!(cuGraphUpload(executable => Handle, stream.raw() => Handle));
    let Ok((prepared, _)) = prepare(share, executable, stream, upload) else { return OUT_OF_MEMORY };
    // a failure of the upload is that of the launch as well
    let code = real();
    let Prepared { launch, number, changes, .. } = prepared;
    drop(launch);
    if code == SUCCESS {
        KNOWN.with(|known| known.launched(executable, stream, number, changes));
    }
    code
}

/// Uploads a graph.
pub fn upload(executable: Handle, stream: Handle, per_thread: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some((share, stream)) = of_allocations(executable, stream, per_thread) else { return real() };
    prepare(share, executable, stream, real).map_or(OUT_OF_MEMORY, |(_, code)| code)
}

/// The share and the stream, for a graph with allocations which the stream does not capture.
fn of_allocations(executable: Handle, stream: Handle, per_thread: bool) -> Option<(&'static Share, Stream)> {
    if !ANY.load(Relaxed) {
        return None;
    }
    let share = Share::of_container()?;
    let known = KNOWN.with(|known| known.executables.contains_key(&executable.addr()));
    let stream = Stream::new(stream, per_thread);
    (known && !stream.is_capturing()).then_some((share, stream))
}

/// A graph whose memory is reserved in the ledger.
struct Prepared {
    launch: Launch,
    number: u64,
    /// The count of changes then.
    changes: u64,
    /// The driver has reserved it as well.
    ready: bool,
}

/// Uploads a graph unless its memory is reserved; afterwards it is, or there is not enough. Returns the driver's answer.
fn prepare(
    share: &'static Share,
    executable: Handle,
    stream: Stream,
    upload: impl FnOnce() -> CuResult,
) -> Result<(Prepared, CuResult), Denied> {
    let reserve = || KNOWN.with(|known| known.reserve(share, executable, stream));
    let reclaim = |_| {
        graph_memory::trim(share);
        pool::reclaim(share);
        reserve()
    };
    let waited = |denied| {
        // what earlier graphs of the stream have is free when they have ended
        stream.wait();
        reclaim(denied)
    };
    let prepared = reserve().or_else(reclaim).or_else(waited)?;
    if prepared.ready {
        return Ok((prepared, SUCCESS));
    }
    let code = upload();
    if graph_memory::settle(share) && share.is_exceeded() {
        drop(prepared);
        graph_memory::trim(share);
        return Err(Denied);
    }
    if code == SUCCESS {
        KNOWN.with(|known| known.uploaded(executable, stream, &prepared));
    }
    Ok((prepared, code))
}

impl Known {
    /// What is known of shared and reserved memory holds as long as this number stays.
    fn changes(&self) -> u64 {
        self.taken.wrapping_add(graph_memory::trims())
    }

    /// Begins a launch, and reserves what the memory of graphs grows by at most.
    fn reserve(&mut self, share: &'static Share, executable: Handle, stream: Stream) -> Result<Prepared, Denied> {
        // graphs of two streams can run at a time, and then need memory each
        if self.last.replace(stream) != Some(stream) {
            self.taken = self.taken.wrapping_add(1);
        }
        let of = self.executables.get(&executable.addr());
        let (needs, number) = of.map_or((0, 0), |of| (of.allocations.bytes(), of.number));
        let launch = Launch::begin(share, needs);
        let changes = self.changes();
        let ready = of.and_then(|of| of.ready) == Some((stream, changes));
        if !ready {
            let growth = self.growth(executable, stream);
            share.reserve(growth)?;
            graph_memory::count(growth);
        }
        Ok(Prepared { launch, number, changes, ready })
    }

    fn uploaded(&mut self, executable: Handle, stream: Stream, prepared: &Prepared) {
        if let Some(of) = self.executables.get_mut(&executable.addr()).filter(|of| of.number == prepared.number) {
            of.ready = Some((stream, prepared.changes));
        }
    }

    /// Bytes by which the memory of graphs grows at most.
    fn growth(&self, executable: Handle, stream: Stream) -> u64 {
        let Some(of) = self.executables.get(&executable.addr()) else { return 0 };
        let shared = self.shared.iter().find(|(of, _)| *of == stream && self.shared_at == self.changes());
        // what it has left itself is there as long as the driver knows it
        let left = of.allocations.left().filter(|(address, _)| of.launched && !ended::is_gone(*address));
        let own = left.fold(0_u64, |sum, (_, size)| sum.saturating_add(size));
        of.allocations.bytes().saturating_sub(own).saturating_sub(shared.map_or(0, |(_, bytes)| *bytes))
    }

    /// A launch has succeeded that was prepared at this count of changes.
    fn launched(&mut self, executable: Handle, stream: Stream, number: u64, prepared: u64) {
        let same = self.changes() == prepared;
        let Some(of) = self.executables.get_mut(&executable.addr()).filter(|of| of.number == number) else {
            // what it has left is not known
            self.taken = self.taken.wrapping_add(1);
            return;
        };
        of.launched = true;
        let (closed, bytes) = (of.allocations.is_closed(), of.allocations.bytes());
        if !closed {
            self.taken = self.taken.wrapping_add(1);
        }
        if !same {
            // its memory was perhaps taken or trimmed meanwhile
            return;
        }
        // not read again: a trim since is another change
        let changes = prepared.wrapping_add(u64::from(!closed));
        of.ready = Some((stream, changes));
        if self.shared_at != changes {
            self.shared.clear();
            self.shared_at = changes;
        }
        if closed {
            match self.shared.iter_mut().find(|(of, _)| *of == stream) {
                Some((_, shared)) => *shared = bytes.max(*shared),
                None => self.shared.push((stream, bytes)),
            }
        }
    }
}
