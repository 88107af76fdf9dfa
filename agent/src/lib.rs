//! The node agent: NVML on one side, kubelet on the other, `GpuNode` between it and the operator.

pub mod args;
pub mod carve;
pub mod device;
pub mod environment;
pub mod gpu;
pub mod health;
pub mod kubelet;
pub mod metrics;
pub mod report;
pub mod rewatch;
pub mod rights;
pub mod run;
