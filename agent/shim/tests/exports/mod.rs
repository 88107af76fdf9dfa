//! The functions of real drivers (names of `nm -D libcuda.so.1`, by version) against the table: each that takes memory, launches work or makes a
//! context is replaced, or is listed here with the reason why not. A driver with a new one fails this test: add its list of names.

use std::collections::{BTreeMap, BTreeSet};

const DRIVERS: [(&str, &str); 2] = [("550.163", include_str!("550.163.txt")), ("580.159", include_str!("580.159.txt"))];

/// Parts of the names of functions that matter.
const PARTS: [&str; 17] = [
    "ExportTable",
    "Alloc",
    "Create",
    "Launch",
    "Import",
    "ExternalMemory",
    "OpenMemHandle",
    "Multicast",
    "CtxRetain",
    "MemMap",
    "GraphAdd",
    "GraphInstantiate",
    "GraphUpload",
    "GraphMem",
    "ModuleLoad",
    "LibraryLoad",
    "SetLimit",
];

/// Ends of the names of the forms of a function that use the stream of the calling thread.
const OF_THREAD: [&str; 2] = ["_ptsz", "_ptds"];

/// Functions that are not replaced.
fn reasons() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
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
            ][..],
        ),
        ("the driver's own tables: NVIDIA's runtime checks where they are", &["cuGetExportTable"]),
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
            &["cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"],
        ),
        ("for debuggers", &["cudbgEnableLaunchBlocking"]),
        (
            "memory of modules, kernels' stacks and heaps: not counted, and documented so",
            &[
                "cuCtxSetLimit",
                "cuLibraryLoadData",
                "cuLibraryLoadFromFile",
                "cuModuleLoad",
                "cuModuleLoadData",
                "cuModuleLoadDataEx",
                "cuModuleLoadFatBinary",
            ],
        ),
    ])
}

/// Functions for graphs that are not replaced.
fn reasons_of_graphs() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        (
            "a node without memory of its own",
            &[
                "cuGraphAddBatchMemOpNode",
                "cuGraphAddChildGraphNode",
                "cuGraphAddDependencies",
                "cuGraphAddDependencies_v2",
                "cuGraphAddEmptyNode",
                "cuGraphAddEventRecordNode",
                "cuGraphAddEventWaitNode",
                "cuGraphAddExternalSemaphoresSignalNode",
                "cuGraphAddExternalSemaphoresWaitNode",
                "cuGraphAddHostNode",
                "cuGraphAddKernelNode",
                "cuGraphAddKernelNode_v2",
                "cuGraphAddMemcpyNode",
                "cuGraphAddMemsetNode",
            ][..],
        ),
        (
            "memory of graphs, which counts when they are instantiated and launched",
            &["cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode"],
        ),
        (
            "shows or changes parameters of graphs",
            &[
                "cuDeviceGetGraphMemAttribute",
                "cuDeviceSetGraphMemAttribute",
                "cuGraphMemFreeNodeGetParams",
                "cuGraphMemcpyNodeGetParams",
                "cuGraphMemcpyNodeSetParams",
                "cuGraphMemsetNodeGetParams",
                "cuGraphMemsetNodeSetParams",
            ],
        ),
    ])
}

#[test]
fn driver_has_no_function_that_takes_memory_or_launches_and_is_unknown_here() {
    let table = include_str!("../../src/table.rs");
    let hooked: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("    fn cu")?.split_once('('))
        .map(|(name, _)| format!("cu{name}"))
        .collect();
    let reasons: Vec<_> = reasons().into_values().chain(reasons_of_graphs().into_values()).collect();
    let excepted: BTreeSet<&str> = reasons.into_iter().flatten().copied().collect();
    for (version, names) in DRIVERS {
        let names: BTreeSet<&str> = names.lines().collect();
        let matter = names.iter().filter(|name| PARTS.iter().any(|part| name.contains(part)));
        let unknown: Vec<_> = matter.filter(|name| !hooked.contains(**name) && !excepted.contains(**name)).collect();
        assert!(unknown.is_empty(), "driver {version}: {unknown:?}");
        for end in OF_THREAD {
            // both forms are replaced, or none
            let twins = || names.iter().filter_map(|twin| Some((*twin, twin.strip_suffix(end)?)));
            let of_thread = twins().filter(|(_, name)| hooked.contains(*name)).count();
            assert!(of_thread > 0, "no function with a form {end} is replaced: this check compares nothing");
            let alone: Vec<_> =
                twins().filter(|(twin, name)| hooked.contains(*twin) != hooked.contains(*name)).collect();
            assert!(alone.is_empty(), "driver {version}: one form is replaced, the other is not: {alone:?}");
            for name in hooked.iter().filter(|name| name.ends_with(end)) {
                assert!(names.contains(name.as_str()), "driver {version} has no {name}");
            }
        }
    }
    let needless: Vec<_> = excepted.iter().filter(|name| hooked.contains(**name)).collect();
    assert!(needless.is_empty(), "{needless:?}");
}
