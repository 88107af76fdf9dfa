//! Shares of a GPU's time that programs reach: one alone, and two at a time.

use gputenancy_ledger::{Pace, Turn};

use crate::{
    container::{Driver, number},
    support::{CONTEXT, GIB, Node, Share, arbitrating::arbitrating},
};

/// Microseconds of a short, of a longer and of a long kernel.
const KERNELS: [u32; 3] = [1_000, 5_000, 20_000];
/// Those of two programs at a time.
const PAIRS: [(u32, u32); 5] = [(1_000, 1_000), (5_000, 5_000), (20_000, 20_000), (1_000, 20_000), (20_000, 1_000)];
/// Milliseconds of a measurement, and of one without a limit.
const LIMITED: &str = "3000";
const FREE: &str = "1500";
/// Nanoseconds in which each of two fractions has a turn, as the agent gives them.
const PERIOD: u64 = 20_000_000;

/// Prints a table.
pub fn measure() {
    let node = Node::new();
    let driver = Driver::simulated(&node);
    let share = node.share_with("alone", 4 * GIB, CONTEXT);
    println!(
        "\n| kernels | without a limit | {} | mean error | largest |",
        percents().map(|p| format!("{p} %")).collect::<Vec<_>>().join(" | ")
    );
    println!("|---|---|{}---|---|", "---|".repeat(percents().count()));
    for micros in KERNELS {
        let (kernel, mut cells, mut errors) = (micros.to_string(), Vec::new(), Vec::new());
        let free = driver.run(&node, None, &["share", &kernel, FREE, "free"]);
        for percent in percents() {
            share.limits.set_pace(Some(Pace { percent: percent.into(), turn: None, burst: false }));
            let reached = driver.run(&node, Some(&share), &["share", &kernel, LIMITED, "limited"]);
            cells.push(format!("{reached:.2}"));
            errors.push((reached - f64::from(percent)).abs());
        }
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let largest = errors.iter().copied().fold(0.0, f64::max);
        println!("| {} ms | {free:.1} | {} | {mean:.2} | {largest:.2} |", micros / 1000, cells.join(" | "));
    }
    println!("\n| two programs at a time, parts | kernels | one | two | without limits |\n|---|---|---|---|---|");
    for percent in [30, 10] {
        for kernels in PAIRS {
            two(&node, &driver, percent, kernels);
        }
    }
    println!("\n| one program of 30 %, and 70 % idle, kernels | `Strict` | `Burst` |\n|---|---|---|");
    for micros in KERNELS {
        let [strict, burst] = [false, true].map(|burst| next_to_idle(&node, &driver, micros, burst));
        println!("| {} ms | {strict:.2} | {burst:.2} |", micros / 1000);
    }
}

fn percents() -> impl Iterator<Item = u8> {
    (10..=90).step_by(10)
}

/// Two shares that have turns, as the agent gives them.
fn pair(node: &Node, name: &str, percent: u64, burst: bool) -> [Share; 2] {
    let share = |which: &str, start: u64, percent: u64| {
        let share = node.share_with(&format!("{name}-{which}-{percent}-{burst}"), 4 * GIB, CONTEXT);
        let turn = Turn { period: PERIOD, start: start * PERIOD / 100, length: percent * PERIOD / 100 };
        share.limits.set_pace(Some(Pace { percent, turn: Some(turn), burst }));
        share
    };
    [share("one", 0, percent), share("two", percent, 100 - percent)]
}

/// Two programs, with turns and without limits.
fn two(node: &Node, driver: &Driver, percent: u64, (first, second): (u32, u32)) {
    let shares = pair(node, &format!("pair-{first}-{second}"), percent, false);
    let kernels = [first.to_string(), second.to_string()];
    let [one, two] = &kernels;
    let [reached, other] = arbitrating(&shares, || {
        let begun = [(one, &shares[0]), (two, &shares[1])]
            .map(|(kernel, share)| driver.begin(node, Some(share), &["share", kernel, LIMITED, "limited"]));
        begun.map(number)
    });
    let begun = [one, two].map(|kernel| driver.begin(node, None, &["share", kernel, FREE, "free"]));
    let [free, free_other] = begun.map(number);
    let (first, second) = (first / 1000, second / 1000);
    println!(
        "| {percent} and {} % | {first} ms and {second} ms | {reached:.2} | {other:.2} | {free:.1} and {free_other:.1} |",
        100 - percent
    );
}

/// A program next to a share that nothing uses.
fn next_to_idle(node: &Node, driver: &Driver, micros: u32, burst: bool) -> f64 {
    let shares = pair(node, &format!("idle-{micros}"), 30, burst);
    arbitrating(&shares, || driver.run(node, Some(&shares[0]), &["share", &micros.to_string(), LIMITED, "limited"]))
}
