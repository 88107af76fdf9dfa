//! Node conditions of known health products, each with the status that is bad: the polarity differs.

use gputenancy_crds::{
    ConditionStatus::{self, False, True},
    HealthPreset,
};

/// Of these the one that says what is to come.
pub(super) const PLANNED: &str = "MaintenancePlanned";

/// Of Kubernetes 1.37 (alpha); nothing of Kubernetes itself acts on them.
const KUBERNETES: &[&str] = &[PLANNED, "MaintenanceInProgress", "DrainInProgress"];

/// NVSentinel 1.28 sets a condition to True when a fault is fatal; faults that are not are events.
const NVSENTINEL: &[&str] = &[
    "GpuMemWatch",
    "GpuThermalWatch",
    "GpuPcieWatch",
    "GpuPowerWatch",
    "GpuInforomWatch",
    "GpuSmWatch",
    "GpuNvlinkWatch",
    "GpuDriverWatch",
    "SysLogsXIDError",
    "SysLogsSXIDError",
    "SysLogsGPUFallenOff",
    "NVSwitchFatalError",
    "CSPMaintenance",
];

/// Amazon's agent 1.7 reports that a part of the node is ready.
const EKS: &[&str] =
    &["AcceleratedHardwareReady", "KernelReady", "NetworkingReady", "StorageReady", "ContainerRuntimeReady"];

/// Those of AKS for nodes with GPUs that tell a fault; a throttled clock is none.
const AKS: &[&str] =
    &["GPUMissing", "NVLinkStatusInactive", "XIDErrors", "IBLinkFlapping", "UnhealthyNvidiaDevicePlugin"];

/// The permanent problems of node-problem-detector's default configuration.
const NODE_PROBLEM_DETECTOR: &[&str] =
    &["KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown", "CperHardwareErrorFatal"];

/// Conditions with their bad status.
pub(super) fn conditions(preset: HealthPreset) -> impl Iterator<Item = (&'static str, ConditionStatus)> {
    let (types, bad) = match preset {
        HealthPreset::Kubernetes => (KUBERNETES, True),
        HealthPreset::NVSentinel => (NVSENTINEL, True),
        HealthPreset::EKS => (EKS, False),
        HealthPreset::AKS => (AKS, True),
        HealthPreset::NodeProblemDetector => (NODE_PROBLEM_DETECTOR, True),
    };
    types.iter().map(move |type_| (*type_, bad))
}
