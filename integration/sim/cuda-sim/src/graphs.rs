//! Graphs, and the memory that their allocation nodes take: addresses are fixed when a node is added, memory is reserved when a graph is launched or
//! uploaded, and stays reserved until it is trimmed.
//!
//! Graphs of one stream run one after another and share memory. What a graph does not free itself stays allocated until it is freed, or until the
//! graph is launched again if it was instantiated so.

use std::collections::{BTreeMap, BTreeSet};

use silicon::activity::Load;

use crate::{
    abi::{Failure, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Pointer},
    blocks::BLOCK,
};

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel.
    Kernel(Load),
    /// An allocation.
    Allocate(Allocated),
    /// Frees the allocation with this address.
    Free(Pointer),
    /// Nothing.
    Empty,
}

/// The memory of an allocation node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    pub device: usize,
    pub bytes: u64,
    pub address: Pointer,
}

impl Allocated {
    /// Bytes that it takes of the device.
    fn taken(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK)
    }
}

/// A node of a graph.
#[derive(Clone, Debug)]
struct Node {
    graph: usize,
    work: Work,
    after: Vec<usize>,
}

/// An executable graph.
#[derive(Clone, Debug)]
struct Executable {
    graph: usize,
    /// Its kernels.
    load: Load,
    /// Bytes that its allocations take together; those that follow each other can have the same address.
    bytes: u64,
    /// The device of its allocations.
    device: Option<usize>,
    /// Allocations that it does not free itself.
    unfreed: Vec<Allocated>,
    /// Addresses of other graphs that it frees.
    frees: Vec<Pointer>,
    /// What it left allocated is freed when it is launched again.
    frees_at_launch: bool,
}

/// Memory of a device for graphs, in bytes.
#[derive(Clone, Debug, Default)]
struct Memory {
    reserved: u64,
    reserved_high: u64,
    used_high: u64,
    /// When the last graph of a stream ends, and what it has beyond allocations that it leaves.
    running: BTreeMap<usize, (u64, u64)>,
}

/// Graphs, executable graphs, and what they have allocated.
#[derive(Debug, Default)]
pub struct Graphs {
    /// Nodes of a graph, in the order in which they were added.
    known: BTreeMap<usize, Vec<usize>>,
    nodes: BTreeMap<usize, Node>,
    executables: BTreeMap<usize, Executable>,
    /// Allocations that a launch has left.
    left: BTreeMap<Pointer, Allocated>,
    memory: BTreeMap<usize, Memory>,
}

/// `CU_GRAPH_MEM_ATTR_*`, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    Used,
    UsedHigh,
    Reserved,
    ReservedHigh,
}

impl Graphs {
    pub fn create(&mut self, graph: usize) {
        self.known.insert(graph, Vec::new());
    }

    pub fn nodes_of(&self, graph: usize) -> Result<&[usize], Failure> {
        self.known.get(&graph).map(Vec::as_slice).ok_or(INVALID_HANDLE)
    }

    pub fn work_of(&self, node: usize) -> Result<Work, Failure> {
        self.nodes.get(&node).map(|node| node.work).ok_or(INVALID_HANDLE)
    }

    /// Adds a node after others of its graph; a free node must free something that it may.
    pub fn add(&mut self, graph: usize, node: usize, work: Work, after: Vec<usize>) -> Result<(), Failure> {
        let nodes = self.nodes_of(graph)?;
        if !after.iter().all(|other| nodes.contains(other)) {
            return Err(INVALID_VALUE);
        }
        if let Work::Free(address) = work {
            self.may_free(graph, address)?;
        }
        self.nodes.insert(node, Node { graph, work, after });
        self.known.entry(graph).or_default().push(node);
        Ok(())
    }

    /// A free node can be added: for what an allocation node returned, once, and not in its own graph as well as in another one.
    fn may_free(&self, graph: usize, address: Pointer) -> Result<(), Failure> {
        let owner = self.nodes.values().find(|node| Self::allocates(node, address)).ok_or(INVALID_VALUE)?.graph;
        let frees = |in_graph: &dyn Fn(usize) -> bool| {
            self.nodes.values().filter(|node| node.work == Work::Free(address) && in_graph(node.graph)).count()
        };
        // an address that was given again is allocated several times
        let allocated = self.nodes.values().filter(|node| Self::allocates(node, address)).count();
        let may = if graph == owner {
            frees(&|other| other == graph) < allocated && frees(&|other| other != graph) == 0
        } else {
            frees(&|other| other == graph || other == owner) == 0
        };
        if may { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Adds a captured node, which follows all before it.
    pub fn capture(&mut self, graph: usize, node: usize, work: Work) -> Result<(), Failure> {
        let after = self.nodes_of(graph)?.last().copied();
        self.add(graph, node, work, after.into_iter().collect())
    }

    fn allocates(node: &Node, address: Pointer) -> bool {
        matches!(node.work, Work::Allocate(of) if of.address == address)
    }

    /// The address of an allocation that the graph has freed before all of these nodes, and that is large enough.
    pub fn address_again(&self, graph: usize, after: &[usize], device: usize, bytes: u64) -> Option<Pointer> {
        let mut before: Vec<usize> = after.to_vec();
        let mut at = 0;
        while let Some(node) = before.get(at).and_then(|node| self.nodes.get(node)) {
            let more: Vec<usize> = node.after.iter().copied().filter(|other| !before.contains(other)).collect();
            before.extend(more);
            at += 1;
        }
        let works = || before.iter().filter_map(|node| self.nodes.get(node)).map(|node| node.work);
        let of_graph = || self.nodes.values().filter(move |node| node.graph == graph).map(|node| node.work);
        let fits = works().filter_map(|work| match work {
            Work::Allocate(of) if of.device == device && of.bytes.next_multiple_of(BLOCK) >= bytes => Some(of.address),
            _ => None,
        });
        let freed = |address: &Pointer| {
            let allocated =
                of_graph().filter(|work| matches!(work, Work::Allocate(of) if of.address == *address)).count();
            works().filter(|work| *work == Work::Free(*address)).count() == allocated
        };
        fits.into_iter().find(freed)
    }

    /// Instantiates a graph. One with allocations has at most one executable graph at a time.
    pub fn instantiate(&mut self, graph: usize, executable: usize, frees_at_launch: bool) -> Result<(), Failure> {
        let works: Vec<Work> =
            self.nodes_of(graph)?.iter().filter_map(|node| Some(self.nodes.get(node)?.work)).collect();
        let allocated: Vec<Allocated> =
            works.iter().filter_map(|work| if let Work::Allocate(of) = work { Some(*of) } else { None }).collect();
        let freed: Vec<Pointer> =
            works.iter().filter_map(|work| if let Work::Free(of) = work { Some(*of) } else { None }).collect();
        let exclusive = !allocated.is_empty() || !freed.is_empty();
        if exclusive && self.executables.values().any(|other| other.graph == graph) {
            return Err(INVALID_VALUE);
        }
        let device = allocated.first().map(|of| of.device);
        if allocated.iter().any(|of| Some(of.device) != device) {
            return Err(NOT_SUPPORTED);
        }
        let addresses: BTreeSet<Pointer> = allocated.iter().map(|of| of.address).collect();
        let at = |address: Pointer| allocated.iter().filter(move |of| of.address == address);
        let largest = |address: &Pointer| at(*address).map(Allocated::taken).max().unwrap_or(0);
        let times = |address: Pointer| freed.iter().filter(|of| **of == address).count();
        let last = |address: &Pointer| at(*address).next_back().filter(|_| times(*address) < at(*address).count());
        let unfreed = addresses.iter().filter_map(last).copied().collect();
        let load = works.iter().filter_map(|work| if let Work::Kernel(load) = work { Some(*load) } else { None }).sum();
        let bytes = addresses.iter().map(largest).sum();
        let foreign = freed.iter().filter(|address| !addresses.contains(address)).copied().collect();
        self.executables
            .insert(executable, Executable { graph, load, bytes, device, unfreed, frees: foreign, frees_at_launch });
        Ok(())
    }

    pub fn destroy(&mut self, graph: usize) -> Result<(), Failure> {
        let nodes = self.known.remove(&graph).ok_or(INVALID_HANDLE)?;
        self.nodes.retain(|node, _| !nodes.contains(node));
        Ok(())
    }

    /// Destroys an executable graph; the memory stays reserved.
    pub fn destroy_executable(&mut self, executable: usize) -> Result<(), Failure> {
        self.executables.remove(&executable).map(drop).ok_or(INVALID_HANDLE)
    }

    fn executable(&self, executable: usize) -> Result<&Executable, Failure> {
        self.executables.get(&executable).ok_or(INVALID_HANDLE)
    }

    /// The kernels of an executable graph.
    pub fn load(&self, executable: usize) -> Result<Load, Failure> {
        self.executable(executable).map(|of| of.load)
    }

    /// The device on which a launch or an upload in a stream needs more memory, and how many bytes.
    pub fn growth(&self, executable: usize, stream: usize, now: u64) -> Result<Option<(usize, u64)>, Failure> {
        let of = self.executable(executable)?;
        let Some(device) = of.device else { return Ok(None) };
        let own = of.unfreed.iter().map(|of| of.address);
        let again: u64 = own.filter_map(|address| self.left.get(&address)).map(Allocated::taken).sum();
        let used = self.used(device, Some(stream), now).saturating_sub(again);
        let reserved = self.memory.get(&device).map_or(0, |memory| memory.reserved);
        let growth = (used + of.bytes).saturating_sub(reserved);
        Ok((growth > 0).then_some((device, growth)))
    }

    /// The device has given so many bytes.
    pub fn grow(&mut self, device: usize, growth: u64) {
        let memory = self.memory.entry(device).or_default();
        memory.reserved += growth;
        memory.reserved_high = memory.reserved_high.max(memory.reserved);
    }

    /// Whether a graph can be launched: not while it has left something allocated, and not if another one has to and has not.
    pub fn may_launch(&self, executable: usize) -> Result<(), Failure> {
        let of = self.executable(executable)?;
        let left = of.unfreed.iter().any(|of| self.left.contains_key(&of.address));
        let missing = of.frees.iter().any(|address| !self.left.contains_key(address));
        if missing || (left && !of.frees_at_launch) { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// A graph was launched, and ends then.
    pub fn launched(&mut self, executable: usize, stream: usize, (now, end): (u64, u64)) -> Result<(), Failure> {
        let of = self.executable(executable)?.clone();
        for address in &of.frees {
            self.left.remove(address);
        }
        self.left.extend(of.unfreed.iter().map(|of| (of.address, *of)));
        if let Some(device) = of.device {
            let left: u64 = of.unfreed.iter().map(Allocated::taken).sum();
            let memory = self.memory.entry(device).or_default();
            memory.running.insert(stream, (end, of.bytes - left));
            let used = self.used(device, None, now);
            let memory = self.memory.entry(device).or_default();
            memory.used_high = memory.used_high.max(used);
        }
        Ok(())
    }

    /// Bytes of a device in allocations that were left and in graphs that run, but not in those of one stream.
    fn used(&self, device: usize, except: Option<usize>, now: u64) -> u64 {
        let left: u64 = self.left.values().filter(|of| of.device == device).map(Allocated::taken).sum();
        let running = self.memory.get(&device).map(|memory| &memory.running);
        let others = running.into_iter().flatten().filter(|(stream, (end, _))| Some(**stream) != except && *end > now);
        left + others.map(|(_, (_, bytes))| bytes).sum::<u64>()
    }

    /// Frees an allocation that a graph has left; its memory stays reserved.
    pub fn free(&mut self, address: Pointer) -> Result<(), Failure> {
        self.left.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    /// The allocation that a graph has left with this address in it.
    pub fn left_at(&self, pointer: Pointer) -> Option<Allocated> {
        self.left.range(..=pointer).next_back().filter(|(start, of)| pointer < *start + of.bytes).map(|(_, of)| *of)
    }

    /// An allocation that a graph has left has this address in it.
    pub fn knows(&self, pointer: Pointer) -> bool {
        self.left_at(pointer).is_some()
    }

    /// Bytes that a trim gives back: all but what is in use.
    pub fn trim(&mut self, device: usize, now: u64) -> u64 {
        let used = self.used(device, None, now);
        let memory = self.memory.entry(device).or_default();
        memory.running.retain(|_, (end, _)| *end > now);
        let returned = memory.reserved.saturating_sub(used);
        memory.reserved -= returned;
        returned
    }

    /// The last context of a device is gone; returns the bytes that were reserved.
    pub fn end_device(&mut self, device: usize) -> u64 {
        self.left.retain(|_, of| of.device != device);
        self.memory.remove(&device).map_or(0, |memory| memory.reserved)
    }

    pub fn attribute(&self, device: usize, attribute: Attribute, now: u64) -> u64 {
        let Some(memory) = self.memory.get(&device) else { return 0 };
        match attribute {
            Attribute::Used => self.used(device, None, now),
            Attribute::UsedHigh => memory.used_high,
            Attribute::Reserved => memory.reserved,
            Attribute::ReservedHigh => memory.reserved_high,
        }
    }

    /// Resets a high watermark.
    pub fn reset(&mut self, device: usize, attribute: Attribute) -> Result<(), Failure> {
        let memory = self.memory.entry(device).or_default();
        match attribute {
            Attribute::UsedHigh => memory.used_high = 0,
            Attribute::ReservedHigh => memory.reserved_high = 0,
            Attribute::Used | Attribute::Reserved => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends there")]
mod tests {
    use super::*;

    const A: usize = 1;
    const B: usize = 2;

    fn allocate(address: Pointer, blocks: u64) -> Work {
        Work::Allocate(Allocated { device: 0, bytes: blocks * BLOCK, address })
    }

    /// Instantiates a graph of these nodes, one after another.
    fn graph(graphs: &mut Graphs, number: usize, works: &[Work], frees_at_launch: bool) -> usize {
        graphs.create(number);
        for (at, work) in works.iter().enumerate() {
            graphs.capture(number, number * 100 + at, *work).unwrap();
        }
        graphs.instantiate(number, number + 1000, frees_at_launch).unwrap();
        number + 1000
    }

    /// Launches in a stream at a time, for ten units of time; returns the blocks by which the memory grows.
    fn launch(graphs: &mut Graphs, executable: usize, stream: usize, now: u64) -> u64 {
        graphs.may_launch(executable).unwrap();
        let growth = graphs.growth(executable, stream, now).unwrap();
        if let Some((device, bytes)) = growth {
            graphs.grow(device, bytes);
        }
        graphs.launched(executable, stream, (now, now + 10)).unwrap();
        growth.map_or(0, |(_, bytes)| bytes / BLOCK)
    }

    #[test]
    fn graphs_of_a_stream_share_memory_and_those_of_others_do_not_while_they_run() {
        let mut graphs = Graphs::default();
        let first = graph(&mut graphs, A, &[allocate(0x10, 3), Work::Free(0x10)], false);
        let second = graph(&mut graphs, B, &[allocate(0x20, 5), Work::Free(0x20)], false);
        assert_eq!((launch(&mut graphs, first, 1, 0), launch(&mut graphs, second, 1, 0)), (3, 2));
        assert_eq!(launch(&mut graphs, first, 2, 5), 3, "the second one still runs");
        assert_eq!(launch(&mut graphs, first, 2, 30), 0);
        assert_eq!(graphs.trim(0, 35), 5 * BLOCK, "all but the running one");
        assert_eq!((graphs.trim(0, 50), graphs.trim(0, 50)), (3 * BLOCK, 0));
        assert_eq!(graphs.attribute(0, Attribute::ReservedHigh, 50), 8 * BLOCK);
    }

    #[test]
    fn allocation_that_a_graph_leaves_stays_until_it_is_freed() {
        let mut graphs = Graphs::default();
        let keeps = graph(&mut graphs, A, &[allocate(0x10, 3)], false);
        assert_eq!(launch(&mut graphs, keeps, 1, 0), 3);
        assert_eq!((graphs.may_launch(keeps), graphs.trim(0, 100)), (Err(INVALID_VALUE), 0));
        let frees = graph(&mut graphs, B, &[Work::Free(0x10)], false);
        assert_eq!(launch(&mut graphs, frees, 1, 100), 0);
        assert_eq!((graphs.may_launch(frees), graphs.free(0x10)), (Err(INVALID_VALUE), Err(INVALID_VALUE)));
        assert_eq!(launch(&mut graphs, keeps, 1, 200), 0);
        assert_eq!((graphs.free(0x10), graphs.trim(0, 300)), (Ok(()), 3 * BLOCK));
        let again = graph(&mut graphs, 3, &[allocate(0x30, 4)], true);
        assert_eq!((launch(&mut graphs, again, 1, 400), launch(&mut graphs, again, 1, 400)), (4, 0));
    }

    #[test]
    fn free_node_frees_what_was_allocated_once_and_in_one_graph() {
        let mut graphs = Graphs::default();
        graphs.create(A);
        graphs.create(B);
        assert_eq!(graphs.capture(A, 10, Work::Free(0x10)), Err(INVALID_VALUE));
        graphs.capture(A, 11, allocate(0x10, 1)).unwrap();
        assert_eq!(graphs.address_again(A, &[11], 0, BLOCK), None);
        graphs.capture(A, 12, Work::Free(0x10)).unwrap();
        assert_eq!(graphs.capture(A, 13, Work::Free(0x10)), Err(INVALID_VALUE));
        assert_eq!(graphs.capture(B, 14, Work::Free(0x10)), Err(INVALID_VALUE));
        assert_eq!(graphs.add(B, 15, Work::Empty, vec![11]), Err(INVALID_VALUE), "a node of another graph");
        let again = graphs.address_again(A, &[12], 0, BLOCK);
        assert_eq!((again, graphs.address_again(A, &[11], 0, BLOCK)), (Some(0x10), None));
        assert_eq!(graphs.address_again(A, &[12], 0, 2 * BLOCK), None);
        graphs.capture(A, 16, allocate(0x10, 1)).unwrap();
        graphs.instantiate(A, 100, false).unwrap();
        assert_eq!(graphs.instantiate(A, 101, false), Err(INVALID_VALUE), "the first one exists");
        assert_eq!(graphs.growth(100, 0, 0), Ok(Some((0, BLOCK))));
    }
}
