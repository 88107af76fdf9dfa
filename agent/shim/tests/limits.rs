//! Programs with the shim in place of the driver's library, each in a mount namespace as in a container.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    process::{Command, Stdio},
};

use crate::support::{CONTEXT, GIB, Holder, Node, library};
use gputenancy_ledger::{Mapped, OnMissing, Pace, Turn, Usage};

/// The families of allocations, as `cuda-work` names them.
const KINDS: [&str; 7] = ["plain", "pitch", "managed", "async", "virtual", "array", "mipmap"];

#[test]
fn every_family_of_allocations_stops_exactly_at_the_limit() {
    let node = Node::new();
    for kind in KINDS {
        let share = node.share(kind, GIB);
        // pools grow by 32 MiB
        let shown = node.allocate(&share, &["--kind", kind, "--count", "100"]);
        assert!(shown.starts_with("granted=16 code=2\n"), "{kind}: {shown}");
        assert!(shown.contains("total=1024MiB free=0MiB device=1024MiB"), "{kind}: {shown}");
        assert!(share.usage.denied() > 0, "{kind}");
        // what was freed can be allocated again, many times more than the limit
        let again = node.allocate(&share, &["--kind", kind, "--count", "100", "--free"]);
        assert!(again.starts_with("granted=100 code=0\n"), "{kind}: {again}");
    }
}

#[test]
fn size_that_no_gpu_has_is_refused_as_out_of_memory() {
    let node = Node::new();
    let share = node.share("share", GIB);
    for kind in KINDS {
        let shown = node.allocate(&share, &["--kind", kind, "--size", "4194304Gi"]);
        assert!(shown.starts_with("granted=0 code="), "{kind}: {shown}");
    }
    let after = node.allocate(&share, &["--count", "16", "--all"]);
    assert!(after.starts_with("granted=16"), "nothing stayed reserved: {after}");
}

#[test]
fn processes_of_a_container_share_its_limit_and_a_killed_one_gives_its_part_back() {
    let node = Node::new();
    let share = node.share("share", 2 * GIB);
    let first = node.holder(&share, "16");
    // 1 GiB of the first, and the context of the second
    let second = node.allocate(&share, &["--count", "100"]);
    assert!(second.starts_with("granted=6 code=2\n"), "{second}");
    drop(first);
    let third = node.allocate(&share, &["--count", "100"]);
    assert!(third.starts_with("granted=32 code=2\n"), "{third}");
}

#[test]
fn neighbour_of_a_greedy_container_allocates_undisturbed() {
    let node = Node::new();
    let (greedy, neighbour) = (node.share("greedy", 60 * GIB), node.share("neighbour", 10 * GIB));
    let holder = node.holder(&greedy, "960");
    let more = node.allocate(&greedy, &["--count", "1"]);
    assert!(more.starts_with("granted=0 code=2\n"), "{more}");
    for _ in 0..3 {
        let all = node.allocate(&neighbour, &["--count", "100", "--size", "100Mi", "--all"]);
        assert!(all.starts_with("granted=100 code=0\n"), "{all}");
    }
    drop(holder);
}

#[test]
fn memory_of_an_ended_process_is_free_in_the_view_of_the_next_one() {
    let node = Node::new();
    let share = node.share("share", 2 * GIB);
    drop(node.holder(&share, "24"));
    let shown = node.run(&share, &["show"]);
    assert!(shown.contains("total=2048MiB free=2048MiB"), "{shown}");
}

#[test]
fn what_a_pool_keeps_unused_is_given_to_other_allocations() {
    let node = Node::new();
    let share = node.share("share", GIB);
    // fills the limit from the pool, frees all of it, which the pool keeps, and allocates the same again
    for then in ["plain", "virtual", "array"] {
        let shown = node.allocate(&share, &["--kind", "async", "--count", "16", "--then", then]);
        assert!(shown.contains("then granted=16 code=0"), "{then}: {shown}");
    }
}

#[test]
fn reset_of_the_device_frees_what_was_allocated() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let shown = node.allocate(&share, &["--count", "16", "--reset", "--then", "plain"]);
    assert!(shown.contains("then granted=16 code=0"), "{shown}");
}

#[test]
fn allocation_of_more_than_a_mebibyte_counts_as_whole_blocks() {
    let node = Node::new();
    let share = node.share("share", GIB);
    for kind in ["plain", "managed", "pitch"] {
        // 1,100 KiB take a block of 2 MiB of the GPU
        let shown = node.allocate(&share, &["--kind", kind, "--size", "1100Ki", "--count", "2000"]);
        assert!(shown.starts_with("granted=512 code=2\n"), "{kind}: {shown}");
    }
}

#[test]
fn contexts_count_although_nothing_is_allocated() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let holders: Vec<Holder> = (0..2).map(|_| node.holder(&share, "0")).collect();
    let third = node.allocate(&share, &["--count", "1"]);
    assert!(third.starts_with("granted=0 code=2\n"), "1 GiB is one context in addition to the first: {third}");
    drop(holders);
}

#[test]
fn limit_changes_under_a_running_program() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let holder = node.holder(&share, "8");
    share.limits.resize(4 * GIB);
    let larger = node.allocate(&share, &["--count", "100"]);
    assert!(larger.starts_with("granted=46 code=2\n"), "4 GiB less 0.5 GiB and the second context: {larger}");
    share.limits.resize(GIB / 4);
    let smaller = node.allocate(&share, &["--count", "1"]);
    assert!(smaller.starts_with("granted=0 code=2\n"), "{smaller}");
    drop(holder);
    let alone = node.allocate(&share, &["--count", "100"]);
    assert!(alone.starts_with("granted=4 code=2\n") && alone.contains("total=256MiB free=0MiB"), "{alone}");
}

/// Part of the time for which a program's kernels ran, in percent.
fn launched(output: &[u8]) -> f64 {
    let text = String::from_utf8_lossy(output);
    let number = text.split("percent=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn kernels_take_the_share_of_the_time_and_a_running_program_follows_its_change() {
    let node = Node::new();
    let share = node.share("share", 4 * GIB);
    share.limits.set_pace(Some(Pace { percent: 5, turn: None, burst: false }));
    for mode in ["async", "each", "graph"] {
        let arguments = ["launch", "--iteration", "1", "--millis", "1500", "--mode", mode];
        let got = launched(&node.program(&share.folder, &arguments).output().unwrap().stdout);
        // in addition the last kernels, which are paid for later
        assert!(got < 9.0, "{mode}: {got}");
    }
    let turn = Turn { period: 20_000_000, start: 10_000_000, length: 1_000_000 };
    share.limits.set_pace(Some(Pace { percent: 5, turn: Some(turn), burst: false }));
    let arguments = ["launch", "--iteration", "1", "--millis", "3000"];
    let child = node.program(&share.folder, &arguments).spawn().unwrap();
    while share.usage.paid() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    share.limits.set_pace(None);
    let got = launched(&child.wait_with_output().unwrap().stdout);
    assert!(got > 9.0, "without a limit after the begin: {got}");
}

#[test]
fn kernel_that_does_not_end_is_counted_and_the_program_goes_on() {
    let node = Node::new();
    let share = node.share("share", 4 * GIB);
    share.limits.set_pace(Some(Pace { percent: 50, turn: None, burst: false }));
    // three kernels of 3 seconds: the third one does not wait for the first two
    let arguments = ["launch", "--iteration", "1", "--micros", "3000000", "--millis", "2100"];
    let output = node.program(&share.folder, &arguments).output().unwrap();
    assert!(launched(&output.stdout) > 0.0 && share.usage.endless() > 0);
}

#[test]
fn wait_for_a_kernel_that_does_not_end_is_in_the_ledger_while_it_lasts() {
    let node = Node::new();
    let share = node.share("share", 4 * GIB);
    share.limits.set_pace(Some(Pace { percent: 50, turn: None, burst: false }));
    let arguments = ["launch", "--iteration", "1", "--micros", "3000000", "--millis", "100", "--mode", "each"];
    let mut child = node.program(&share.folder, &arguments).spawn().unwrap();
    let waited = || Mapped::<Usage>::longest_wait(&share.folder.join("usage"));
    let begin = std::time::Instant::now();
    let limit = std::time::Duration::from_mins(1);
    while waited() < std::time::Duration::from_secs(2) && begin.elapsed() < limit {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(begin.elapsed() < limit && child.try_wait().unwrap().is_none());
    child.wait().unwrap();
    assert!(waited().is_zero());
}

#[test]
fn child_after_fork_holds_nothing_of_its_parent() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let shown = node.allocate(&share, &["--count", "4", "--fork"]);
    // CUDA's own answer: it is not initialised in the child
    assert!(shown.contains("child code=3"), "{shown}");
    let after = node.allocate(&share, &["--count", "100"]);
    assert!(after.starts_with("granted=16 code=2\n"), "{after}");
}

#[test]
fn program_that_replaces_itself_gives_back_what_it_held_and_loses_nothing() {
    let node = Node::new();
    for kind in KINDS {
        let share = node.share(kind, GIB);
        // the same process holds all of it before, and can allocate all of it again after, and no more
        let shown = node.allocate(&share, &["--kind", kind, "--count", "17", "--exec", "plain"]);
        let granted: Vec<&str> = shown.lines().filter(|line| line.starts_with("granted=")).collect();
        assert_eq!(granted, ["granted=16 code=2", "granted=16 code=2"], "{kind}: {shown}");
        let after = node.run(&share, &["show"]);
        assert!(after.contains("total=1024MiB free=1024MiB"), "{kind}: {after}");
        assert_eq!(share.usage.processes(), [], "{kind}");
    }
}

#[test]
fn another_gpu_and_a_container_without_limits_are_left_alone() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let mut other = node.program(&share.folder, &["allocate", "--count", "100"]);
    let output = other.env("CUDA_VISIBLE_DEVICES", node.gpu(1)).output().unwrap();
    assert!(output.stdout.starts_with(b"granted=100 code=0\n"), "{output:?}");
    fs::create_dir(node.root.path().join("none")).unwrap();
    let output = node.program(&node.root.path().join("none"), &["allocate", "--count", "100"]).output().unwrap();
    assert!(output.stdout.starts_with(b"granted=100 code=0\n"), "{output:?}");
}

#[test]
fn missing_or_broken_usage_follows_the_policy_and_ends_no_program() {
    let node = Node::new();
    let share = node.share("share", GIB);
    fs::remove_file(share.folder.join("usage")).unwrap();
    for content in [None, Some(&b"short"[..]), Some(&vec![0xff; 65536][..])] {
        if let Some(content) = content {
            fs::write(share.folder.join("usage"), content).unwrap();
        }
        share.limits.write(&node.gpu(0), GIB, CONTEXT, OnMissing::Deny);
        let denied = node.allocate(&share, &["--count", "100"]);
        assert!(denied.starts_with("granted=0 code=2\n"), "{denied}");
        share.limits.write(&node.gpu(0), GIB, CONTEXT, OnMissing::Allow);
        let allowed = node.allocate(&share, &["--count", "100"]);
        assert!(allowed.starts_with("granted=100 code=0\n"), "{allowed}");
    }
}

#[test]
fn limits_that_are_not_those_of_the_agent_allow_nothing() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let refused = |program: &mut Command| {
        let output = String::from_utf8(program.output().unwrap().stdout).unwrap();
        assert!(output.starts_with("granted=0 code=2\n"), "{output}");
    };
    let path = share.folder.join("limits");
    let whole = fs::read(&path).unwrap();
    // the container could write it
    refused(node.program(&share.folder, &["allocate"]).env("WRITABLE", "yes"));
    let version = [&whole[..8], &[9], &whole[9..]].concat();
    for content in [&b""[..], b"short", &version, &vec![0xff; whole.len()], &vec![0; whole.len()]] {
        fs::write(&path, content).unwrap();
        refused(&mut node.program(&share.folder, &["allocate"]));
        refused(&mut node.program(&share.folder, &["allocate", "--kind", "virtual"]));
    }
    fs::write(&path, whole).unwrap();
    assert!(node.allocate(&share, &[]).starts_with("granted=1 code=0\n"));
}

#[test]
fn forged_usage_hurts_only_the_container_that_forges_it() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let path = share.folder.join("usage");
    let mut bytes = fs::read(&path).unwrap();
    // magic and version stay
    bytes[16..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let shown = node.allocate(&share, &["--count", "100"]);
    assert!(shown.starts_with("granted="), "no crash: {shown}");
}

#[test]
fn get_proc_address_returns_replacements_of_the_same_name_and_nothing_else() {
    let node = Node::new();
    let share = node.share("share", GIB);
    let asked = [
        ("cuMemAlloc 3020 0", "shim cuMemAlloc_v2 0"),
        ("cuMemAlloc 2000 0", "shim cuMemAlloc 0"),
        ("cuMemAllocAsync 11020 0", "shim cuMemAllocAsync 0"),
        ("cuMemAllocAsync 11020 2", "shim cuMemAllocAsync_ptsz 0"),
        ("cuMemFreeAsync 11020 2", "shim cuMemFreeAsync_ptsz 0"),
        ("cuMemGetInfo 13000 0", "shim cuMemGetInfo_v2 0"),
        ("cuGetProcAddress 11030 0", "shim cuGetProcAddress 0"),
        ("cuGetProcAddress 12000 0", "shim cuGetProcAddress_v2 0"),
        ("cuInit 2000 0", "driver cuInit 0"),
        ("cuMemAlloc_v2 13000 0", "none 1"),
        ("cuMemAllocAsync 3020 0", "none 2"),
    ];
    let mut child = node.program(&share.folder, &["routes"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for (line, _) in asked {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let shown =
        shown.replace("/run/shim/libcuda.so.1", "shim").replace("/run/gputenancy/driver/libcuda.so.1", "driver");
    let expected: Vec<String> = asked.iter().map(|(line, answer)| format!("{line} -> {answer}")).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn library_exports_the_functions_of_the_table_and_nothing_else() {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library("libgputenancy_cuda.so")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let table = include_str!("../src/table.rs");
    let declared = table.lines().filter_map(|line| line.strip_prefix("    fn cu")?.split_once('('));
    let declared: Vec<String> = declared.map(|(name, _)| format!("cu{name}")).collect();
    assert_eq!(exported, declared.iter().map(String::as_str).collect());
}
