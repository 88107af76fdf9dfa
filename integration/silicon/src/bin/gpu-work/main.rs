//! `gpu-work`: uses its visible GPUs as a CUDA program does, or prints them.

mod devices;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use nvml_wrapper::Nvml;
use silicon::attach::{Attachment, attach};
use silicon::clients::Client;
use silicon::{Store, paths};

use crate::devices::Device;

/// A process that uses GPUs.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Uses every device that is visible until SIGTERM or SIGINT.
    Hold {
        /// Memory to take on each device, such as 512Mi or 1Gi.
        #[arg(long, default_value = "256Mi", value_parser = bytes)]
        memory: u64,
        /// The owner of this process.
        #[arg(long, env = "POD_NAME")]
        pod_name: Option<String>,
    },
    /// Prints every device that is visible.
    Show,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gpu-work: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init()?;
    let store = Store::new(paths::state_folder());
    let mut devices = devices::visible(&nvml, &*store.read()?)?;
    // UUIDs, as for CUDA
    if let Ok(chosen) = std::env::var("CUDA_VISIBLE_DEVICES") {
        devices.retain(|device| chosen.split(',').any(|uuid| device.is(uuid)));
    }
    if devices.is_empty() {
        return Err("no GPU is visible".into());
    }
    match command {
        Command::Show => devices.iter().for_each(|d| println!("{d}")),
        Command::Hold { memory, pod_name } => {
            let host = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
            hold(&store, &devices, memory, &pod_name.map_or_else(host, Ok)?)?;
        }
    }
    Ok(())
}

fn hold(store: &Store, devices: &[Device], memory: u64, owner: &str) -> Result<(), Box<dyn Error>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let mut held: Vec<Attachment> = Vec::new();
    for device in devices {
        let client = Client {
            pid: std::process::id(),
            gpu: device.gpu,
            instance: device.instance,
            memory,
            name: "gpu-work".into(),
            owner: owner.into(),
        };
        held.push(attach(store, &client, &held)?);
        println!("{device} held={}MiB", memory >> 20);
    }
    signals.wait()?;
    for attachment in held {
        attachment.detach(store)?;
    }
    Ok(())
}

/// Bytes of a quantity as Kubernetes writes it.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift))).ok_or("a quantity")?;
    let number: u64 = number.parse().map_err(|e| format!("such as 512Mi or 1Gi: {e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too much".into())
}
