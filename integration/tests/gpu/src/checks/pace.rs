//! Parts of the GPU's time. They are relative to what the same program gets without a limit, which is less than the whole time: between two kernels
//! there is a gap. For a program that waits after each kernel they are parts of the whole time, because it leaves the GPU idle in between.

use std::error::Error;

use gputenancy_ledger::{Pace, Turn};

use crate::{
    container::{Container, Output, end},
    report::Report,
};

/// Length of a period of turns, in nanoseconds.
const PERIOD: u64 = 20_000_000;
/// Programs: many short kernels, a wait after each, long ones, graphs, several streams.
const PROGRAMS: [&str; 5] = [
    "--micros 20",
    "--micros 200 --mode each",
    "--micros 5000",
    "--micros 100 --mode graph",
    "--micros 200 --streams 4",
];

/// One share alone, and two at a time.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let millis = container.millis;
    let first = container.work(None, "launch --millis 200")?;
    let iteration = first.number("iteration=").ok_or_else(|| first.text.clone())?;
    let launch = |more: &str| format!("launch --iteration {iteration} --millis {millis} {more}");
    let mut free = Vec::new();
    for more in PROGRAMS {
        free.push(part(&container.work(None, &launch(more))?)?);
    }
    report.measured("pace", "without a limit", &list(&free));
    let mut differences = Vec::new();
    for percent in [10_u32, 20, 30, 50, 70, 90] {
        let mut found = Vec::new();
        for (more, free) in PROGRAMS.iter().zip(&free) {
            let share = container.paced("pace", Pace { percent: percent.into(), turn: None, burst: false })?;
            let whole = if more.contains("each") { 100.0 } else { *free };
            let got = part(&container.work(Some(&share), &launch(more))?)? / whole * 100.0;
            differences.push((got - f64::from(percent)).abs());
            found.push(got);
        }
        report.measured("pace", &format!("{percent} percent, alone"), &list(&found));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let worst = differences.iter().copied().fold(0.0, f64::max);
    let found = format!("{mean:.1} on average, {worst:.1} at most");
    report.measured("pace", "difference alone, percentage points", &found);
    for (first, second) in [(30, 70), (50, 50), (10, 90)] {
        let turn = |start: u64, percent: u64| {
            let turn = Turn { period: PERIOD, start: start * PERIOD / 100, length: percent * PERIOD / 100 };
            Pace { percent, turn: Some(turn), burst: false }
        };
        let one = container.paced("pace-one", turn(0, first))?;
        let two = container.paced("pace-two", turn(first, second))?;
        let begun = [
            container.begin(Some(&one), &launch("--micros 100"))?,
            container.begin(Some(&two), &launch("--micros 300"))?,
        ];
        let [one, two] = begun.map(end);
        let found = format!("{:.1} and {:.1}", part(&one?)?, part(&two?)?);
        report.measured("pace", &format!("{first} and {second} percent at a time"), &found);
    }
    Ok(())
}

fn part(output: &Output) -> Result<f64, String> {
    output.number("percent=").ok_or_else(|| output.text.clone())
}

fn list(parts: &[f64]) -> String {
    let each = PROGRAMS.iter().zip(parts).map(|(program, part)| format!("`{program}` {part:.1}"));
    each.collect::<Vec<_>>().join(", ")
}
