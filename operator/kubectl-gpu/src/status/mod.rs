//! Status of the fleet: nodes, GPUs, devices and the pods that own them. [`report`] is pure, from objects to a report.

mod attention;
mod bar;
mod device;
mod filter;
mod model;
mod report;
mod unallocated;

pub(crate) use device::count_of;
pub use filter::{Filter, FilterError};
pub use model::{
    AgentStatus, DeviceCounts, DeviceState, DeviceStatus, FleetStatus, GpuStatus, NodeStatus, PodReference, PoolStatus,
    SliceBar, SlicePart, SliceState, StateWeight, Unallocated,
};
pub use report::report;
