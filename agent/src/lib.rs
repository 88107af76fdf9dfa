//! The node agent: NVML on one side, kubelet on the other, `GpuNode` between it and the operator.

pub mod device;
pub mod gpu;
pub mod kubelet;
pub mod metrics;
