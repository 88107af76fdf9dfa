//! The library that containers with a share of a GPU get in place of the driver's `libcuda.so.1`: it limits the memory that their programs
//! allocate and the time in which they use the GPU, and shows them the share as the GPU.
//!
//! [`table`] exports the functions that it replaces; all others are found in the driver's own library ([`real`]), on which it depends.
//! [`share`] is this container's share, [`held`] what this process has on it. [`pace`] holds launches
//! back. [`routing`] makes `cuGetProcAddress` return the replacements.
//!
//! A program never ends because of this library: without a file of limits it calls the driver, and over the limit, or with limits that are not the
//! agent's, the answer is `CUDA_ERROR_OUT_OF_MEMORY`.
// The names of an ABI that is not ours to choose.
#![allow(non_snake_case)]

mod abi;
mod anonymous;
mod array;
mod clock;
mod context;
mod ended;
mod fork;
mod graph;
mod graph_memory;
mod graph_nodes;
mod held;
mod lock;
mod pace;
mod plain;
mod pool;
mod real;
mod routing;
mod share;
mod sorted;
mod stream;
mod table;
mod view;
mod virtual_memory;
