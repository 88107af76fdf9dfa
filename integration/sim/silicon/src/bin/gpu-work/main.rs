//! `gpu-work`: uses its visible GPUs as a CUDA program does, or prints them.

mod devices;

use std::error::Error;
use std::num::ParseIntError;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use nvml_wrapper::Nvml;
use silicon::attach::{Attachment, attach};
use silicon::clients::Client;
use silicon::{Store, mps, mps::Connection, paths};

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
        /// Ignores SIGTERM, as programs do that end their work first.
        #[arg(long)]
        ignore_sigterm: bool,
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
        Command::Hold { memory, pod_name, ignore_sigterm } => {
            let ends = if ignore_sigterm { vec![Signal::SIGINT] } else { vec![Signal::SIGTERM, Signal::SIGINT] };
            let host = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
            hold(&store, &devices, memory, &pod_name.map_or_else(host, Ok)?, &ends)?;
        }
    }
    Ok(())
}

fn hold(store: &Store, devices: &[Device], memory: u64, owner: &str, ends: &[Signal]) -> Result<(), Box<dyn Error>> {
    // the first process of a container gets a signal without a handler only if it waits for it
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]).thread_block()?;
    let signals: SigSet = ends.iter().copied().collect();
    let server = mps_server(store, devices)?;
    let limit = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").ok().filter(|_| server.is_some());
    if limit.as_deref().and_then(mps::memory_limit).is_some_and(|limit| memory > limit) {
        return Err("out of memory: more than CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".into());
    }
    let mut held: Vec<Attachment> = Vec::new();
    for device in devices {
        let client = Client {
            pid: std::process::id(),
            gpu: device.gpu,
            instance: device.instance,
            memory,
            name: "gpu-work".into(),
            owner: owner.into(),
            cgroups: Vec::new(),
        };
        held.push(attach(store, &client, &held)?);
        println!("{device} held={}MiB", memory >> 20);
    }
    if let Some(server) = server {
        // as CUDA does, which fails all calls of a client once its server has ended
        std::thread::spawn(move || {
            server.wait_for_end();
            eprintln!("gpu-work: CUDA_ERROR_MPS_SERVER_NOT_READY: the MPS server has ended");
            std::process::exit(1);
        });
    }
    signals.wait()?;
    for attachment in held {
        attachment.detach(store)?;
    }
    Ok(())
}

/// The connection to the MPS server, if there is one. A GPU that is exclusive to one process cannot be used without.
fn mps_server(store: &Store, devices: &[Device]) -> Result<Option<Connection>, Box<dyn Error>> {
    let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    if let Some(server) = pipes.and_then(|pipes| Connection::open(pipes.as_ref()).ok()) {
        return Ok(Some(server));
    }
    let machine = store.read()?;
    let exclusive =
        |device: &&Device| machine.gpu(device.gpu).is_ok_and(|gpu| gpu.compute_mode == mps::EXCLUSIVE_PROCESS);
    match devices.iter().find(exclusive) {
        Some(device) => {
            Err(format!("CUDA_ERROR_DEVICE_UNAVAILABLE: no MPS server for exclusive GPU {}", device.gpu).into())
        }
        None => Ok(None),
    }
}

/// Why a text is no number of bytes.
#[derive(Debug, thiserror::Error)]
enum BytesError {
    #[error("such as 512Mi or 1Gi: {0}")]
    Number(#[from] ParseIntError),
    #[error("too much")]
    TooMuch,
}

/// Bytes of a quantity as Kubernetes writes it.
fn bytes(text: &str) -> Result<u64, BytesError> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (number, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    number.parse::<u64>()?.checked_mul(1 << shift).ok_or(BytesError::TooMuch)
}
