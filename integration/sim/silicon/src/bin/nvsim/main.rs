//! `nvsim`: installs the simulated driver on a node and controls it in tests.
//!
//! Called as `nvidia-smi` it resets and shows GPUs, and called as `nvidia-cuda-mps-control` it runs the control daemon of the
//! Multi-Process Service, as these tools of a driver root do.

mod admin;
mod lifecycle;
mod mps;
mod report;
mod smi;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use silicon::{Store, paths};

/// Simulated NVIDIA GPUs.
#[derive(Parser)]
#[command(name = "nvsim", version)]
struct Arguments {
    /// State folder; by default the driver root's that contains this program, or the container's.
    #[arg(long, global = true, env = "NVSIM_STATE")]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs the simulated driver.
    Install(lifecycle::Install),
    /// Uninstalls the simulated driver.
    Uninstall(lifecycle::Uninstall),
    /// Installs, then keeps device nodes and the persistent MIG mode up to date until SIGTERM.
    Run(lifecycle::Run),
    /// Writes the parts of /proc, /sys and the driver root that NVIDIA's programs read.
    Materialize(lifecycle::Materialize),
    #[command(flatten)]
    Admin(admin::Command),
}

fn main() -> ExitCode {
    let program = std::env::args_os().next().map(PathBuf::from);
    let arguments = || std::env::args().skip(1).collect::<Vec<_>>();
    match program.as_ref().and_then(|p| p.file_name()?.to_str()) {
        Some("nvidia-smi") => return smi::main(arguments()),
        Some("nvidia-cuda-mps-control") => return mps::control(&arguments()),
        Some("nvidia-cuda-mps-server") => return mps::server(),
        _ => {}
    }
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nvsim: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { state, command }: Arguments) -> Result<(), Box<dyn Error>> {
    let store = || Store::new(state.clone().unwrap_or_else(paths::state_folder));
    match command {
        Command::Install(install) => lifecycle::install(&install).map(drop),
        Command::Uninstall(uninstall) => lifecycle::uninstall(&uninstall),
        Command::Run(run) => lifecycle::run(&run),
        Command::Materialize(materialize) => lifecycle::materialize(&store(), &materialize),
        Command::Admin(command) => admin::run(&store(), command),
    }
}
