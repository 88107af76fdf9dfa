//! The functions of real drivers (names of `nm -D libcuda.so.1`, by version) against the table: each that takes memory, launches work or makes a
//! context is replaced, or is listed here with the reason why not. A driver with a new one fails this test: add its list of names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends there")]

use std::collections::{BTreeMap, BTreeSet};

const DRIVERS: [(&str, &str); 2] =
    [("550.163", include_str!("exports/550.163.txt")), ("580.159", include_str!("exports/580.159.txt"))];

/// Parts of the names of functions that matter.
const PARTS: [&str; 9] =
    ["Alloc", "Create", "Launch", "Import", "ExternalMemory", "OpenMemHandle", "Multicast", "CtxRetain", "MemMap"];

/// Functions that are not replaced.
fn reasons() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        (
            "addresses of 32 bits: no runtime of the last ten years asks for them",
            &["cuArrayCreate", "cuArray3DCreate"][..],
        ),
        (
            "memory that another container, or this one in another form, has counted",
            &[
                "cuIpcOpenMemHandle",
                "cuIpcOpenMemHandle_v2",
                "cuImportExternalMemory",
                "cuDestroyExternalMemory",
                "cuExternalMemoryGetMappedBuffer",
                "cuExternalMemoryGetMappedMipmappedArray",
                "cuMemImportFromShareableHandle",
                "cuMemPoolImportFromShareableHandle",
                "cuMemPoolImportPointer",
            ],
        ),
        ("memory of the host", &["cuMemAllocHost", "cuMemAllocHost_v2", "cuMemHostAlloc"]),
        (
            "an object without memory of its own",
            &[
                "cuEventCreate",
                "cuStreamCreate",
                "cuStreamCreateWithPriority",
                "cuGreenCtxStreamCreate",
                "cuGraphCreate",
                "cuGraphConditionalHandleCreate",
                "cuLinkCreate",
                "cuLinkCreate_v2",
                "cuSurfObjectCreate",
                "cuTexObjectCreate",
                "cuTexRefCreate",
                "cuUserObjectCreate",
                "cuMulticastCreate",
                "cuMulticastAddDevice",
                "cuMulticastBindAddr",
                "cuMulticastUnbind",
                "cuMulticastGetGranularity",
                "cuImportExternalSemaphore",
            ],
        ),
        (
            "only tells something",
            &[
                "cuMemGetAllocationGranularity",
                "cuMemGetAllocationPropertiesFromHandle",
                "cuGraphMemAllocNodeGetParams",
            ],
        ),
        ("calls the host", &["cuLaunchHostFunc", "cuLaunchHostFunc_ptsz"]),
        ("a part of a context that is counted", &["cuGreenCtxCreate"]),
        (
            "not counted, and documented so",
            &["cuGraphAddMemAllocNode", "cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"],
        ),
        ("for debuggers", &["cudbgEnableLaunchBlocking"]),
    ])
}

#[test]
fn driver_has_no_function_that_takes_memory_or_launches_and_is_unknown_here() {
    let table = include_str!("../src/table.rs");
    let hooked: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("    fn cu")?.split_once('('))
        .map(|(name, _)| format!("cu{name}"))
        .collect();
    let reasons = reasons();
    let excepted: BTreeSet<&str> = reasons.values().copied().flatten().copied().collect();
    for (version, names) in DRIVERS {
        let names: BTreeSet<&str> = names.lines().collect();
        let matter = names.iter().filter(|name| PARTS.iter().any(|part| name.contains(part)));
        let unknown: Vec<_> = matter.filter(|name| !hooked.contains(**name) && !excepted.contains(**name)).collect();
        assert!(unknown.is_empty(), "driver {version}: {unknown:?}");
        // a function for streams has a form for the streams of a thread, and both are replaced
        for name in hooked.iter().filter(|name| names.contains(format!("{name}_ptsz").as_str())) {
            assert!(hooked.contains(&format!("{name}_ptsz")), "driver {version}: {name}");
        }
        for name in hooked.iter().filter(|name| name.ends_with("_ptsz")) {
            assert!(names.contains(name.as_str()), "driver {version} has no {name}");
        }
    }
    let needless: Vec<_> = excepted.iter().filter(|name| hooked.contains(**name)).collect();
    assert!(needless.is_empty(), "{needless:?}");
}
