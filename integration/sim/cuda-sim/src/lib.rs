//! `libcuda.so.1` over the simulated boards: CUDA's driver API at its C ABI, with the memory of the same GPUs that the simulated NVML shows.
//!
//! A context takes memory of its own, allocations take whole blocks of 2 MiB, pools keep what was freed, and all processes of a
//! device share its memory. Memory has content: see [`content`]. Kernels take time and compute nothing: see [`engine`].
//!
//! The functions are documented in NVIDIA's `cuda.h`, and so are the demands on their pointers.
#![allow(missing_docs, clippy::missing_safety_doc)]
// The names of an ABI that is not ours to choose.
#![allow(non_snake_case)]

mod abi;
mod access;
mod array;
mod blocks;
mod content;
mod context;
mod copy;
mod device;
mod engine;
mod export;
mod faults;
mod graph;
mod graphs;
mod import;
mod imports;
mod launch;
mod memory;
mod pieces;
mod pool;
mod process;
mod routing;
mod stream;
mod streams;
mod transcript;
mod virtual_memory;
