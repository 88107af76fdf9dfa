//! The node agent's program.

use std::process::ExitCode;

use clap::Parser;
use gputenancy_agent::{args::Args, run};
use gputenancy_cluster::service::shutdown;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.rights { run::rights().await } else { Box::pin(run::run(args)).await };
    shutdown::exit_code("gputenancy-agent", outcome)
}
