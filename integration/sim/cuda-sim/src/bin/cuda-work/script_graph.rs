//! Calls of a script for graphs, and for streams that capture them.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint},
    ptr::{null_mut, with_exposed_provenance_mut},
    thread,
};

use clap::ValueEnum;
use libloading::Library;

use crate::{
    Failed,
    allocate::{self, Block, Kind},
    graph::{self, Instantiate, Route},
    kernel::Handle,
};

/// Launches of each thread of a race.
const ROUNDS: u32 = 50;
/// Bytes that are allocated during a race.
const BLOCK: usize = 1 << 21;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// A graph, and its last node.
struct Graph {
    graph: Handle,
    last: Option<Handle>,
}

/// What the calls have created, by the number that the caller chose. What was instantiated has the number of its graph.
#[derive(Default)]
pub struct Graphs {
    made: BTreeMap<u64, Graph>,
    executables: BTreeMap<u64, Handle>,
    streams: BTreeMap<u64, Handle>,
}

impl Graphs {
    /// `None` for a line that it does not know. Nodes follow each other; blocks are those of the script.
    pub fn call(
        &mut self,
        cuda: &Library,
        blocks: &mut BTreeMap<u64, Block>,
        words: &[&str],
    ) -> Option<Result<(), Failed>> {
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let route = |at: usize| words.get(at).map_or(Some(Route::Node), |word| Route::from_str(word, false).ok());
        let stream = |at: usize| number(at).and_then(|at| self.streams.get(&at).copied()).unwrap_or(null_mut());
        let executable = || self.executables.get(&number(1)?).copied();
        Some(match *words.first()? {
            "graph" => graph::create(cuda).map(|graph| {
                self.made.insert(number(1).unwrap_or(0), Graph { graph, last: None });
            }),
            "graph-alloc" => {
                let (to, size, route) = (self.made.get_mut(&number(1)?)?, number(3)?, route(4)?);
                let added = graph::allocate(cuda, to.graph, to.last, size, route);
                added.map(|(node, pointer)| {
                    to.last = Some(node);
                    blocks.insert(number(2).unwrap_or(0), Block::Pointer(pointer));
                })
            }
            "graph-free" => {
                let Block::Pointer(pointer) = *blocks.get(&number(2)?)? else { return None };
                let (to, route) = (self.made.get_mut(&number(1)?)?, route(3)?);
                graph::free(cuda, to.graph, to.last, pointer, route).map(|node| to.last = Some(node))
            }
            "instantiate" => {
                let (from, flags) = (self.made.get(&number(1)?)?, number(2)?);
                let how = Instantiate::from_str(words.get(3)?, false).ok()?;
                graph::instantiate(cuda, from.graph, flags, how).map(|made| {
                    self.executables.insert(number(1).unwrap_or(0), made);
                })
            }
            "launch" => {
                let (graph, stream) = (executable()?, stream(2));
                cuda!(cuda, cuGraphLaunch(graph => Handle, stream => Handle))
            }
            "launch-thread" => {
                let (graph, stream) = (executable()?, stream(2));
                cuda!(cuda, cuGraphLaunch_ptsz(graph => Handle, stream => Handle))
            }
            "upload" => {
                let (graph, stream) = (executable()?, stream(2));
                cuda!(cuda, cuGraphUpload(graph => Handle, stream => Handle))
            }
            "upload-thread" => {
                let (graph, stream) = (executable()?, stream(2));
                cuda!(cuda, cuGraphUpload_ptsz(graph => Handle, stream => Handle))
            }
            "race" => {
                let of = |at: usize| Some((self.executables.get(&number(at)?).copied()?, stream(at + 1)));
                race(cuda, [of(1)?, of(3)?], self.made.get(&number(5)?)?.graph)
            }
            "executable-destroy" => graph::destroy_executable(cuda, executable()?),
            "graph-destroy" => graph::destroy(cuda, self.made.get(&number(1)?)?.graph),
            "graph-trim" => cuda!(cuda, cuDeviceGraphMemTrim(0 => c_int)),
            // fails if the driver has reserved something else
            "graph-reserved" => graph::reserved(cuda).and_then(|found| match number(1) {
                Some(expected) if expected == found => Ok(()),
                _ => Err(Failed("graph-reserved", 1)),
            }),
            "stream" => {
                let mut made: Handle = null_mut();
                let code = cuda!(cuda, cuStreamCreate(&raw mut made => *mut Handle, 0 => c_uint));
                code.map(|()| {
                    self.streams.insert(number(1).unwrap_or(0), made);
                })
            }
            "capture" => cuda!(cuda, cuStreamBeginCapture_v2(stream(1) => Handle, 0 => c_int)),
            "capture-alloc" => {
                let (mut pointer, size) = (0_u64, usize::try_from(number(3)?).ok()?);
                let to = &raw mut pointer;
                let code = cuda!(cuda, cuMemAllocAsync(to => *mut u64, size => usize, stream(1) => Handle));
                code.map(|()| {
                    blocks.insert(number(2).unwrap_or(0), Block::Pointer(pointer));
                })
            }
            "capture-free" => {
                let Block::Pointer(pointer) = *blocks.get(&number(2)?)? else { return None };
                cuda!(cuda, cuMemFreeAsync(pointer => u64, stream(1) => Handle))
            }
            "capture-end" => {
                let mut made: Handle = null_mut();
                let code = cuda!(cuda, cuStreamEndCapture(stream(1) => Handle, &raw mut made => *mut Handle));
                code.map(|()| {
                    self.made.insert(number(2).unwrap_or(0), Graph { graph: made, last: None });
                })
            }
            _ => return None,
        })
    }
}

/// Two threads launch an executable each in its stream, while this one instantiates, launches and destroys another graph, and allocates. Calls may be
/// refused for want of memory.
fn race(cuda: &Library, launched: [(Handle, Handle); 2], graph: Handle) -> Result<(), Failed> {
    let mut context: Handle = null_mut();
    cuda!(cuda, cuCtxGetCurrent(&raw mut context => *mut Handle))?;
    let context = context.expose_provenance();
    let work = |executable: usize, stream: usize| {
        cuda!(cuda, cuCtxSetCurrent(with_exposed_provenance_mut(context) => Handle))?;
        let (executable, stream): (Handle, Handle) =
            (with_exposed_provenance_mut(executable), with_exposed_provenance_mut(stream));
        (0..ROUNDS).try_for_each(|_| granted(cuda!(cuda, cuGraphLaunch(executable => Handle, stream => Handle))))
    };
    let round = || {
        let made = graph::instantiate(cuda, graph, 0, Instantiate::Flags)?;
        granted(cuda!(cuda, cuGraphLaunch(made => Handle, null_mut() => Handle)))?;
        graph::destroy_executable(cuda, made)?;
        granted(allocate::allocate(cuda, Kind::Plain, BLOCK).and_then(|block| allocate::free(cuda, block)))
    };
    thread::scope(|scope| {
        let work = &work;
        let threads = launched.map(|(executable, stream)| {
            let (executable, stream) = (executable.expose_provenance(), stream.expose_provenance());
            scope.spawn(move || work(executable, stream))
        });
        let own = (0..ROUNDS).try_for_each(|_| round());
        threads.into_iter().fold(own, |before, thread| {
            let done = thread.join().unwrap_or(Err(Failed("thread", 999)));
            before.and(done)
        })
    })
}

/// A call that succeeded, or was refused for want of memory.
fn granted(done: Result<(), Failed>) -> Result<(), Failed> {
    match done {
        Err(Failed(_, OUT_OF_MEMORY)) => Ok(()),
        done => done,
    }
}
