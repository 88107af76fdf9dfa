//! Private tables of functions: the driver's are handed out as they are, since CUDA's runtime checks where they are. What that means for the limit.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
};

use crate::support::{
    MIB, Node, Share,
    calls::{CONTEXT, OUT_OF_MEMORY, SUCCESS},
};

/// A program that has initialised CUDA, and has no context.
struct Program<'n> {
    node: &'n Node,
    share: &'n Share,
    child: Child,
}

impl<'n> Program<'n> {
    fn begin(node: &'n Node, share: &'n Share) -> Self {
        let mut command = node.program(&share.folder, &["script", "--bare"]);
        Self { node, share, child: command.stdin(Stdio::piped()).spawn().unwrap() }
    }

    /// The code of each call, with the bytes that the ledger counts and the driver holds after it.
    fn calls<const N: usize>(&mut self, lines: [String; N]) -> [(i32, u64, u64); N] {
        let (mut input, output) = (self.child.stdin.take().unwrap(), self.child.stdout.take().unwrap());
        let mut output = BufReader::new(output);
        lines.map(|line| {
            writeln!(input, "{line}").unwrap();
            let mut answer = String::new();
            output.read_line(&mut answer).unwrap();
            let clients = self.node.store.clients().unwrap().live().unwrap();
            let own = clients.iter().filter(|client| client.pid == self.child.id());
            (answer.trim().parse().unwrap(), self.share.usage.used(), own.map(|client| client.memory).sum())
        })
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn context_of_a_private_table_counts_once_from_the_first_allocation_on() {
    let node = Node::new();
    let share = node.share_with("share", 8 * MIB, CONTEXT);
    let seen = Program::begin(&node, &share).calls([
        "table-context 1".to_owned(),
        format!("alloc 0 plain {}", 4 * MIB),
        "table-context 2".to_owned(),
        format!("alloc 1 plain {}", 4 * MIB),
        "alloc 2 plain 1".to_owned(),
    ]);
    let expected = [
        // not seen yet
        (SUCCESS, 0, CONTEXT),
        (SUCCESS, CONTEXT + 4 * MIB, CONTEXT + 4 * MIB),
        (SUCCESS, CONTEXT + 4 * MIB, CONTEXT + 4 * MIB),
        (SUCCESS, CONTEXT + 8 * MIB, CONTEXT + 8 * MIB),
        (OUT_OF_MEMORY, CONTEXT + 8 * MIB, CONTEXT + 8 * MIB),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn allocation_of_a_private_table_is_not_counted_and_shows_between_ledger_and_driver() {
    let node = Node::new();
    let share = node.share_with("share", 8 * MIB, CONTEXT);
    let seen = Program::begin(&node, &share).calls([
        "primary".to_owned(),
        format!("alloc 0 plain {}", 8 * MIB),
        format!("table-alloc 1 {}", 32 * MIB),
        "alloc 2 plain 1".to_owned(),
        "free 1".to_owned(),
    ]);
    let full = CONTEXT + 8 * MIB;
    let expected = [
        (SUCCESS, CONTEXT, CONTEXT),
        (SUCCESS, full, full),
        // the difference is what the audit compares
        (SUCCESS, full, full + 32 * MIB),
        (OUT_OF_MEMORY, full, full + 32 * MIB),
        (SUCCESS, full, full),
    ];
    assert_eq!(seen, expected);
}
