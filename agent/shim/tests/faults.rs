//! Functions of the driver that fail: the program gets the driver's code, and the ledger counts what the driver holds.

use crate::support::{
    MIB, Node,
    calls::{CONTEXT, Calls, OUT_OF_MEMORY, SUCCESS},
};
use silicon::{
    fault::{Effect, Fault},
    operations,
};

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: i32 = 999;
/// Bytes of an allocation: the step in which the simulated pools grow.
const BLOCK: u64 = 32 * MIB;
const COUNT: u64 = 4;

/// A family, and the functions of the driver that allocate and free.
const FAMILIES: [(&str, &str, &str); 12] = [
    ("plain", "cuMemAlloc_v2", "cuMemFree_v2"),
    ("managed", "cuMemAllocManaged", "cuMemFree_v2"),
    ("pitch", "cuMemAllocPitch_v2", "cuMemFree_v2"),
    ("array", "cuArrayCreate_v2", "cuArrayDestroy"),
    ("volume", "cuArray3DCreate_v2", "cuArrayDestroy"),
    ("mipmap", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy"),
    ("array32", "cuArrayCreate", "cuArrayDestroy"),
    ("volume32", "cuArray3DCreate", "cuArrayDestroy"),
    ("async", "cuMemAllocAsync", "cuMemFreeAsync"),
    ("thread", "cuMemAllocAsync_ptsz", "cuMemFreeAsync"),
    ("virtual", "cuMemCreate", "cuMemRelease"),
    ("graph", "cuGraphLaunch", "cuMemFree_v2"),
];

fn inject(node: &Node, call: &str, times: Option<u32>, effect: Effect) {
    let fault = Fault { call: call.into(), gpu: None, process: None, nth: 1, times, effect, seen: 0 };
    operations::inject(&node.store, fault).unwrap();
}

/// Removes the faults but one that hits nothing: programs look for faults if there is one when they begin.
fn none(node: &Node) {
    operations::clear_faults(&node.store).unwrap();
    inject(node, "nothing", None, Effect::Fail(0));
}

/// Runs a case for every family, each in a container and a program of its own.
fn each_family(case: impl Fn(&Node, &mut Calls<'_>, (&str, &str, &str))) {
    let node = Node::new();
    none(&node);
    for family in FAMILIES {
        let share = node.share_with(family.0, COUNT * BLOCK, CONTEXT);
        case(&node, &mut Calls::begin(&node, &share), family);
    }
}

/// All of the limit can be allocated, and no more.
fn fill(program: &mut Calls<'_>, kind: &str, from: u64) {
    for number in from..COUNT {
        program.expect(&format!("alloc {number} {kind} {BLOCK}"), SUCCESS);
    }
    assert_eq!(program.counted(), COUNT * BLOCK, "{kind}");
    program.expect(&format!("alloc 9 {kind} {BLOCK}"), OUT_OF_MEMORY);
}

#[test]
fn allocation_that_the_driver_refuses_has_its_code_and_stays_counted_nowhere() {
    each_family(|node, program, (kind, allocate, _)| {
        program.expect(&format!("alloc 0 {kind} {BLOCK}"), SUCCESS);
        for code in [UNKNOWN, OUT_OF_MEMORY] {
            for _ in 0..3 {
                inject(node, allocate, Some(1), Effect::Fail(code.cast_unsigned()));
                // the ledger is compared with the driver after each call
                program.expect(&format!("alloc 1 {kind} {BLOCK}"), code);
                none(node);
            }
        }
        fill(program, kind, 1);
    });
}

#[test]
fn allocation_that_the_driver_refuses_for_ever_fills_no_ledger() {
    each_family(|node, program, (kind, allocate, _)| {
        inject(node, allocate, None, Effect::Fail(UNKNOWN.cast_unsigned()));
        for _ in 0..20 {
            program.expect(&format!("alloc 1 {kind} {BLOCK}"), UNKNOWN);
        }
        none(node);
        fill(program, kind, 0);
    });
}

#[test]
fn free_that_the_driver_refuses_has_its_code_and_stays_counted() {
    each_family(|node, program, (kind, _, free)| {
        fill(program, kind, 0);
        inject(node, free, Some(1), Effect::Fail(UNKNOWN.cast_unsigned()));
        program.expect("free 2", UNKNOWN);
        assert_eq!(program.counted(), COUNT * BLOCK, "{kind}");
        program.expect(&format!("alloc 9 {kind} {BLOCK}"), OUT_OF_MEMORY);
        none(node);
        program.expect("free 2", SUCCESS);
        program.expect(&format!("alloc 2 {kind} {BLOCK}"), SUCCESS);
        program.expect(&format!("alloc 9 {kind} {BLOCK}"), OUT_OF_MEMORY);
    });
}

#[test]
fn size_that_the_driver_does_not_report_is_counted_with_the_next_answer() {
    let node = Node::new();
    for (kind, report) in [("async", "cuMemPoolGetAttribute"), ("graph", "cuDeviceGetGraphMemAttribute")] {
        none(&node);
        let share = node.share_with(kind, COUNT * BLOCK, CONTEXT);
        let mut program = Calls::begin(&node, &share);
        for number in 0..COUNT {
            // without an answer of the driver what was reserved stays counted
            inject(&node, report, None, Effect::Fail(UNKNOWN.cast_unsigned()));
            program.expect(&format!("alloc {number} {kind} {BLOCK}"), SUCCESS);
            none(&node);
        }
        program.expect(&format!("alloc 9 {kind} {BLOCK}"), OUT_OF_MEMORY);
        assert_eq!(program.counted(), COUNT * BLOCK, "{kind}");
        program.expect("free 0", SUCCESS);
        program.expect(&format!("alloc 0 plain {BLOCK}"), SUCCESS);
        program.expect("free 0", SUCCESS);
        assert_eq!(program.counted(), (COUNT - 1) * BLOCK, "{kind}");
    }
}

#[test]
fn program_that_ends_in_a_call_of_the_driver_leaves_nothing_counted() {
    let node = Node::new();
    for (effect, allocate) in [(Effect::KillBefore, "cuMemAlloc_v2"), (Effect::KillAfter, "cuMemAllocAsync")] {
        none(&node);
        let share = node.share_with(allocate, COUNT * BLOCK, CONTEXT);
        let kind = if allocate == "cuMemAlloc_v2" { "plain" } else { "async" };
        inject(&node, allocate, Some(1), effect);
        let arguments = ["allocate", "--kind", kind, "--size", "32Mi", "--count", "4", "--all"];
        let killed = node.program(&share.folder, &arguments).output().unwrap();
        assert!(!killed.status.success() && killed.stdout.is_empty(), "{killed:?}");
        none(&node);
        let after = node.program(&share.folder, &arguments).output().unwrap();
        assert!(after.status.success(), "{after:?}");
    }
}
