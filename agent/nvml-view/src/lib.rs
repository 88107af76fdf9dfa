//! The library that containers with a share of a GPU get in place of the driver's `libnvidia-ml.so.1` (NVML): `nvidia-smi` and other programs see
//! the share as the GPU, and the processes of their own container only.
//!
//! [`table`] exports the functions that it replaces; all others are found in the driver's own library ([`real`]), on which it depends.
//! [`share`] is this container's share, [`memory`] and [`processes`] are its answers. They come from the ledger of the container alone: NVML calls
//! its own exported functions, so an answer of the driver may already be one of this library.
//!
//! Nothing is kept between calls. If the share cannot be read, the call fails: the driver's answer would show other teams.
// The names of an ABI that is not ours to choose.
#![allow(non_snake_case)]

mod abi;
mod memory;
mod processes;
mod real;
mod share;
mod table;
