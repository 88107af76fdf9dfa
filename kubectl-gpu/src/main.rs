//! The program behind `kubectl gpu`.

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_gpu::{args::Args, run};

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
    match run::run(args).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            anstream::eprintln!("{}error{}: {error}", run::RED.render(), run::RED.render_reset());
            ExitCode::from(run::ERROR)
        }
    }
}
