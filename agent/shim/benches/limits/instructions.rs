//! Instructions of calls with and without the shim, counted by Valgrind's callgrind: figures that a loaded machine does not change.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
};

use gputenancy_ledger::Pace;

use crate::{
    container::Driver,
    program::ROUNDS,
    support::{CONTEXT, GIB, Node, Share},
};

/// Calls of a round, of which two programs make one and two times as many: the difference has neither start nor end of a program.
const CALLS: u32 = 200;

/// Prints a table.
pub fn measure() {
    let Some(valgrind) = find("valgrind") else {
        println!("instructions: NOT measured, because valgrind is not on PATH (Debian: apt-get install valgrind)");
        return;
    };
    let node = Node::new();
    let mut profile = OsString::from("--callgrind-out-file=");
    profile.push(node.root.path().join("callgrind"));
    let runner = [valgrind, "--tool=callgrind".into(), profile];
    let memory = node.share_with("memory", 60 * GIB, CONTEXT);
    let time = node.share_with("time", 60 * GIB, CONTEXT);
    time.limits.set_pace(Some(Pace { percent: 50, turn: None, burst: false }));
    // also the events, which the shim records for a part of the time
    let driver = Driver::compiled(&node, "counted", include_str!("../../tests/support/empty.c"));
    println!("\n| call, on empty functions | without | with | instructions more |\n|---|---|---|---|");
    let row = |name: &str, share: &Share, call: &str, live: &str| {
        let count = |share| {
            let [once, twice] = [CALLS, 2 * CALLS].map(|calls| {
                let calls = calls.to_string();
                instructions(driver.command(&node, share, &runner.each_ref(), &["time", call, &calls, live]))
            });
            twice.saturating_sub(once) as f64 / f64::from(CALLS * ROUNDS)
        };
        let (without, with) = (count(None), count(Some(share)));
        println!("| {name} | {without:.0} | {with:.0} | {:.0} |", with - without);
    };
    row("launch, memory limit", &memory, "launch", "0");
    row("launch, 50 % of the time, never held back", &time, "launch", "0");
    row("allocate and free", &memory, "pair", "0");
    row("allocate and free, 10000 live", &memory, "pair", "10000");
    row("`cuMemGetInfo`", &memory, "info", "0");
}

/// Instructions of a program.
fn instructions(mut program: Command) -> u64 {
    let output = program.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    collected.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no count: {text}"))
}

fn find(program: &str) -> Option<OsString> {
    let path = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&path).map(|folder: PathBuf| folder.join(program));
    files.into_iter().find(|file| file.is_file()).map(PathBuf::into_os_string)
}
