//! Partitioning on a small model of NVML: every path ends at the desired layout, and no client loses its instance. Devices of shared GPUs.

mod cases;
pub mod model;
mod properties;
mod retention;
mod shares;
