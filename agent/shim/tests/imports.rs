//! Imported memory counts once: for the process that allocated it, or for none if that is no program of CUDA.

use crate::support::{
    MIB, Node,
    calls::{CONTEXT, Calls, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS},
};

#[test]
fn importer_of_another_container_is_charged_nothing_and_the_exporter_all() {
    let node = Node::new();
    let (owner, importer) = (node.share_with("owner", 8 * MIB, CONTEXT), node.share_with("importer", 4 * MIB, CONTEXT));
    let handle = node.root.path().join("handle").display().to_string();
    let mut owning = Calls::begin(&node, &owner);
    let mut importing = Calls::begin(&node, &importer);
    owning.expect(&format!("alloc 0 plain {}", 8 * MIB), SUCCESS);
    owning.expect(&format!("ipc-export 0 {handle}"), SUCCESS);
    // the owner has it already
    owning.expect(&format!("ipc-open 1 {handle}"), INVALID_CONTEXT);
    for number in 0..3 {
        importing.expect(&format!("ipc-open {number} {handle}"), SUCCESS);
        assert_eq!((importing.counted(), owning.counted()), (0, 8 * MIB));
    }
    // it is closed, and not freed, as often as it was opened
    importing.expect("free 0", INVALID_VALUE);
    importing.expect(&format!("alloc 9 plain {}", 4 * MIB), SUCCESS);
    importing.expect("alloc 8 plain 1", OUT_OF_MEMORY);
    for _ in 0..3 {
        importing.expect("ipc-close 0", SUCCESS);
    }
    importing.expect("ipc-close 0", INVALID_VALUE);
    assert_eq!((importing.counted(), owning.counted()), (4 * MIB, 8 * MIB));
    // with another context, and after the end of the one that has opened it
    importing.expect(&format!("ipc-open 1 {handle}"), SUCCESS);
    importing.expect("context 1", SUCCESS);
    importing.expect(&format!("ipc-open 2 {handle}"), INVALID_CONTEXT);
    importing.expect("use 0", SUCCESS);
    importing.expect("ipc-close 1", SUCCESS);
    importing.expect("use 1", SUCCESS);
    importing.expect(&format!("ipc-open 2 {handle}"), SUCCESS);
    importing.expect("destroy 1", SUCCESS);
    importing.expect("use 0", SUCCESS);
    importing.expect("ipc-close 2", INVALID_VALUE);
    // the handle ends with the memory
    owning.expect("free 0", SUCCESS);
    importing.expect(&format!("ipc-open 3 {handle}"), INVALID_HANDLE);
    assert_eq!((importing.counted(), owning.counted()), (4 * MIB, 0));
}

#[test]
fn end_of_the_exporter_gives_its_memory_back_and_ends_its_handles() {
    let node = Node::new();
    let (owner, importer) = (node.share_with("owner", 8 * MIB, CONTEXT), node.share_with("importer", 8 * MIB, CONTEXT));
    let handle = node.root.path().join("handle").display().to_string();
    let mut owning = Calls::begin(&node, &owner);
    let mut importing = Calls::begin(&node, &importer);
    owning.expect(&format!("alloc 0 plain {}", 8 * MIB), SUCCESS);
    owning.expect(&format!("ipc-export 0 {handle}"), SUCCESS);
    importing.expect(&format!("ipc-open 0 {handle}"), SUCCESS);
    drop(owning);
    importing.expect(&format!("ipc-open 1 {handle}"), INVALID_HANDLE);
    importing.expect("ipc-close 0", SUCCESS);
    assert_eq!(importing.counted(), 0);
    // the next process of the container has the whole limit
    let mut next = Calls::begin(&node, &owner);
    next.expect(&format!("alloc 0 plain {}", 8 * MIB), SUCCESS);
    next.expect("alloc 1 plain 1", OUT_OF_MEMORY);
}

#[test]
fn handle_exists_only_for_what_is_allocated_and_of_no_pool() {
    let node = Node::new();
    let share = node.share_with("share", 64 * MIB, CONTEXT);
    let handle = node.root.path().join("handle").display().to_string();
    let mut program = Calls::begin(&node, &share);
    program.expect(&format!("alloc 0 async {}", 32 * MIB), SUCCESS);
    program.expect(&format!("ipc-export 0 {handle}"), INVALID_VALUE);
    program.expect("alloc 1 plain 1", SUCCESS);
    program.expect(&format!("ipc-export 1 {handle}"), SUCCESS);
    program.expect("free 1", SUCCESS);
    program.expect(&format!("ipc-export 1 {handle}"), INVALID_VALUE);
}

#[test]
fn memory_object_of_another_program_of_the_gpu_is_charged_to_none() {
    let node = Node::new();
    let share = node.share_with("share", 4 * MIB, CONTEXT);
    let mut program = Calls::begin(&node, &share);
    program.expect(&format!("external 0 {}", 64 * MIB), SUCCESS);
    program.expect(&format!("external-map 0 0 {}", 64 * MIB), SUCCESS);
    program.expect(&format!("external-map 1 0 {}", 65 * MIB), INVALID_VALUE);
    assert_eq!(program.counted(), 0);
    program.expect(&format!("alloc 9 plain {}", 4 * MIB), SUCCESS);
    program.expect("alloc 8 plain 1", OUT_OF_MEMORY);
    program.expect("external-destroy 0", SUCCESS);
    program.expect("external-destroy 0", INVALID_HANDLE);
    program.expect("free 0", SUCCESS);
    program.expect("free 0", INVALID_VALUE);
    assert_eq!(program.counted(), 4 * MIB);
    program.expect("external 1 0", INVALID_VALUE);
}
