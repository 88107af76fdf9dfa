//! What the shim costs, and how exact its shares of a GPU's time are, each next to the same program without it.
//!
//! `cargo bench -p gputenancy-shim --bench limits` runs both parts in two minutes; `-- calls` or `-- shares` runs one, `-- instructions` counts
//! instructions of calls instead of their time. Where it may, it runs with real-time
//! priority, so that other programs of the machine disturb it little; `-- normal` leaves the priority as it is. Programs run in a mount namespace as in
//! a container, on the simulated driver. This program is the measured one as well: [`program`] runs inside, [`calls`] and
//! [`shares`] outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a benchmark ends there, and its numbers are small"
)]

mod calls;
mod container;
mod instructions;
mod program;
mod shares;
#[path = "../../tests/support/mod.rs"]
mod support;

/// First argument of this program in a container.
const INSIDE: &str = "inside";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first == INSIDE) {
        program::run(&arguments[1..]);
        return;
    }
    let named = |part: &str| arguments.iter().any(|argument| argument == part);
    if named("instructions") {
        instructions::measure();
        return;
    }
    let wanted = |part: &str| named(part) || !(named("calls") || named("shares"));
    let priority = if !named("normal") && raise_priority() { "real-time" } else { "normal" };
    println!("load at the begin: {}; {priority} priority", load());
    if wanted("calls") {
        calls::measure();
    }
    if wanted("shares") {
        shares::measure();
    }
    println!("load at the end: {}", load());
}

/// Takes real-time priority, which the programs inherit; false without the right.
fn raise_priority() -> bool {
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: reads `parameters`, and is about this process.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Load of the machine: the figures are only as good as it is idle.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{} on {processors} processors", text.split(' ').next().unwrap_or_default())
}
