//! How far a pool grows: what the driver will add is reserved before, so that no pool is ever above the limit but in one case, which is shown.

use crate::support::{
    MIB, Node,
    calls::{CONTEXT, Calls, OUT_OF_MEMORY, SUCCESS},
};

/// The step in which the simulated pools grow, as on hardware.
const STEP: u64 = 32 * MIB;

fn program(limit: u64, case: impl FnOnce(&mut Calls<'_>)) {
    let node = Node::new();
    let share = node.share_with("share", limit, CONTEXT);
    case(&mut Calls::begin(&node, &share));
}

#[test]
fn pool_whose_next_step_is_beyond_the_limit_does_not_grow() {
    program(4 * STEP, |program| {
        for number in 0..3 {
            program.expect(&format!("alloc {number} async {}", STEP - MIB), SUCCESS);
        }
        program.expect(&format!("alloc 3 plain {}", STEP / 2), SUCCESS);
        // less than what is left, but the pool would grow by a step
        for _ in 0..5 {
            program.expect(&format!("alloc 9 async {}", 4 * MIB), OUT_OF_MEMORY);
            program.expect(&format!("alloc 9 thread {}", STEP / 2), OUT_OF_MEMORY);
        }
        program.expect(&format!("peak 0 {}", 3 * STEP), SUCCESS);
        // what fits into the last step needs none
        program.expect(&format!("alloc 4 async {MIB}"), SUCCESS);
        program.expect(&format!("alloc 5 plain {}", STEP / 2), SUCCESS);
        assert_eq!(program.counted(), 4 * STEP);
    });
}

#[test]
fn size_that_is_no_multiple_of_the_step_is_reserved_as_the_pool_grows() {
    program(4 * STEP, |program| {
        program.expect(&format!("alloc 0 async {}", 3 * STEP + 1), SUCCESS);
        assert_eq!(program.counted(), 4 * STEP);
        program.expect("free 0", SUCCESS);
        program.expect(&format!("alloc 1 plain {}", 2 * MIB), SUCCESS);
        program.expect(&format!("alloc 0 async {}", 3 * STEP + 1), OUT_OF_MEMORY);
        program.expect(&format!("alloc 0 async {}", 3 * STEP), SUCCESS);
        program.expect(&format!("peak 0 {}", 4 * STEP), SUCCESS);
    });
}

/// The exception: the driver tells how much a pool keeps unused, and not whether it is in one piece.
#[test]
fn pool_with_its_unused_memory_in_pieces_grows_by_a_step_within_the_refused_call_alone() {
    program(2 * STEP, |program| {
        for number in 0..8 {
            program.expect(&format!("alloc {number} async {}", STEP / 4), SUCCESS);
        }
        for number in [0, 2, 4, 6] {
            program.expect(&format!("free {number}"), SUCCESS);
        }
        program.expect(&format!("peak 0 {}", 2 * STEP), SUCCESS);
        program.expect(&format!("alloc 9 async {}", STEP / 2), OUT_OF_MEMORY);
        assert_eq!(program.counted(), 2 * STEP, "it has given it back");
        assert_eq!(program.call(&format!("peak 0 {}", 2 * STEP)), 1, "it had more while the call lasted");
        program.expect(&format!("peak 0 {}", 3 * STEP), SUCCESS);
        // a piece that is large enough is used
        program.expect(&format!("alloc 9 async {}", STEP / 4), SUCCESS);
    });
}

#[test]
fn whole_steps_in_pieces_are_given_back_before_an_allocation_is_refused() {
    program(4 * STEP, |program| {
        for number in 0..4 {
            program.expect(&format!("alloc {number} async {STEP}"), SUCCESS);
        }
        for number in [0, 2] {
            program.expect(&format!("free {number}"), SUCCESS);
        }
        program.expect(&format!("alloc 9 async {}", 2 * STEP), SUCCESS);
        assert_eq!(program.counted(), 4 * STEP);
    });
}
