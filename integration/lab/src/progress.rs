//! One line for each step, with the seconds since the start.

use std::time::Instant;

/// Prints progress.
pub struct Progress {
    started: Instant,
    verbose: bool,
}

impl Progress {
    /// Starts the clock; a silent one prints nothing.
    pub fn new(verbose: bool) -> Self {
        Self { started: Instant::now(), verbose }
    }

    /// Prints a completed step.
    pub fn step(&mut self, what: &str) {
        if self.verbose {
            eprintln!("lab: {:5.1} s  {what}", self.started.elapsed().as_secs_f64());
        }
    }
}
