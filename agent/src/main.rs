//! The node agent's program.

use std::process::ExitCode;

use clap::Parser;
use gputenancy_agent::{args::Args, run};
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.rights {
        run::rights().await
    } else {
        let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
        tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).init();
        Box::pin(run::run(args)).await.inspect_err(|error| tracing::error!(%error, "the agent stops"))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gputenancy-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
