//! Implements the label protocol of NVIDIA's MIG manager on one node, including its failures, and partitions through NVML as
//! mig-parted does.
//!
//! NVIDIA's program needs its driver and its images. This one reproduces its changes of node labels, their order, and the states
//! that it does not clean up.

mod args;
mod config;
mod labels;
mod manage;
mod partition;

use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match manage::follow(args::Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "ends");
            ExitCode::FAILURE
        }
    }
}
