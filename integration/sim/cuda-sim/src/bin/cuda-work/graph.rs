//! Graphs with nodes that allocate and free memory.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
};

use clap::ValueEnum;
use libloading::Library;

use crate::{Failed, kernel::Handle};

/// The function that adds a node.
#[derive(Clone, Copy, ValueEnum)]
pub enum Route {
    /// `cuGraphAddMemAllocNode` and `cuGraphAddMemFreeNode`.
    Node,
    /// `cuGraphAddNode`.
    Any,
    /// `cuGraphAddNode_v2`.
    Edges,
}

/// The function that instantiates.
#[derive(Clone, Copy, ValueEnum)]
pub enum Instantiate {
    /// `cuGraphInstantiate`.
    First,
    /// `cuGraphInstantiate_v2`.
    Second,
    /// `cuGraphInstantiateWithFlags`.
    Flags,
    /// `cuGraphInstantiateWithParams`.
    Params,
    /// `cuGraphInstantiateWithParams_ptsz`.
    Thread,
}

/// A graph without nodes.
pub fn create(cuda: &Library) -> Result<Handle, Failed> {
    let mut graph: Handle = null_mut();
    cuda!(cuda, cuGraphCreate(&raw mut graph => *mut Handle, 0 => u32))?;
    Ok(graph)
}

/// Words of `CUDA_MEM_ALLOC_NODE_PARAMS`: memory of device 0; the size, and where the address is returned.
const ALLOCATION: usize = 15;
const SIZE: usize = 13;
/// Words of `CUgraphNodeParams`: the type, and the parameters of the type from the third on.
const ANY: usize = 32;
const BODY: usize = 2;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`, `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const TYPES: [u64; 2] = [10, 11];

/// Adds an allocation after another node; returns the node and the address.
pub fn allocate(
    cuda: &Library,
    graph: Handle,
    after: Option<Handle>,
    bytes: u64,
    route: Route,
) -> Result<(Handle, u64), Failed> {
    let mut of = [0_u64; ALLOCATION];
    of.iter_mut().zip([1, 1]).for_each(|(to, from)| *to = from);
    of.iter_mut().skip(SIZE).take(1).for_each(|to| *to = bytes);
    let node = match route {
        Route::Node => {
            let (mut node, list) = (null_mut(), after.as_slice());
            cuda!(cuda, cuGraphAddMemAllocNode(
                &raw mut node => *mut Handle, graph => Handle, list.as_ptr() => *const Handle, list.len() => usize,
                of.as_mut_ptr() => *mut u64,
            ))?;
            node
        }
        _ => add_any(cuda, graph, after, (TYPES[0], &mut of), route)?,
    };
    Ok((node, of.last().copied().unwrap_or(0)))
}

/// Adds a free after another node.
pub fn free(
    cuda: &Library,
    graph: Handle,
    after: Option<Handle>,
    pointer: u64,
    route: Route,
) -> Result<Handle, Failed> {
    let (mut node, list) = (null_mut(), after.as_slice());
    match route {
        Route::Node => {
            cuda!(cuda, cuGraphAddMemFreeNode(
                &raw mut node => *mut Handle, graph => Handle, list.as_ptr() => *const Handle, list.len() => usize,
                pointer => u64,
            ))?;
            Ok(node)
        }
        _ => add_any(cuda, graph, after, (TYPES[1], &mut [pointer]), route),
    }
}

fn add_any(
    cuda: &Library,
    graph: Handle,
    after: Option<Handle>,
    (kind, body): (u64, &mut [u64]),
    route: Route,
) -> Result<Handle, Failed> {
    let mut words = [0_u64; ANY];
    words.iter_mut().take(1).for_each(|to| *to = kind);
    words.iter_mut().skip(BODY).zip(body.iter()).for_each(|(to, from)| *to = *from);
    let (mut node, list, parameters) = (null_mut(), after.as_slice(), words.as_mut_ptr());
    let (to, from, count) = (&raw mut node, list.as_ptr(), list.len());
    match route {
        Route::Edges => cuda!(cuda, cuGraphAddNode_v2(
            to => *mut Handle, graph => Handle, from => *const Handle, null_mut() => *mut c_void, count => usize,
            parameters => *mut u64,
        ))?,
        _ => cuda!(cuda, cuGraphAddNode(
            to => *mut Handle, graph => Handle, from => *const Handle, count => usize, parameters => *mut u64,
        ))?,
    }
    body.iter_mut().zip(words.iter().skip(BODY)).for_each(|(to, from)| *to = *from);
    Ok(node)
}

/// Instantiates a graph.
pub fn instantiate(cuda: &Library, graph: Handle, flags: u64, how: Instantiate) -> Result<Handle, Failed> {
    let mut made: Handle = null_mut();
    let to = &raw mut made;
    let (node, log): (*mut Handle, *mut c_char) = (null_mut(), null_mut());
    // flags, stream, node of an error, result
    let mut parameters = [flags, 0, 0, 0];
    let of = parameters.as_mut_ptr();
    match how {
        Instantiate::First => cuda!(cuda, cuGraphInstantiate(
            to => *mut Handle, graph => Handle, node => *mut Handle, log => *mut c_char, 0 => usize,
        )),
        Instantiate::Second => cuda!(cuda, cuGraphInstantiate_v2(
            to => *mut Handle, graph => Handle, node => *mut Handle, log => *mut c_char, 0 => usize,
        )),
        Instantiate::Flags => {
            cuda!(cuda, cuGraphInstantiateWithFlags(to => *mut Handle, graph => Handle, flags => u64))
        }
        Instantiate::Params => {
            cuda!(cuda, cuGraphInstantiateWithParams(to => *mut Handle, graph => Handle, of => *mut u64))
        }
        Instantiate::Thread => {
            cuda!(cuda, cuGraphInstantiateWithParams_ptsz(to => *mut Handle, graph => Handle, of => *mut u64))
        }
    }?;
    Ok(made)
}

/// A graph of one allocation, which it leaves, launched on the default stream: the graph, what was instantiated, and the address.
pub fn launched(cuda: &Library, bytes: u64) -> Result<(Handle, Handle, u64), Failed> {
    let graph = create(cuda)?;
    let made = allocate(cuda, graph, None, bytes, Route::Node)
        .and_then(|(_, pointer)| Ok((instantiate(cuda, graph, 0, Instantiate::Flags)?, pointer)));
    let (executable, pointer) = made.inspect_err(|_| {
        let _ = destroy(cuda, graph);
    })?;
    let code = cuda!(cuda, cuGraphLaunch(executable => Handle, null_mut() => Handle));
    if let Err(failed) = code {
        destroy_executable(cuda, executable)?;
        destroy(cuda, graph)?;
        return Err(failed);
    }
    Ok((graph, executable, pointer))
}

/// Destroys a graph.
pub fn destroy(cuda: &Library, graph: Handle) -> Result<(), Failed> {
    cuda!(cuda, cuGraphDestroy(graph => Handle))
}

/// Destroys an executable graph.
pub fn destroy_executable(cuda: &Library, executable: Handle) -> Result<(), Failed> {
    cuda!(cuda, cuGraphExecDestroy(executable => Handle))
}

/// Bytes that the driver has reserved for graphs on device 0.
pub fn reserved(cuda: &Library) -> Result<u64, Failed> {
    let mut value = 0_u64;
    cuda!(cuda, cuDeviceGetGraphMemAttribute(0 => c_int, 2 => c_int, &raw mut value => *mut u64))?;
    Ok(value)
}
