//! `gpu-test`: the memory and compute limits of the shim on the GPU of this machine, with NVIDIA's driver or the simulated one.
//!
//! [`container`] runs programs with and without the shim, each in a mount namespace as in a container. [`checks`] are what must hold and
//! what is measured; [`report`] prints them as a table. It fails if something does not hold.

mod checks;
mod container;
mod nvml;
mod report;

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::Parser;

use crate::{container::Container, report::Report};

/// Tests the limits of GPU memory and compute on this machine's GPU 0, which nothing else may use meanwhile.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The shim.
    #[arg(long)]
    shim: PathBuf,
    /// The program `cuda-work`.
    #[arg(long)]
    work: PathBuf,
    /// The driver's CUDA library. Default: what the linker finds.
    #[arg(long)]
    driver: Option<PathBuf>,
    /// The driver's NVML library.
    #[arg(long, default_value = "libnvidia-ml.so.1")]
    nvml: String,
    /// The folder that has the driver's libraries in `lib64` or another usual folder, as the agent gets it.
    #[arg(long, default_value = "/")]
    driver_root: PathBuf,
    /// The library over NVML; without it `nvidia-smi` is not checked.
    #[arg(long)]
    view: Option<PathBuf>,
    /// NVIDIA's program.
    #[arg(long, default_value = "nvidia-smi")]
    smi: PathBuf,
    /// A Python with `PyTorch`, for its checks.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Milliseconds of each measurement of a part of the GPU's time.
    #[arg(long, default_value_t = 3000)]
    millis: u64,
    /// Names of the checks to run, such as `memory`; all if none is given.
    checks: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu-test: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let gpu = nvml::Gpu::open(&arguments.nvml)?;
    let container = Container::new(arguments, gpu)?;
    let mut report = Report::default();
    for (name, check) in checks::ALL {
        let wanted = arguments.checks.is_empty() || arguments.checks.iter().any(|wanted| wanted == name);
        if wanted && let Err(error) = check(&container, &mut report) {
            report.fails(name, "runs to its end", &error.to_string());
        }
    }
    Ok(report.all_hold())
}
