//! The program behind `kubectl gpu`.

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_gpu::{args::Args, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run::run(Args::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            anstream::eprintln!("{}error{}: {error}", run::RED.render(), run::RED.render_reset());
            ExitCode::from(run::ERROR)
        }
    }
}
