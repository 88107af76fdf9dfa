//! What a graph allocates, as the driver reports its nodes: in whichever way they were added, also by capture.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{c_int, c_uint},
    ptr::null_mut,
};

use crate::{
    abi::{Device, Handle, ON_DEVICE, Pointer, SUCCESS},
    plain::BLOCK,
    real::driver,
    share::Share,
};

/// `CU_GRAPH_NODE_TYPE_GRAPH`.
const GRAPH: c_int = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const ALLOCATE: c_int = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const FREE: c_int = 11;
/// Levels of graphs in graphs that are followed.
const LEVELS: u32 = 16;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, larger than what today's drivers write.
#[repr(C)]
struct Parameters {
    kind: c_int,
    handle_types: c_uint,
    location_type: c_int,
    location: c_int,
    /// The rest of `CUmemPoolProps`, and the list of accesses.
    rest: [u64; 11],
    bytes: usize,
    address: Pointer,
    /// Unused.
    reserved: [u64; 16],
}

/// Memory of a graph on the share's GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Size of each in bytes, by its address; allocations that follow each other can have the same one.
    sizes: BTreeMap<Pointer, u64>,
    /// Addresses that the graph frees.
    freed: BTreeSet<Pointer>,
    /// The GPU.
    pub device: Option<Device>,
}

impl Allocations {
    /// The allocations of a graph.
    pub fn of(graph: Handle) -> Self {
        let mut found = Self::default();
        found.read(graph, LEVELS);
        found
    }

    fn read(&mut self, graph: Handle, levels: u32) {
        let mut count = 0_usize;
        let size = &raw mut count;
        if driver!(cuGraphGetNodes(graph => Handle, null_mut() => *mut Handle, size => *mut usize)) != SUCCESS {
            return;
        }
        let mut nodes: Vec<Handle> = vec![null_mut(); count];
        let list = nodes.as_mut_ptr();
        if driver!(cuGraphGetNodes(graph => Handle, list => *mut Handle, size => *mut usize)) != SUCCESS {
            return;
        }
        for node in nodes.into_iter().filter(|node| !node.is_null()) {
            let mut kind: c_int = 0;
            driver!(cuGraphNodeGetType(node => Handle, &raw mut kind => *mut c_int));
            match kind {
                ALLOCATE => self.allocation(node),
                FREE => {
                    let mut address: Pointer = 0;
                    driver!(cuGraphMemFreeNodeGetParams(node => Handle, &raw mut address => *mut Pointer));
                    self.freed.insert(address);
                }
                GRAPH if levels > 0 => {
                    let mut inner: Handle = null_mut();
                    let to = &raw mut inner;
                    if driver!(cuGraphChildGraphNodeGetGraph(node => Handle, to => *mut Handle)) == SUCCESS {
                        self.read(inner, levels.saturating_sub(1));
                    }
                }
                _ => {}
            }
        }
    }

    fn allocation(&mut self, node: Handle) {
        let mut of = Parameters {
            kind: 0,
            handle_types: 0,
            location_type: 0,
            location: 0,
            rest: [0; 11],
            bytes: 0,
            address: 0,
            reserved: [0; 16],
        };
        let code = driver!(cuGraphMemAllocNodeGetParams(node => Handle, &raw mut of => *mut Parameters));
        if code == SUCCESS && of.location_type == ON_DEVICE && Share::of_device(of.location).is_some() {
            self.device = Some(of.location);
            self.add(of.address, of.bytes as u64);
        }
    }

    fn add(&mut self, address: Pointer, bytes: u64) {
        let bytes = bytes.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        let size = self.sizes.entry(address).or_default();
        *size = bytes.max(*size);
    }

    /// Bytes of the GPU that the graph needs at most: its ranges of addresses, of which some can overlap.
    pub fn bytes(&self) -> u64 {
        let mut end = 0_u64;
        self.sizes.iter().fold(0_u64, |sum, (address, size)| {
            let from = end.max(*address);
            end = end.max(address.saturating_add(*size));
            sum.saturating_add(end.saturating_sub(from))
        })
    }

    /// The graph frees all that it allocates.
    pub fn is_closed(&self) -> bool {
        self.left().next().is_none()
    }

    /// What it does not free, by address with the size.
    pub fn left(&self) -> impl Iterator<Item = (Pointer, u64)> {
        self.sizes.iter().filter(|(address, _)| !self.freed.contains(address)).map(|(address, size)| (*address, *size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_with_the_same_addresses_count_once() {
        let mut graph = Allocations::default();
        graph.add(0x1_0000_0000, 1);
        graph.add(0x1_0000_0000, BLOCK + 1);
        graph.add(0x1_0000_0000 + BLOCK, 2 * BLOCK);
        graph.add(0x2_0000_0000, BLOCK);
        assert_eq!(graph.bytes(), 4 * BLOCK);
        graph.freed.insert(0x2_0000_0000);
        assert!(!graph.is_closed());
        assert_eq!(graph.left().map(|(_, size)| size).sum::<u64>(), 4 * BLOCK);
        graph.freed.extend([0x1_0000_0000, 0x1_0000_0000 + BLOCK]);
        assert!(graph.is_closed());
        graph.add(0x3_0000_0000, u64::MAX);
        assert!(graph.bytes() > 1 << 62, "no size wraps");
    }
}
