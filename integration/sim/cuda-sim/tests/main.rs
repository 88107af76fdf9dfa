//! What GPU memory contains: copies and fills, and what a process leaves for the next one on the same device.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../nvml-sim/tests/support/built.rs"]
mod built;

use std::{
    io::{BufRead, BufReader, Write},
    ops::Range,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use silicon::{
    Store,
    board::Variant,
    boards,
    install::{Options, install},
    materialize, operations,
    physical::{self, Physical},
};

const MIB: u64 = 1 << 20;
/// Code of a call that succeeded.
const SUCCESS: i32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;
/// Memory contains something else.
const DIFFERENT: i32 = 10_000;
/// The pattern of another process was found.
const FOUND: i32 = 10_001;
/// Forms of a copy.
const FORMS: [&str; 8] =
    ["plain", "thread", "async", "async-thread", "any", "any-thread", "any-async", "any-async-thread"];

/// A node with one MIG instance of 6 GB.
struct Node {
    root: tempfile::TempDir,
    store: Store,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            root: root.path().into(),
            driver_root: "/drv".into(),
            persistent: "/var/lib/nvsim".into(),
            library: built::shared("libcuda_sim.so"),
            cuda: None,
            tool: None,
            node: "node".into(),
            boards: vec![boards::load("a30-24gb").unwrap()],
            variant: Variant::Normal,
            gpus: 1,
            latency_permille: 0,
            devices: false,
        };
        let store = install(&options).unwrap();
        operations::partition(&store, 0, &["1g.6gb".to_owned()]).unwrap();
        Self { root, store }
    }

    /// Sets the registry keys of the driver.
    fn registry(&self, keys: &str) {
        materialize::registry(&self.root.path().join("drv"), keys).unwrap();
    }

    fn program(&self) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuda-work"));
        command.arg("--library").arg(built::shared("libcuda_sim.so")).arg("script");
        command.env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Program { child, input, output }
    }

    /// The physical memory that each process has.
    fn held_by(&self, program: &Program) -> Vec<Range<u64>> {
        let machine = self.store.read().unwrap();
        let device = &machine.mig_devices()[0];
        let within = physical::of_device(&machine, 0, Some((device.gi.id, device.ci.id))).unwrap();
        let all = Physical::open(self.store.dir()).unwrap().others(&within).unwrap();
        all.into_iter().filter(|(_, pid)| *pid == program.child.id()).map(|(range, _)| range).collect()
    }
}

/// A running `cuda-work script`.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn call(&mut self, line: &str) -> i32 {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap_or_else(|_| panic!("{line}: {answer:?}"))
    }

    fn expect(&mut self, line: &str, code: i32) {
        assert_eq!(self.call(line), code, "{line}");
    }

    fn all(&mut self, lines: &[&str]) {
        for line in lines {
            self.expect(line, SUCCESS);
        }
    }

    /// Ends it, with what it has, and returns when its memory is free.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn contains(all: &[Range<u64>], part: &Range<u64>) -> bool {
    // locks that touch each other are one
    all.iter().any(|range| range.start <= part.start && part.end <= range.end)
}

#[test]
fn every_form_of_copy_and_fill_moves_the_bytes() {
    let (node, bytes) = (Node::new(), 5 * MIB + 77);
    let mut program = node.program();
    program.all(&[&format!("alloc 0 plain {bytes}"), &format!("alloc 1 plain {bytes}")]);
    for (seed, form) in FORMS.iter().enumerate() {
        program.expect(&format!("verify 0 {bytes} {seed} {form}"), DIFFERENT);
        program.all(&[&format!("write 0 {bytes} {seed} {form}"), &format!("verify 0 {bytes} {seed}")]);
        program.all(&[&format!("copy 1 0 {bytes} {form}"), &format!("verify 1 {bytes} {seed} {form}")]);
    }
    for (value, form) in FORMS[..4].iter().enumerate() {
        let (byte, word) = (value + 3, 0x0102_0304 + value);
        program.all(&[&format!("set 0 {bytes} {byte} {form}")]);
        program.all(&[&format!("verify-words 0 {bytes} {}", byte * 0x0101_0101)]);
        program.all(&[&format!("set-words 1 {bytes} {word} {form}")]);
        // whole words alone: the last byte is still of the pattern or of the word before
        program.all(&[&format!("verify-words 1 {} {word}", bytes / 4 * 4)]);
    }
    program.all(&[&format!("set 0 {bytes} 0"), &format!("verify-words 0 {bytes} 0")]);
}

#[test]
fn each_family_of_allocations_has_content_of_its_own() {
    let node = Node::new();
    let mut program = node.program();
    let families = ["plain", "managed", "pitch", "async", "thread", "graph", "virtual"];
    for (number, family) in families.iter().enumerate() {
        program.all(&[&format!("alloc {number} {family} {}", 4 * MIB)]);
        if *family == "virtual" {
            program.all(&[&format!("map {number} {}", 4 * MIB)]);
        }
        program.all(&[&format!("write {number} {} {number}", 4 * MIB)]);
    }
    // small ones as well
    for number in 10..40 {
        program.all(&[&format!("alloc {number} plain 1000"), &format!("write {number} 1000 {number}")]);
    }
    for number in (0..families.len()).chain(10..40) {
        let bytes = if number < 10 { 4 * MIB } else { 1000 };
        program.all(&[&format!("verify {number} {bytes} {number}")]);
    }
    // no copy goes on in the allocation that follows
    program.expect(&format!("set 0 {} 1", 4 * MIB + 1), INVALID_VALUE);
    program.expect(&format!("copy 0 2 {}", 4 * MIB + 1), INVALID_VALUE);
    program.all(&[&format!("verify 0 {} 0", 4 * MIB)]);
    program.expect("write 10 1001 1", INVALID_VALUE);
    program.all(&["verify 10 1000 10", "free 10"]);
    program.expect("write 10 1 1", INVALID_VALUE);
}

#[test]
fn imported_memory_has_no_content() {
    let node = Node::new();
    let handle = node.root.path().join("handle").display().to_string();
    let (mut owner, mut importer) = (node.program(), node.program());
    owner.all(&[&format!("alloc 0 plain {MIB}"), &format!("ipc-export 0 {handle}"), "write 0 100 1"]);
    importer.all(&[&format!("ipc-open 0 {handle}")]);
    importer.expect("verify 0 100 1", NOT_SUPPORTED);
}

#[test]
fn next_process_gets_the_same_memory_without_what_the_one_before_has_left() {
    for (keys, code) in [("", SUCCESS), ("RMDisableScrubOnFree=1", FOUND), ("RMDisableScrubOnFree=0", SUCCESS)] {
        let node = Node::new();
        node.registry(keys);
        let mut first = node.program();
        for (number, family) in ["plain", "managed", "async"].iter().enumerate() {
            let bytes = 32 * MIB;
            first.all(&[&format!("alloc {number} {family} {bytes}"), &format!("write {number} {bytes} 7")]);
        }
        let left = node.held_by(&first);
        assert_eq!(left.iter().map(|range| range.end - range.start).sum::<u64>(), 96 * MIB);
        first.kill();

        let mut second = node.program();
        let found = second.call("search 7");
        let searched = node.held_by(&second);
        assert!(left.iter().all(|range| contains(&searched, range)), "the same memory: {left:?} in {searched:?}");
        assert_eq!(found, code, "{keys:?}");
    }
}

#[test]
fn freed_memory_reaches_another_process_while_its_owner_runs_and_what_is_allocated_never() {
    let node = Node::new();
    node.registry("RMDisableScrubOnFree=1");
    let mut owner = node.program();
    for (number, seed) in [(0, 1), (1, 2), (2, 3)] {
        owner.all(&[&format!("alloc {number} plain {}", 8 * MIB), &format!("write {number} {} {seed}", 8 * MIB)]);
    }
    owner.all(&["free 1"]);
    let kept = node.held_by(&owner);
    assert_eq!(kept.iter().map(|range| range.end - range.start).sum::<u64>(), 16 * MIB);
    let mut other = node.program();
    other.expect("search 2", FOUND);
    let got = node.held_by(&other);
    assert!(got.iter().all(|range| kept.iter().all(|own| range.end <= own.start || own.end <= range.start)));
    owner.all(&[&format!("verify 0 {} 1", 8 * MIB), &format!("verify 2 {} 3", 8 * MIB)]);
    other.kill();
    let mut later = node.program();
    later.expect("search 1", SUCCESS);
    later.kill();
    // until it ends
    owner.kill();
    node.program().expect("search 3", FOUND);
}

#[test]
fn memory_that_was_never_accessed_takes_no_space() {
    let node = Node::new();
    let mut program = node.program();
    for number in 0..80 {
        program.all(&[&format!("alloc {number} plain {}", 64 * MIB)]);
    }
    assert!(node.held_by(&program).is_empty());
    // the first access takes all of an allocation; the file keeps what was written
    program.all(&["write 40 4096 1", &format!("copy 41 42 {}", 64 * MIB)]);
    assert_eq!(node.held_by(&program).iter().map(|range| range.end - range.start).sum::<u64>(), 3 * 64 * MIB);
    let file = std::fs::metadata(node.store.dir().join(physical::FILE)).unwrap();
    let kept = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
    assert!(kept < 80 * MIB, "{kept} bytes: one copy of 64 MiB and a page");
}
