//! The parts of programs that run for long: flags and format of the log, health and metrics endpoints with what a
//! program reports of itself, and the end by a signal.

pub mod endpoints;
pub mod logging;
pub mod metrics;
mod process;
pub mod shutdown;
