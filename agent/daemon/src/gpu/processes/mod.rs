//! Processes on GPUs that NVML does not list, and the containers that processes belong to.

pub mod cap_minors;
pub mod device_files;
pub mod process_origin;
