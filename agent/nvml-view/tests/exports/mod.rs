//! The functions of NVML (names of `nm -D libnvidia-ml.so.1`, or of `nvml.h`, by version) against the table: each that could show memory, processes
//! or activity of other containers is replaced, or is listed here with the reason why not. A version with a new one fails this test: add its
//! list of names.

use std::collections::{BTreeMap, BTreeSet};

const VERSIONS: [(&str, &str); 2] =
    [("of driver 550.163", include_str!("550.163.txt")), ("in nvml.h of CUDA 13.5", include_str!("cuda-13.5.txt"))];

/// Parts of the names of functions that matter.
const PARTS: [&str; 9] =
    ["Process", "Pids", "AccountingStats", "Mem", "Sessions", "Utilization", "Samples", "FbUsage", "ActiveVgpus"];

/// Functions that are not replaced.
fn reasons() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        (
            "about the whole GPU, and documented so",
            &[
                "nvmlDeviceGetBAR1MemoryInfo",
                "nvmlDeviceGetUtilizationRates",
                "nvmlDeviceGetEncoderUtilization",
                "nvmlDeviceGetDecoderUtilization",
                "nvmlDeviceGetJpgUtilization",
                "nvmlDeviceGetOfaUtilization",
                "nvmlDeviceGetSamples",
                "nvmlDevicePerfMetricsGetSamples_v1",
            ][..],
        ),
        ("reads /proc of the container", &["nvmlSystemGetProcessName"]),
        (
            "limits of a cgroup by its path, and a container sees its own cgroup alone",
            &["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"],
        ),
        (
            "virtual machines, which a node of containers has none of",
            &[
                "nvmlDeviceGetActiveVgpus",
                "nvmlDeviceGetVgpuUtilization",
                "nvmlDeviceGetVgpuInstancesUtilizationInfo",
                "nvmlDeviceGetVgpuProcessUtilization",
                "nvmlDeviceGetVgpuProcessesUtilizationInfo",
                "nvmlVgpuInstanceClearAccountingPids",
                "nvmlVgpuInstanceGetAccountingPids",
                "nvmlVgpuInstanceGetAccountingStats",
                "nvmlVgpuInstanceGetEncoderSessions",
                "nvmlVgpuInstanceGetFBCSessions",
                "nvmlVgpuInstanceGetFbUsage",
                "nvmlGpuInstanceGetActiveVgpus",
            ],
        ),
        (
            "a property of the hardware, or its setting",
            &[
                "nvmlDeviceGetConfComputeMemSizeInfo",
                "nvmlDeviceGetConfComputeProtectedMemoryUsage",
                "nvmlDeviceSetConfComputeUnprotectedMemSize",
                "nvmlDeviceGetMemClkMinMaxVfOffset",
                "nvmlDeviceGetMemClkVfOffset",
                "nvmlDeviceSetMemClkVfOffset",
                "nvmlDeviceGetMemoryAffinity",
                "nvmlDeviceGetMemoryBusWidth",
                "nvmlDeviceGetMemoryErrorCounter",
                "nvmlDeviceGetSupportedMemoryClocks",
                "nvmlDeviceGetUnrepairableMemoryFlag_v1",
                "nvmlDeviceResetMemoryLockedClocks",
                "nvmlDeviceSetMemoryLockedClocks",
                "nvmlDeviceClearAccountingPids",
            ],
        ),
        (
            "traffic of the GPU's links",
            &[
                "nvmlDeviceFreezeNvLinkUtilizationCounter",
                "nvmlDeviceGetNvLinkUtilizationControl",
                "nvmlDeviceGetNvLinkUtilizationCounter",
                "nvmlDeviceResetNvLinkUtilizationCounter",
                "nvmlDeviceSetNvLinkUtilizationControl",
                "nvmlDeviceGetNvLinkTelemetrySamples_v1",
            ],
        ),
    ])
}

#[test]
fn nvml_has_no_function_about_memory_or_processes_that_is_unknown_here() {
    let table = include_str!("../../src/table.rs");
    let replaced: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("    fn nvml")?.split_once('('))
        .map(|(name, _)| format!("nvml{name}"))
        .collect();
    let reasons = reasons();
    let excepted: BTreeSet<&str> = reasons.values().copied().flatten().copied().collect();
    let lists = VERSIONS.map(|(version, names)| (version, names.lines().collect::<BTreeSet<_>>()));
    for (version, names) in &lists {
        let matter = names.iter().filter(|name| PARTS.iter().any(|part| name.contains(part)));
        let unknown: Vec<_> = matter.filter(|name| !replaced.contains(**name) && !excepted.contains(**name)).collect();
        assert!(unknown.is_empty(), "{version}: {unknown:?}");
    }
    let all: BTreeSet<&str> = lists.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let misspelt: Vec<_> = replaced.iter().filter(|name| !all.contains(name.as_str())).collect();
    assert!(misspelt.is_empty(), "no NVML has {misspelt:?}");
    let needless: Vec<_> = excepted.iter().filter(|name| replaced.contains(**name) || !all.contains(**name)).collect();
    assert!(needless.is_empty(), "{needless:?}");
}
