//! Graphs, made of nodes or by capture of a stream. A graph runs for the sum of its kernels; see [`crate::graphs`] for its memory.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use crate::{
    abi::{CAPTURE_UNSUPPORTED, Device, Failure, Handle, INVALID_VALUE, NOT_SUPPORTED, Pointer, get, put},
    engine::now,
    graphs::{Allocated, Attribute, Work},
    process::{Process, cuda, handle, number},
};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_GRAPH_NODE_TYPE_KERNEL`.
const KERNEL: c_int = 0;
/// `CU_GRAPH_NODE_TYPE_EMPTY`.
const EMPTY: c_int = 5;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const ALLOCATE: c_int = 10;
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const FREE: c_int = 11;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const FREES_AT_LAUNCH: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocateParameters {
    kind: c_int,
    handle_types: c_int,
    location_type: c_int,
    location: c_int,
    /// The rest of `CUmemPoolProps`.
    pool: [u64; 9],
    access: Handle,
    access_count: usize,
    bytes: usize,
    address: Pointer,
}

/// `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeParameters {
    kind: c_int,
    reserved: [c_int; 3],
    body: [u64; 29],
    reserved2: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InstantiateParameters {
    flags: u64,
    stream: Handle,
    error_node: Handle,
    result: c_int,
}

impl Process {
    /// Adds an allocation to a graph that has captured, or behind these nodes.
    fn allocate_in(
        &mut self,
        graph: usize,
        (device, bytes): (usize, u64),
        after: Vec<usize>,
    ) -> Result<(usize, Pointer), Failure> {
        if bytes == 0 || bytes > 1 << 48 {
            return Err(INVALID_VALUE);
        }
        let again = self.graphs.address_again(graph, &after, device, bytes);
        let address = again.unwrap_or_else(|| self.address(bytes));
        let node = self.handle();
        self.graphs.add(graph, node, Work::Allocate(Allocated { device, bytes, address }), after)?;
        Ok((node, address))
    }

    /// An allocation on a stream becomes a node of the graph that the stream captures; `None` if it captures nothing.
    pub fn capture_allocation(&mut self, stream: usize, bytes: u64) -> Option<Result<Pointer, Failure>> {
        let graph = self.streams.captures.get(&stream).copied()?;
        let add = |process: &mut Self| {
            let device = process.current_device()?;
            let after = process.graphs.nodes_of(graph)?.last().copied().into_iter().collect();
            process.allocate_in(graph, (device, bytes), after)
        };
        Some(add(self).map(|(_, address)| address))
    }

    /// A free on a stream becomes a node in the same way.
    pub fn capture_free(&mut self, stream: usize, address: Pointer) -> Option<Result<(), Failure>> {
        let graph = self.streams.captures.get(&stream).copied()?;
        let node = self.handle();
        Some(self.graphs.capture(graph, node, Work::Free(address)))
    }

    fn add_node(&mut self, graph: Handle, work: Work, after: Vec<usize>) -> Result<Handle, Failure> {
        let node = self.handle();
        self.graphs.add(number(graph), node, work, after)?;
        Ok(handle(node))
    }

    fn add_allocation(
        &mut self,
        graph: Handle,
        parameters: *mut AllocateParameters,
        after: Vec<usize>,
    ) -> Result<Handle, Failure> {
        let wanted = get(parameters)?;
        if wanted.location_type != ON_DEVICE || wanted.handle_types != 0 {
            return Err(INVALID_VALUE);
        }
        let device = ordinal(self, wanted.location)?;
        let (node, address) = self.allocate_in(number(graph), (device, wanted.bytes as u64), after)?;
        put(parameters, AllocateParameters { address, ..wanted })?;
        Ok(handle(node))
    }

    /// Adds the node that the parameters describe.
    fn add_any(
        &mut self,
        graph: Handle,
        parameters: *mut NodeParameters,
        after: Vec<usize>,
    ) -> Result<Handle, Failure> {
        let NodeParameters { kind, body: [first, ..], .. } = get(parameters)?;
        match kind {
            ALLOCATE => {
                // SAFETY: `get` has checked it for null; the body begins with the parameters of this kind.
                let body = unsafe { &raw mut (*parameters).body };
                self.add_allocation(graph, body.cast(), after)
            }
            FREE => self.add_node(graph, Work::Free(first), after),
            EMPTY => self.add_node(graph, Work::Empty, after),
            _ => Err(NOT_SUPPORTED),
        }
    }

    fn instantiate(&mut self, graph: Handle, flags: u64) -> Result<Handle, Failure> {
        let created = self.handle();
        self.graphs.instantiate(number(graph), created, flags & FREES_AT_LAUNCH != 0)?;
        Ok(handle(created))
    }

    /// Reserves what a graph needs beyond what is reserved.
    fn upload(&mut self, executable: usize, stream: usize) -> Result<(), Failure> {
        let growth = self.graphs.growth(executable, stream, now())?;
        if let Some((device, bytes)) = growth {
            self.change(device, |state| state.large += bytes)?;
            self.graphs.grow(device, bytes);
        }
        Ok(())
    }

    fn launch_graph(&mut self, executable: usize, stream: usize) -> Result<(), Failure> {
        let load = self.graphs.load(executable)?;
        if let Some(graph) = self.streams.captures.get(&stream).copied() {
            let node = self.handle();
            return self.graphs.capture(graph, node, Work::Kernel(load));
        }
        self.graphs.may_launch(executable)?;
        self.upload(executable, stream)?;
        let end = self.run_until(stream, load)?;
        self.graphs.launched(executable, stream, (now(), end))
    }

    /// The last context of a device is gone; returns the bytes that graphs had.
    pub fn end_graphs(&mut self, device: usize) -> u64 {
        self.graphs.end_device(device)
    }
}

fn ordinal(process: &mut Process, device: Device) -> Result<usize, Failure> {
    process.device(device)?;
    usize::try_from(device).map_err(|_| INVALID_VALUE)
}

/// The nodes of an argument.
fn nodes(from: *const Handle, count: usize) -> Result<Vec<usize>, Failure> {
    if from.is_null() && count > 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: CUDA demands an array of so many nodes.
    let at = |at: usize| get(unsafe { from.add(at) }).map(number);
    (0..count).map(at).collect()
}

fn attribute(code: c_int) -> Result<Attribute, Failure> {
    let all = [Attribute::Used, Attribute::UsedHigh, Attribute::Reserved, Attribute::ReservedHigh];
    usize::try_from(code).ok().and_then(|at| all.get(at).copied()).ok_or(INVALID_VALUE)
}

cuda! {
    fn cuStreamBeginCapture_v2(process, stream: Handle, _mode: c_int) {
        // the default stream cannot be captured
        if stream.is_null() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let graph = process.handle();
        process.graphs.create(graph);
        process.streams.captures.insert(number(stream), graph);
        Ok(())
    }

    fn cuStreamEndCapture(process, stream: Handle, graph: *mut Handle) {
        let captured = process.streams.captures.remove(&number(stream)).ok_or(INVALID_VALUE)?;
        put(graph, handle(captured))
    }

    fn cuThreadExchangeStreamCaptureMode(_process, mode: *mut c_int) {
        // every call is permitted during a capture
        get(mode).map(drop)
    }

    fn cuGraphCreate(process, graph: *mut Handle, _flags: c_uint) {
        let created = process.handle();
        process.graphs.create(created);
        put(graph, handle(created))
    }

    fn cuGraphDestroy(process, graph: Handle) {
        process.graphs.destroy(number(graph))
    }

    fn cuGraphGetNodes(process, graph: Handle, list: *mut Handle, count: *mut usize) {
        let found = process.graphs.nodes_of(number(graph))?;
        if list.is_null() {
            return put(count, found.len());
        }
        let capacity = get(count)?;
        for at in 0..capacity {
            let node = found.get(at).map_or(std::ptr::null_mut(), |node| handle(*node));
            // SAFETY: CUDA demands an array of so many nodes; what is more than the graph has is set to null.
            unsafe { list.add(at).write(node) };
        }
        put(count, capacity.min(found.len()))
    }

    fn cuGraphNodeGetType(process, node: Handle, kind: *mut c_int) {
        put(kind, match process.graphs.work_of(number(node))? {
            Work::Kernel(_) => KERNEL,
            Work::Allocate(_) => ALLOCATE,
            Work::Free(_) => FREE,
            Work::Empty => EMPTY,
        })
    }

    fn cuGraphAddEmptyNode(process, node: *mut Handle, graph: Handle, after: *const Handle, count: usize) {
        let added = process.add_node(graph, Work::Empty, nodes(after, count)?)?;
        put(node, added)
    }

    fn cuGraphAddMemAllocNode(
        process, node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut AllocateParameters,
    ) {
        let added = process.add_allocation(graph, parameters, nodes(after, count)?)?;
        put(node, added)
    }

    fn cuGraphAddMemFreeNode(
        process, node: *mut Handle, graph: Handle, after: *const Handle, count: usize, pointer: Pointer,
    ) {
        let added = process.add_node(graph, Work::Free(pointer), nodes(after, count)?)?;
        put(node, added)
    }

    fn cuGraphAddNode(
        process, node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut NodeParameters,
    ) {
        let added = process.add_any(graph, parameters, nodes(after, count)?)?;
        put(node, added)
    }

    fn cuGraphAddNode_v2(
        process, node: *mut Handle, graph: Handle, after: *const Handle, _edges: *const u64, count: usize,
        parameters: *mut NodeParameters,
    ) {
        let added = process.add_any(graph, parameters, nodes(after, count)?)?;
        put(node, added)
    }

    fn cuGraphMemAllocNodeGetParams(process, node: Handle, parameters: *mut AllocateParameters) {
        let Work::Allocate(of) = process.graphs.work_of(number(node))? else { return Err(INVALID_VALUE) };
        put(parameters, AllocateParameters {
            kind: 1,
            handle_types: 0,
            location_type: ON_DEVICE,
            location: c_int::try_from(of.device).unwrap_or(0),
            pool: [0; 9],
            access: std::ptr::null_mut(),
            access_count: 0,
            bytes: usize::try_from(of.bytes).unwrap_or(usize::MAX),
            address: of.address,
        })
    }

    fn cuGraphMemFreeNodeGetParams(process, node: Handle, pointer: *mut Pointer) {
        let Work::Free(address) = process.graphs.work_of(number(node))? else { return Err(INVALID_VALUE) };
        put(pointer, address)
    }

    fn cuGraphInstantiate(
        process, executable: *mut Handle, graph: Handle, _error: *mut Handle, _log: *mut c_char, _length: usize,
    ) {
        let created = process.instantiate(graph, 0)?;
        put(executable, created)
    }

    fn cuGraphInstantiate_v2(
        process, executable: *mut Handle, graph: Handle, _error: *mut Handle, _log: *mut c_char, _length: usize,
    ) {
        let created = process.instantiate(graph, 0)?;
        put(executable, created)
    }

    fn cuGraphInstantiateWithFlags(process, executable: *mut Handle, graph: Handle, flags: c_ulonglong) {
        let created = process.instantiate(graph, flags)?;
        put(executable, created)
    }

    fn cuGraphExecDestroy(process, executable: Handle) {
        process.graphs.destroy_executable(number(executable))
    }

    fn cuDeviceGetGraphMemAttribute(process, device: Device, code: c_int, value: *mut u64) {
        let at = ordinal(process, device)?;
        put(value, process.graphs.attribute(at, attribute(code)?, now()))
    }

    fn cuDeviceSetGraphMemAttribute(process, device: Device, code: c_int, value: *mut u64) {
        let at = ordinal(process, device)?;
        // a high watermark can only be reset
        if get(value)? != 0 {
            return Err(INVALID_VALUE);
        }
        process.graphs.reset(at, attribute(code)?)
    }

    fn cuDeviceGraphMemTrim(process, device: Device) {
        let at = ordinal(process, device)?;
        let returned = process.graphs.trim(at, now());
        process.change(at, |state| state.large = state.large.saturating_sub(returned))
    }
}

macro_rules! on_streams {
    ($($capturing:ident $launch:ident $upload:ident $instantiate:ident)*) => {cuda! {$(
        fn $capturing(process, stream: Handle, status: *mut c_uint) {
            put(status, c_uint::from(process.streams.captures.contains_key(&number(stream))))
        }

        fn $launch(process, executable: Handle, stream: Handle) {
            process.launch_graph(number(executable), number(stream))
        }

        fn $upload(process, executable: Handle, stream: Handle) {
            process.upload(number(executable), number(stream))
        }

        fn $instantiate(process, executable: *mut Handle, graph: Handle, parameters: *mut InstantiateParameters) {
            let wanted = get(parameters)?;
            let created = process.instantiate(graph, wanted.flags)?;
            if wanted.flags & UPLOAD != 0 {
                process.upload(number(created), number(wanted.stream))?;
            }
            put(parameters, InstantiateParameters { error_node: std::ptr::null_mut(), result: 0, ..wanted })?;
            put(executable, created)
        }
    )*}};
}
on_streams! {
    cuStreamIsCapturing cuGraphLaunch cuGraphUpload cuGraphInstantiateWithParams
    cuStreamIsCapturing_ptsz cuGraphLaunch_ptsz cuGraphUpload_ptsz cuGraphInstantiateWithParams_ptsz
}
