//! Graphs that allocate and free memory: it counts when the driver reserves it, which is at a launch or an upload.

use crate::support::{
    MIB, Node,
    calls::{CONTEXT, Calls, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS},
};

/// Runs a case in a container with this limit.
fn program(limit: u64, case: impl FnOnce(&mut Calls<'_>)) {
    let node = Node::new();
    let share = node.share_with("share", limit, CONTEXT);
    case(&mut Calls::begin(&node, &share));
}

/// Makes calls that succeed.
fn all(program: &mut Calls<'_>, lines: &[&str]) {
    for line in lines {
        program.expect(line, SUCCESS);
    }
}

/// A graph that allocates and frees so many bytes, instantiated.
fn closed(program: &mut Calls<'_>, graph: u64, bytes: u64) {
    let lines = [
        format!("graph {graph}"),
        format!("graph-alloc {graph} {graph} {bytes}"),
        format!("graph-free {graph} {graph}"),
        format!("instantiate {graph} 0 flags"),
    ];
    for line in lines {
        program.expect(&line, SUCCESS);
    }
}

#[test]
fn launch_within_the_limit_succeeds_as_often_as_wanted_and_one_beyond_it_reserves_nothing() {
    program(8 * MIB, |program| {
        closed(program, 1, 8 * MIB);
        closed(program, 2, 8 * MIB + 1);
        assert_eq!(program.counted(), 0, "nothing is reserved before a launch");
        for _ in 0..3 {
            program.expect("launch 2", OUT_OF_MEMORY);
            program.expect("upload 2", OUT_OF_MEMORY);
            program.expect("launch-thread 2", OUT_OF_MEMORY);
            assert_eq!(program.counted(), 0);
            program.expect("graph-reserved 0", SUCCESS);
        }
        for _ in 0..5 {
            program.expect("launch 1", SUCCESS);
            assert_eq!(program.counted(), 8 * MIB);
        }
        program.expect("launch 2", OUT_OF_MEMORY);
        // what it keeps is given to others, and taken back at its next launch
        all(program, &[&format!("alloc 7 plain {}", 8 * MIB)]);
        program.expect("launch 1", OUT_OF_MEMORY);
        all(program, &["free 7", "launch 1", "upload 1", "launch-thread 1"]);
        assert_eq!(program.counted(), 8 * MIB);
        all(program, &["executable-destroy 1", "graph-destroy 1"]);
        assert_eq!(program.counted(), 8 * MIB, "the driver keeps it");
        all(program, &["graph-trim"]);
        assert_eq!(program.counted(), 0);
    });
}

#[test]
fn every_way_to_add_a_node_and_to_instantiate_counts() {
    program(4 * MIB, |program| {
        let mut graph = 0;
        for route in ["node", "any", "edges"] {
            for (how, flags) in [("first", 0), ("second", 0), ("flags", 0), ("params", 0), ("thread", 0), ("params", 2)]
            {
                for (bytes, code) in [(4 * MIB, SUCCESS), (4 * MIB + 1, OUT_OF_MEMORY)] {
                    graph += 1;
                    all(program, &[&format!("graph {graph}"), &format!("graph-alloc {graph} 0 {bytes} {route}")]);
                    all(program, &[&format!("graph-free {graph} 0 {route}")]);
                    // with the flag the graph is uploaded at once
                    let made = program.call(&format!("instantiate {graph} {flags} {how}"));
                    assert_eq!(made, if flags == 0 { SUCCESS } else { code }, "{route} {how} {bytes}");
                    if made == SUCCESS {
                        program.expect(&format!("launch {graph}"), code);
                        program.expect(&format!("executable-destroy {graph}"), SUCCESS);
                    }
                    let expected = if code == SUCCESS { 4 * MIB } else { 0 };
                    assert_eq!(program.counted(), expected, "{route} {how} {bytes}");
                }
            }
        }
    });
}

#[test]
fn allocations_that_follow_each_other_need_the_memory_of_one() {
    program(8 * MIB, |program| {
        all(program, &["graph 1"]);
        for _ in 0..20 {
            all(program, &[&format!("graph-alloc 1 1 {}", 8 * MIB), "graph-free 1 1"]);
        }
        all(program, &["instantiate 1 0 flags", "launch 1", "launch 1"]);
        assert_eq!(program.counted(), 8 * MIB);
    });
}

#[test]
fn graphs_of_one_stream_share_memory_and_each_can_have_the_whole_limit() {
    program(8 * MIB, |program| {
        closed(program, 1, 8 * MIB);
        closed(program, 2, 6 * MIB);
        all(program, &["stream 1", "stream 2"]);
        for _ in 0..3 {
            all(program, &["launch 1 1", "launch 2 1", "launch 2 2", "launch 1 2", "launch 2", "launch 1"]);
            assert_eq!(program.counted(), 8 * MIB);
        }
    });
}

#[test]
fn threads_that_launch_destroy_and_allocate_at_once_leave_the_ledger_exact() {
    // with memory to spare, and with so little that launches trim what others have prepared
    for limit in [64 * MIB, 8 * MIB] {
        program(limit, |program| {
            closed(program, 1, 4 * MIB);
            closed(program, 2, 6 * MIB);
            // the script keeps this graph, and instantiates it in each round
            all(program, &["graph 3", &format!("graph-alloc 3 3 {}", 2 * MIB), "graph-free 3 3"]);
            all(program, &["stream 1", "stream 2"]);
            for _ in 0..3 {
                // each call compares what is counted with what the driver holds
                all(program, &["race 1 1 2 2 3", "launch 1 1", "launch 2 2"]);
            }
            all(program, &["graph-trim"]);
            assert_eq!(program.counted(), 0, "nothing stays counted for launches that have ended");
        });
    }
}

#[test]
fn capture_of_allocations_counts_when_the_graph_is_launched() {
    program(8 * MIB, |program| {
        all(program, &["stream 1", "alloc 5 plain 1", "capture 1"]);
        // the graph owns them, and nothing is allocated now, although it would be refused
        all(program, &[&format!("capture-alloc 1 1 {}", 8 * MIB), "capture-free 1 1"]);
        all(program, &[&format!("capture-alloc 1 2 {}", 4 * MIB), "capture-free 1 2"]);
        program.expect("capture-free 1 2", INVALID_VALUE);
        all(program, &["capture-end 1 1", "instantiate 1 0 flags"]);
        assert!(program.counted() < MIB, "block 5 alone");
        program.expect("launch 1 1", OUT_OF_MEMORY);
        all(program, &["free 5", "launch 1 1"]);
        assert_eq!(program.counted(), 8 * MIB);
    });
}

#[test]
fn allocation_that_a_graph_leaves_counts_until_it_is_freed_and_trimmed() {
    program(8 * MIB, |program| {
        all(program, &["graph 1", &format!("graph-alloc 1 1 {}", 6 * MIB), "instantiate 1 0 flags", "launch 1"]);
        program.expect("launch 1", INVALID_VALUE);
        all(program, &["graph-trim"]);
        assert_eq!(program.counted(), 6 * MIB);
        // another graph frees it
        all(program, &["graph 2", "graph-free 2 1", "instantiate 2 0 flags", "launch 2"]);
        program.expect("launch 2", INVALID_VALUE);
        program.expect("free 1", INVALID_VALUE);
        program.expect("graph-free 1 1", INVALID_VALUE);
        all(program, &["launch 1", "free 1"]);
        program.expect("free 1", INVALID_VALUE);
        assert_eq!(program.counted(), 6 * MIB);
        all(program, &["graph-trim"]);
        assert_eq!(program.counted(), 0);
    });
}

#[test]
fn graph_that_frees_at_its_next_launch_can_have_the_whole_limit() {
    program(8 * MIB, |program| {
        all(program, &["graph 1", &format!("graph-alloc 1 1 {}", 8 * MIB), "instantiate 1 1 params"]);
        all(program, &["launch 1", "launch 1", "launch-thread 1", "launch 1"]);
        assert_eq!(program.counted(), 8 * MIB);
        program.expect("alloc 9 plain 1", OUT_OF_MEMORY);
        all(program, &["free 1", "alloc 9 plain 1"]);
        program.expect("launch 1", OUT_OF_MEMORY);
    });
}

#[test]
fn graph_with_allocations_has_one_executable_at_a_time() {
    program(8 * MIB, |program| {
        closed(program, 1, 8 * MIB);
        program.expect("instantiate 1 0 flags", INVALID_VALUE);
        all(program, &["launch 1", "executable-destroy 1", "instantiate 1 0 flags", "launch 1"]);
        assert_eq!(program.counted(), 8 * MIB);
    });
}
