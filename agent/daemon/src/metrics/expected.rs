//! Return codes of NVML that are answers, and no failures of the call.

use gputenancy_agent_core::nvml::code;

/// Calls about processes and instances that may be gone, and about values that some boards do not have. They are made for each sample.
const SAMPLED: [&str; 11] = [
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
];
/// Other calls about what some boards and drivers do not have: `gputenancy_nvml` then reports nothing, or makes an older call.
const PROBES: [&str; 18] = [
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGridLicensableFeatures_v4",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlEventSetCreate",
];
/// Calls that walk numbers, such as those of links and slots, until a board has no more.
const WALKS: [&str; 2] = ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigDeviceHandleByIndex"];
/// Calls that look for one object, which may not exist.
const LOOKUPS: [&str; 4] = [
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlGpuInstanceGetComputeInstanceById",
];
/// Calls that are repeated with a larger buffer.
const LISTS: [&str; 4] = [
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
];

/// Whether the code means that board or driver has nothing of the kind, or that nothing has happened.
pub(super) fn is_expected(call: &str, code: u32) -> bool {
    let is_one_of = |calls: &[&str]| calls.contains(&call);
    // each profile that NVML numbers is tried, with each version of its struct
    let optional = call.contains("ProfileInfo") || is_one_of(&SAMPLED);
    match code {
        code::TIMEOUT => call.starts_with("nvmlEventSetWait"),
        code::NOT_SUPPORTED | code::FUNCTION_NOT_FOUND => optional || is_one_of(&PROBES),
        code::INVALID_ARGUMENT => optional || is_one_of(&WALKS),
        code::NOT_FOUND => is_one_of(&SAMPLED) || is_one_of(&LOOKUPS),
        code::INSUFFICIENT_SIZE => is_one_of(&LISTS),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_healthy_node_are_expected() {
        for (call, code) in [
            ("nvmlEventSetWait_v2", code::TIMEOUT),
            ("nvmlDeviceGetMemoryLimits_v1", code::NOT_SUPPORTED),
            ("nvmlDeviceGetMemoryLimits_v1", code::FUNCTION_NOT_FOUND),
            ("nvmlDeviceGetMemoryLimits_v1", code::NOT_FOUND),
            ("nvmlDeviceSetMemoryLimits_v1", code::FUNCTION_NOT_FOUND),
            ("nvmlDeviceGetGpuInstanceProfileInfo", code::NOT_SUPPORTED),
            ("nvmlDeviceGetGpuInstanceProfileInfo", code::INVALID_ARGUMENT),
            ("nvmlDeviceGetGpuInstanceProfileInfoV", code::NOT_SUPPORTED),
            ("nvmlDeviceGetGpuInstanceProfileInfoV", code::INVALID_ARGUMENT),
            ("nvmlDeviceGetGpuInstanceProfileInfoV", code::FUNCTION_NOT_FOUND),
            ("nvmlGpuInstanceGetComputeInstanceProfileInfo", code::NOT_SUPPORTED),
            ("nvmlGpuInstanceGetComputeInstanceProfileInfo", code::INVALID_ARGUMENT),
            ("nvmlDeviceGetNvLinkState", code::INVALID_ARGUMENT),
            ("nvmlDeviceGetNvLinkState", code::NOT_SUPPORTED),
            ("nvmlDeviceGetMigMode", code::NOT_SUPPORTED),
            ("nvmlDeviceGetVirtualizationMode", code::FUNCTION_NOT_FOUND),
            ("nvmlDeviceGetMigDeviceHandleByIndex", code::NOT_FOUND),
            ("nvmlDeviceGetComputeRunningProcesses_v3", code::INSUFFICIENT_SIZE),
            ("nvmlDeviceGetProcessUtilization", code::NOT_FOUND),
            ("nvmlDeviceGetClockInfo", code::NOT_SUPPORTED),
        ] {
            assert!(is_expected(call, code), "{call} {code}");
        }
    }

    #[test]
    fn faults_and_refused_calls_are_failures() {
        for (call, code) in [
            ("nvmlEventSetWait_v2", code::GPU_IS_LOST),
            ("nvmlEventSetWait_v2", code::UNKNOWN),
            ("nvmlEventSetWait_v2", code::INVALID_ARGUMENT),
            ("nvmlDeviceGetMemoryLimits_v1", code::TIMEOUT),
            ("nvmlDeviceGetMemoryLimits_v1", code::UNKNOWN),
            ("nvmlDeviceGetUUID", code::TIMEOUT),
            ("nvmlDeviceGetNvLinkState", code::GPU_IS_LOST),
            ("nvmlDeviceGetNvLinkState", code::TIMEOUT),
            ("nvmlDeviceGetGpuInstanceProfileInfoV", code::UNKNOWN),
            ("nvmlDeviceGetClockInfo", code::GPU_IS_LOST),
            // without the list of processes nothing is known about a GPU
            ("nvmlDeviceGetComputeRunningProcesses_v3", code::FUNCTION_NOT_FOUND),
            ("nvmlInit_v2", code::FUNCTION_NOT_FOUND),
            ("nvmlDeviceSetMigMode", code::NOT_SUPPORTED),
            ("nvmlGpuInstanceDestroy", code::NOT_FOUND),
            ("nvmlDeviceSetMemoryLimits_v1", code::INVALID_ARGUMENT),
        ] {
            assert!(!is_expected(call, code), "{call} {code}");
        }
    }
}
