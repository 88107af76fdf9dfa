//! The operator's program: reads the command line and runs what it asks for.

use std::process::ExitCode;

use clap::Parser as _;
use gputenancy_operator::{args::Args, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run::run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "gputenancy-operator ends");
            eprintln!("gputenancy-operator: {error}");
            ExitCode::FAILURE
        }
    }
}
