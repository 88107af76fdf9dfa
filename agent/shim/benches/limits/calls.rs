//! Nanoseconds of calls with and without the shim, in turns.

use gputenancy_ledger::Pace;

use crate::{
    container::Driver,
    support::{CONTEXT, GIB, Node, Share},
};

/// Programs of each kind, of which the fastest counts.
const PROGRAMS: u32 = 5;

/// Prints a table.
pub fn measure() {
    let node = Node::new();
    let memory = node.share_with("memory", 60 * GIB, CONTEXT);
    let time = node.share_with("time", 60 * GIB, CONTEXT);
    time.limits.set_pace(Some(Pace { percent: 50, turn: None, burst: false }));
    let (empty, simulated) = (Driver::empty(&node), Driver::simulated(&node));
    println!("\n| call | driver | without | with | difference |\n|---|---|---|---|---|");
    let row = |name: &str, driver: &Driver, kind: &str, share: &Share, arguments: &[&str]| {
        let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..PROGRAMS {
            without = without.min(driver.run(&node, None, arguments));
            with = with.min(driver.run(&node, Some(share), arguments));
        }
        let (without_text, with_text, added) = (duration(without), duration(with), duration(with - without));
        println!("| {name} | {kind} | {without_text} | {with_text} | {added}, {:.2}× |", with / without);
    };
    for (driver, kind, many) in [(&empty, "empty functions", true), (&simulated, "simulated", false)] {
        let count = if many { "100000" } else { "2000" };
        row("launch, memory limit", driver, kind, &memory, &["time", "launch", count, "0"]);
        row("launch, 50 % of the time, never held back", driver, kind, &time, &["time", "launch", count, "0"]);
        row("allocate and free", driver, kind, &memory, &["time", "pair", if many { count } else { "200" }, "0"]);
        row("`cuMemGetInfo`", driver, kind, &memory, &["time", "info", if many { count } else { "200" }, "0"]);
        row("library, context, first allocation", driver, kind, &memory, &["start"]);
    }
    for live in ["10000", "1000000"] {
        let name = format!("allocate and free, {live} live");
        row(&name, &empty, "empty functions", &memory, &["time", "pair", "100000", live]);
    }
}

/// Nanoseconds with one digit, or whole microseconds.
fn duration(nanoseconds: f64) -> String {
    if nanoseconds.abs() < 50_000.0 { format!("{nanoseconds:.1} ns") } else { format!("{:.0} µs", nanoseconds / 1e3) }
}
