//! A program that makes one call after another, and after each what the ledger counts is compared with what the simulated driver holds.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use super::{MIB, Node, Share};

/// Bytes that the simulated driver takes for the contexts of a process, and that the shares of these tests count for them.
pub const CONTEXT: u64 = 300 * MIB;
/// Bytes in which the simulated driver gives out memory.
const BLOCK: u64 = 2 * MIB;
/// Code of a call that succeeded.
pub const SUCCESS: i32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`: how the simulated driver answers for what it does not know.
pub const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: i32 = 400;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: i32 = 201;

/// A running program with the primary context of its GPU.
pub struct Calls<'n> {
    node: &'n Node,
    share: &'n Share,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Contexts that live.
    contexts: u32,
}

impl<'n> Calls<'n> {
    pub fn begin(node: &'n Node, share: &'n Share) -> Self {
        let mut child = node.program(&share.folder, &["script"]).stdin(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { node, share, child, input, output, contexts: 1 }
    }

    /// The code of a call.
    pub fn call(&mut self, line: &str) -> i32 {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        let code = answer.trim().parse().unwrap_or_else(|_| panic!("{line}: {answer:?}"));
        if code == SUCCESS {
            match line.split(' ').next() {
                Some("context" | "primary") => self.contexts += 1,
                Some("destroy" | "reset" | "release") => self.contexts -= 1,
                _ => {}
            }
        }
        self.check(line);
        code
    }

    /// Makes a call whose code is known.
    pub fn expect(&mut self, line: &str, code: i32) {
        assert_eq!(self.call(line), code, "{line}");
    }

    /// Bytes that the ledger counts, without the context.
    pub fn counted(&self) -> u64 {
        self.share.usage.used().checked_sub(CONTEXT).expect("the context stays counted")
    }

    /// The ledger counts what the driver holds for the process, and no more than the limit.
    fn check(&self, line: &str) {
        let clients = self.node.store.clients().unwrap().live().unwrap();
        let held: u64 = clients.iter().filter(|client| client.pid == self.child.id()).map(|client| client.memory).sum();
        let context = if self.contexts == 0 { 0 } else { CONTEXT };
        // the driver gives small allocations blocks together
        assert_eq!(self.counted().next_multiple_of(BLOCK) + context, held, "after {line}");
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
