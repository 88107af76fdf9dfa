//! What the shim adds to a call, with the same program with and without it in turns.

use std::{error::Error, time::Instant};

use gputenancy_ledger::Pace;

use crate::{
    container::{Container, MIB, Share},
    report::Report,
};

/// Prints nanoseconds of a call without, with a limit of memory, and with one of the GPU's time that is not reached.
pub fn check(container: &Container, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let share = container.share("timing", 4096 * MIB)?;
    let paced = container.paced("timing-paced", Pace { percent: 99, turn: None, burst: false })?;
    for (call, count) in [("pair", "20000"), ("pair", "20000 --live 100000"), ("info", "20000"), ("launch", "5000")] {
        let arguments = format!("time {call} --count {count}");
        let best = |share: Option<&Share>| -> Result<f64, Box<dyn Error>> {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let output = container.work(share, &arguments)?;
                best = best.min(output.number("nanoseconds=").ok_or(output.text)?);
            }
            Ok(best)
        };
        let (without, with) = (best(None)?, best(Some(&share))?);
        let limited = format!("{without:.0} ns without, {with:.0} ns with a limit: {:+.0} ns", with - without);
        let found = if call == "launch" {
            let with = best(Some(&paced))?;
            format!("{limited}; {with:.0} ns with a part of the time: {:+.0} ns", with - without)
        } else {
            limited
        };
        report.measured("timing", &format!("{call} {}", count.split_once(' ').map_or("", |(_, more)| more)), &found);
    }
    let start = |share: Option<&Share>| -> Result<f64, Box<dyn Error>> {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let begin = Instant::now();
            container.work(share, "show")?;
            best = best.min(begin.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(best)
    };
    let (without, with) = (start(None)?, start(Some(&share))?);
    let found = format!("{without:.1} ms without, {with:.1} ms with (its mount namespace included)");
    report.measured("timing", "start of a program", &found);
    Ok(())
}
