//! Shutdown on SIGTERM and SIGINT, and the exit status.

use std::{fmt::Display, io, process::ExitCode};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Signal handlers cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error("catching signals: {0}")]
pub struct Error(#[from] io::Error);

/// Cancels `stop` at the first SIGTERM or SIGINT.
pub fn on_signal(stop: CancellationToken) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "shutting down");
        stop.cancel();
    });
    Ok(())
}

/// The exit status of a program; an error goes to the log and to stderr.
pub fn exit_code(program: &str, outcome: Result<(), impl Display>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    tracing::error!(%error, "exiting");
    eprintln!("{program}: {error}");
    ExitCode::FAILURE
}
