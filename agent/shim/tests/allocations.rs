//! The shim allocates nothing of the program's heap in calls that programs make often: a program may call CUDA where its allocator cannot be used,
//! and an allocation would take longer than the rest of the call.

use std::{collections::BTreeMap, ffi::OsStr, path::Path, process::Command};

use crate::support::{CONTEXT, GIB, Node, built};
use gputenancy_ledger::{OnMissing, Pace};

/// Compiles a C file of `tests/support`.
fn compile(source: &str, to: &Path, more: &[&OsStr]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(source);
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O2", "-fno-builtin", "-o"]).arg(to).arg(source).args(more);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
}

/// What `counted.c` prints: allocations of the first call, and of a thousand more, by call.
fn counted(program: &mut Command) -> BTreeMap<String, (u64, u64)> {
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split([' ', '=']).collect();
        let [name, "first", first, "then", then, "failed", failed] = words[..] else { unreachable!("{text}") };
        assert_eq!(failed, "0", "{text}");
        (name.to_owned(), (first.parse().unwrap(), then.parse().unwrap()))
    };
    text.lines().map(line).collect()
}

#[test]
fn frequent_calls_allocate_nothing_of_the_heap() {
    let node = Node::new();
    let [driver, program] = ["libempty.so", "counted"].map(|name| node.root.path().join(name));
    let simulated = built::shared("libcuda_sim.so");
    let library = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,--no-as-needed"].map(OsStr::new);
    compile("empty.c", &driver, &[&library[..], &[simulated.as_os_str()]].concat());
    // exported, so that the libraries use its allocator
    compile("counted.c", &program, &["-rdynamic", "-ldl"].map(OsStr::new));
    let share = node.share("share", 16 * GIB);
    for pace in [None, Some(50)] {
        share.limits.write(&node.gpu(0), 16 * GIB, CONTEXT, OnMissing::Deny);
        share.limits.set_pace(pace.map(|percent| Pace { percent, turn: None, burst: false }));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/gpu/in-container");
        let mut container = Command::new(script);
        container.args([&driver, &built::shared("libgputenancy_cuda.so"), &share.folder, &program]);
        container.env("NVSIM_STATE", node.store.dir()).env("NVSIM_DEV", "all");
        let counted = counted(&mut container);
        assert_eq!(counted["own"], (1, 1000), "the program counts");
        assert!(
            counted["launch"].0 > 0,
            "the first call finds the share, and its allocations are counted: {counted:?}"
        );
        let heap: Vec<_> = counted.iter().filter(|(name, (_, then))| *name != "own" && *then > 0).collect();
        assert!(heap.is_empty(), "pace {pace:?}: {heap:?}");
    }
}
