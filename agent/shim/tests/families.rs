//! Every family of allocations at the limit, over it, freed, freed twice, and with a context that is another one or gone.

use crate::support::{
    MIB, Node,
    calls::{CONTEXT, Calls, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS},
};

/// What ends an allocation that is not freed.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// Its context.
    Context,
    /// The last context of the GPU.
    LastContext,
    /// The process.
    Process,
}

/// A family of allocations.
struct Family {
    /// As `cuda-work` calls it; `from` allocates from a pool of the program.
    kind: &'static str,
    /// Bytes of an allocation. The limit is a multiple of it.
    block: u64,
    /// The smallest allocation in bytes that needs more memory of the GPU if all of it is used.
    least: u64,
    end: End,
}

const FAMILIES: [Family; 13] = [
    Family { kind: "plain", block: 4 * MIB, least: 1, end: End::Context },
    Family { kind: "managed", block: 4 * MIB, least: 1, end: End::Context },
    // rows of one byte
    Family { kind: "pitch", block: 4 * MIB, least: 1024, end: End::Context },
    Family { kind: "array", block: 4 * MIB, least: 4096, end: End::Context },
    Family { kind: "volume", block: 4 * MIB, least: 4096, end: End::Context },
    Family { kind: "mipmap", block: 4 * MIB, least: 4096, end: End::Context },
    Family { kind: "array32", block: 4 * MIB, least: 4096, end: End::Context },
    Family { kind: "volume32", block: 4 * MIB, least: 4096, end: End::Context },
    // the simulated pools grow by 32 MiB
    Family { kind: "async", block: 32 * MIB, least: 1, end: End::LastContext },
    Family { kind: "thread", block: 32 * MIB, least: 1, end: End::LastContext },
    Family { kind: "from", block: 32 * MIB, least: 1, end: End::LastContext },
    // what a graph leaves allocated
    Family { kind: "graph", block: 4 * MIB, least: 1, end: End::LastContext },
    Family { kind: "virtual", block: 4 * MIB, least: 2 * MIB, end: End::Process },
];

/// Allocations that reach the limit.
const COUNT: u64 = 6;

impl Family {
    fn limit(&self) -> u64 {
        COUNT * self.block
    }

    /// The call that allocates.
    fn allocate(&self, number: u64, bytes: u64) -> String {
        match self.kind {
            "from" => format!("from {number} 1 {bytes}"),
            kind => format!("alloc {number} {kind} {bytes}"),
        }
    }

    /// Allocates what is left of the limit, from this number on.
    fn fill(&self, program: &mut Calls<'_>, from: u64) {
        for number in from..COUNT {
            program.expect(&self.allocate(number, self.block), SUCCESS);
        }
        assert_eq!(program.counted(), self.limit(), "{}", self.kind);
    }

    fn free_all(&self, program: &mut Calls<'_>) {
        for number in 0..COUNT {
            program.expect(&format!("free {number}"), SUCCESS);
        }
        assert!(program.counted() == 0 || self.end == End::LastContext, "pools and graphs keep what was freed");
    }

    fn is_of_pool(&self) -> bool {
        ["async", "thread", "from"].contains(&self.kind)
    }

    /// The code of a free after what it was allocated in has ended.
    fn free_after(&self, ended: End) -> i32 {
        let is_gone = match ended {
            End::Context => self.end == End::Context,
            _ => self.end != End::Process,
        };
        if is_gone { INVALID_VALUE } else { SUCCESS }
    }
}

/// Runs a case for every family, each in a container and a program of its own.
fn each_family(case: impl Fn(&Family, &mut Calls<'_>)) {
    let node = Node::new();
    for family in &FAMILIES {
        let share = node.share_with(family.kind, family.limit(), CONTEXT);
        let mut program = Calls::begin(&node, &share);
        program.expect("pool 1", SUCCESS);
        case(family, &mut program);
    }
}

#[test]
fn allocation_at_the_limit_is_granted_and_one_unit_more_is_refused() {
    each_family(|family, program| {
        for bytes in [family.limit() + family.least, family.limit() + family.block, 1 << 62] {
            let code = program.call(&family.allocate(9, bytes));
            assert!([OUT_OF_MEMORY, INVALID_VALUE].contains(&code), "{} {bytes}: {code}", family.kind);
        }
        family.fill(program, 0);
        for bytes in [family.least, family.block, family.limit()] {
            program.expect(&family.allocate(9, bytes), OUT_OF_MEMORY);
            assert_eq!(program.counted(), family.limit(), "{}", family.kind);
        }
        family.free_all(program);
        // all of it as one allocation
        program.expect(&family.allocate(0, family.limit()), SUCCESS);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
    });
}

#[test]
fn freed_memory_can_be_allocated_again() {
    each_family(|family, program| {
        for _ in 0..5 {
            family.fill(program, 0);
            family.free_all(program);
        }
        family.fill(program, 0);
        for number in [3, 0, 5] {
            program.expect(&format!("free {number}"), SUCCESS);
            program.expect(&family.allocate(number, family.block), SUCCESS);
            program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
        }
    });
}

#[test]
fn second_free_has_the_error_of_the_driver_and_changes_nothing() {
    each_family(|family, program| {
        family.fill(program, 0);
        program.expect("free 2", SUCCESS);
        let counted = program.counted();
        for _ in 0..3 {
            program.expect("free 2", INVALID_VALUE);
            assert_eq!(program.counted(), counted, "{}", family.kind);
        }
        program.expect(&family.allocate(2, family.block), SUCCESS);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
    });
}

#[test]
fn free_and_allocation_count_with_another_context_and_with_none() {
    each_family(|family, program| {
        family.fill(program, 0);
        program.expect("context 1", SUCCESS);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
        program.expect("free 0", SUCCESS);
        program.expect(&family.allocate(0, family.block), SUCCESS);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
        program.expect("use-none", SUCCESS);
        program.expect("free 1", SUCCESS);
        // memory of `cuMemCreate` is of a device, that of a pool of the program is of the pool
        let without = program.call(&family.allocate(1, family.block));
        let expected = if ["virtual", "from"].contains(&family.kind) { SUCCESS } else { INVALID_CONTEXT };
        assert_eq!(without, expected, "{}", family.kind);
        program.expect("use 0", SUCCESS);
        if without != SUCCESS {
            program.expect(&family.allocate(1, family.block), SUCCESS);
        }
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
    });
}

#[test]
fn end_of_a_context_gives_back_what_ends_with_it() {
    each_family(|family, program| {
        for number in 0..2 {
            program.expect(&family.allocate(number, family.block), SUCCESS);
        }
        program.expect("context 1", SUCCESS);
        for number in 2..COUNT {
            program.expect(&family.allocate(number, family.block), SUCCESS);
        }
        program.expect("destroy 1", SUCCESS);
        program.expect("destroy 1", INVALID_CONTEXT);
        program.expect("use 1", INVALID_CONTEXT);
        program.expect("use 0", SUCCESS);
        for number in 2..COUNT {
            program.expect(&format!("free {number}"), family.free_after(End::Context));
            program.expect(&format!("free {number}"), INVALID_VALUE);
        }
        family.fill(program, 2);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
    });
}

#[test]
fn reset_of_the_device_gives_back_all_but_memory_of_no_context() {
    each_family(|family, program| {
        for end in ["reset", "release"] {
            family.fill(program, 0);
            program.expect(end, SUCCESS);
            assert_eq!(program.counted() == 0, family.end != End::Process, "{}", family.kind);
            for number in 0..COUNT {
                program.expect(&format!("free {number}"), family.free_after(End::LastContext));
            }
            program.expect("primary", SUCCESS);
            program.expect("pool 1", SUCCESS);
        }
        family.fill(program, 0);
        program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
    });
}

#[test]
fn allocation_of_no_pool_that_a_stream_frees_is_given_back() {
    each_family(|family, program| {
        if !["plain", "managed", "pitch"].contains(&family.kind) {
            return;
        }
        for _ in 0..3 {
            family.fill(program, 0);
            for number in 0..COUNT {
                program.expect(&format!("stream-free {number}"), SUCCESS);
                program.expect(&format!("stream-free {number}"), INVALID_VALUE);
                program.expect(&format!("free {number}"), INVALID_VALUE);
            }
            assert_eq!(program.counted(), 0, "{}", family.kind);
        }
    });
}

#[test]
fn allocation_of_a_pool_that_is_freed_as_a_plain_one_goes_back_to_the_pool() {
    each_family(|family, program| {
        if family.is_of_pool() {
            family.fill(program, 0);
            program.expect("plain-free 0", SUCCESS);
            program.expect("plain-free 0", INVALID_VALUE);
            assert_eq!(program.counted(), family.limit(), "the pool keeps it");
            program.expect(&family.allocate(0, family.block), SUCCESS);
            program.expect(&family.allocate(9, family.least), OUT_OF_MEMORY);
        }
    });
}

#[test]
fn allocation_of_a_graph_that_a_stream_frees_stays_with_the_graphs_and_is_given_to_others() {
    let node = Node::new();
    let share = node.share_with("share", 12 * MIB, CONTEXT);
    let mut program = Calls::begin(&node, &share);
    for number in 0..3 {
        program.expect(&format!("alloc {number} graph {}", 4 * MIB), SUCCESS);
    }
    program.expect("alloc 9 plain 1", OUT_OF_MEMORY);
    program.expect("stream-free 1", SUCCESS);
    program.expect("stream-free 1", INVALID_VALUE);
    program.expect("free 1", INVALID_VALUE);
    assert_eq!(program.counted(), 12 * MIB, "the graphs keep it");
    for kind in ["plain", "virtual", "array"] {
        program.expect(&format!("alloc 9 {kind} {}", 4 * MIB), SUCCESS);
        program.expect(&format!("alloc 8 {kind} {}", 2 * MIB), OUT_OF_MEMORY);
        program.expect("free 9", SUCCESS);
        program.expect(&format!("alloc 1 graph {}", 4 * MIB), SUCCESS);
        program.expect("free 1", SUCCESS);
    }
}

#[test]
fn memory_that_is_mapped_counts_until_nothing_refers_to_it() {
    let node = Node::new();
    let share = node.share_with("share", 8 * MIB, CONTEXT);
    let mut program = Calls::begin(&node, &share);
    program.expect(&format!("alloc 0 virtual {}", 8 * MIB), SUCCESS);
    program.expect(&format!("map 0 {}", 8 * MIB), SUCCESS);
    program.expect("free 0", SUCCESS);
    program.expect("free 0", INVALID_VALUE);
    assert_eq!(program.counted(), 8 * MIB, "it is mapped");
    program.expect("retain 0", SUCCESS);
    program.expect("unmap 0", SUCCESS);
    assert_eq!(program.counted(), 8 * MIB, "it has a handle again");
    program.expect("retain 0", INVALID_VALUE);
    program.expect("alloc 1 plain 1", OUT_OF_MEMORY);
    program.expect("free 0", SUCCESS);
    assert_eq!(program.counted(), 0);
    program.expect("unmap 0", SUCCESS);
}
