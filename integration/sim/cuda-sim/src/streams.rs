//! What a process has launched, recorded and captured.

use std::collections::BTreeMap;

use crate::abi::{Failure, INVALID_HANDLE};

/// Streams, events and captures of the process.
#[derive(Debug, Default)]
pub struct Streams {
    /// When the work of a stream ends, by context and stream.
    pub ready: BTreeMap<(usize, usize), u64>,
    /// The context of an event, and when it is reached.
    pub events: BTreeMap<usize, (usize, u64)>,
    /// The graph that a stream captures instead of running it.
    pub captures: BTreeMap<usize, usize>,
    /// Functions of modules, by handle.
    pub functions: BTreeMap<usize, String>,
}

impl Streams {
    /// When the work of a stream of a context ends.
    pub fn ready(&self, context: usize, stream: usize) -> u64 {
        self.ready.get(&(context, stream)).copied().unwrap_or(0)
    }

    /// Sets when it ends.
    pub fn set_ready(&mut self, context: usize, stream: usize, end: u64) {
        self.ready.insert((context, stream), end);
    }

    /// What a context had is gone.
    pub fn forget(&mut self, context: usize) {
        self.ready.retain(|(of, _), _| *of != context);
        self.events.retain(|_, (of, _)| *of != context);
    }

    /// When the work of all streams of a context ends.
    pub fn all_ready(&self, context: usize) -> u64 {
        self.ready.iter().filter(|((of, _), _)| *of == context).map(|(_, end)| *end).max().unwrap_or(0)
    }

    /// When an event is reached.
    pub fn reached(&self, event: usize) -> Result<u64, Failure> {
        self.events.get(&event).map(|(_, reached)| *reached).ok_or(INVALID_HANDLE)
    }
}
