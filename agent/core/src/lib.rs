//! The agent's decisions, as pure functions: no NVML, no kubelet, no API server, no clock. Time is an argument.
//!
//! [`gpu`] and [`nvml`] are what NVML reports, [`device`] what the agent makes of it and how kubelet uses that. [`partition`] decides the next
//! operation on a GPU and which devices it has, [`kubelet`] the Node's allocatable, [`enforcement`] the limit of a share, [`audit`] what
//! follows from its use, [`attribution`] the container of each process, [`pods_past_grace`] when what outlives its pod is stopped, [`forbidden_variables`]
//! which variables are forbidden, [`warm_up`] when an empty answer is believed, and [`usage`] how busy devices are, by container and tenant.

pub mod attribution;
pub mod audit;
pub mod device;
pub mod device_memory;
pub mod enforcement;
pub mod forbidden_variables;
pub mod gpu;
pub mod kubelet;
pub mod nvml;
pub mod partition;
pub mod pod;
pub mod pods_past_grace;
pub mod usage;
pub mod warm_up;

/// A number of NVML as the API writes it; the largest one if it does not fit.
pub fn to_i32<T: TryInto<i32>>(number: T) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}
