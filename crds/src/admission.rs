//! Names in the rules of the admission policies that other programs apply too.
//!
//! The chart's policies are the source; a test of `kubectl gpu lint` compares these lists with them.

/// Environment variables that select devices.
///
/// NVIDIA's container runtime also mounts devices of the network, switches and storage for some of them, and takes `CUDA_VERSION` without
/// `NVIDIA_VISIBLE_DEVICES` as a request for all GPUs (libnvidia-container, images older than its version 2).
pub const DEVICE_VARIABLES: &[&str] = &[
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "NVIDIA_GDS",
    "NVIDIA_GDRCOPY",
    "CUDA_VERSION",
];
/// Prefixes of environment variables that limit memory or select an MPS daemon.
pub const LIMIT_VARIABLE_PREFIXES: &[&str] = &["NVIDIA_GPU_MEMORY_", "CUDA_MPS_"];
/// Environment variables that load libraries before the driver's.
pub const PRELOAD_VARIABLES: &[&str] = &["LD_PRELOAD", "LD_AUDIT"];
/// Environment variable that selects the driver's capabilities; the chart's values list those that are allowed.
pub const CAPABILITIES_VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";
