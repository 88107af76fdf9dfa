//! `libnvidia-ml.so.1` over the simulated boards: NVML's C ABI, answered from the state that all processes share.
//!
//! Every symbol of NVML 13 is exported, because a missing one aborts Go programs; what is not simulated returns
//! `NVML_ERROR_NOT_SUPPORTED`.
//!
//! The functions are documented in NVIDIA's `nvml.h`, and so are the demands on their pointers.
#![allow(missing_docs, clippy::missing_safety_doc)]
// The names of an ABI that is not ours to choose.
#![allow(non_snake_case)]

mod call;
mod device;
mod event;
mod health;
mod library;
mod license;
mod mig;
mod system;
mod topology;
mod usage;
