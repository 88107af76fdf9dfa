//! The controller of virtual clusters.

use std::process::ExitCode;

use clap::Parser as _;
use gputenancy_cluster::service::shutdown;
use gputenancy_virtual_clusters::{args::Args, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    shutdown::exit_code("gputenancy-virtual-clusters", run::run(Args::parse()).await)
}
