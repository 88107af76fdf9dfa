//! The operator's program.

use std::process::ExitCode;

use clap::Parser as _;
use gputenancy_cluster::service::shutdown;
use gputenancy_operator::{args::Args, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    shutdown::exit_code("gputenancy-operator", run::run(Args::parse()).await)
}
