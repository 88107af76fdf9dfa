//! The program behind `kubectl gpu`.

use std::{env, process::ExitCode};

use clap::Parser as _;
use kubectl_gpu::{args::Args, output, render, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() { run::ERROR } else { 0 };
            // there is no other place to report that standard error is closed
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    render::width::set(env::var("COLUMNS").ok().as_deref());
    run::run(args).await.map_or_else(
        |error| {
            output::error(error);
            ExitCode::from(run::ERROR)
        },
        ExitCode::from,
    )
}
