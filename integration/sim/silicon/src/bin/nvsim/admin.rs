//! Control of the simulated hardware in tests: errors, losses, injected faults, history.

use std::error::Error;
use std::fs;
use std::num::ParseFloatError;
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use serde::de::DeserializeOwned;
use silicon::fault::{Effect, Fault, TRACE};
use silicon::memory_limits::MemoryLimits;
use silicon::{Links, Store, Virtualization, history, materialize, nodes, operations};

use crate::report::{self, Output};

/// Administrator's commands.
#[derive(Subcommand)]
pub enum Command {
    /// Shows GPUs, instances and clients.
    Show {
        /// Format.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// Makes NVML calls fail, hang or kill their process.
    Inject(Inject),
    /// Removes all injected faults.
    ClearFaults,
    /// Shows injected faults and their numbers of matching calls.
    Faults,
    /// Partitions an idle GPU again: MIG mode on, and an instance of each profile where the driver would place it.
    Partition {
        /// Index, UUID or PCI address.
        gpu: String,
        /// Names or ids, such as 3g.40gb.
        profiles: Vec<String>,
    },
    /// Makes a GPU fall off the bus.
    Lose {
        /// Index, UUID or PCI address.
        gpu: String,
        /// Puts it back.
        #[arg(long)]
        restore: bool,
    },
    /// Raises an Xid event.
    Xid {
        /// Index, UUID or PCI address.
        gpu: String,
        /// Xid code.
        code: u64,
        /// Id of the GPU instance that it is of; without: of the GPU.
        #[arg(long)]
        instance: Option<u32>,
    },
    /// Sets what the driver says must be done about a GPU.
    RecoveryAction {
        /// Index, UUID or PCI address.
        gpu: String,
        /// NVML's number: 0 none, 1 reset the GPU, 2 restart the node; without: the driver does not say it.
        action: Option<u32>,
    },
    /// Adds uncorrected ECC errors.
    Ecc {
        /// Index, UUID or PCI address.
        gpu: String,
        /// How many.
        errors: u64,
    },
    /// Lets memory of a GPU stay in use without a process, until a reset.
    Leak {
        /// Index, UUID or PCI address.
        gpu: String,
        /// In MiB; 0: none any more.
        mib: u64,
        /// Id of the GPU instance that it is on; without: a whole GPU.
        #[arg(long)]
        instance: Option<u32>,
    },
    /// Resets a GPU and activates a pending MIG mode; refused while processes use it.
    Reset {
        /// Index, UUID or PCI address.
        gpu: String,
        /// Turns MIG mode off, also on boards that keep it.
        #[arg(long)]
        mig_off: bool,
    },
    /// Sets the latency of driver calls, until the driver is installed again.
    Latency {
        /// `real`, `none`, or a factor of real.
        #[arg(value_parser = latency)]
        factor: u32,
    },
    /// Makes all GPUs those of a hypervisor or of a virtual machine, until the driver is installed again.
    Virtualize {
        /// `none`, `passthrough`, `guest` or `host`.
        #[arg(value_parser = named::<Virtualization>)]
        mode: Virtualization,
        /// The vGPUs of a guest have no licence.
        #[arg(long)]
        unlicensed: bool,
    },
    /// Sets the registry keys of the driver, as `NVreg_RegistryDwords` of its module does.
    Registry {
        /// Such as `RMDisableScrubOnFree=1`; empty for none.
        keys: String,
    },
    /// Connects the GPUs by `NVLink`, until the driver is installed again.
    Link {
        /// `none`, `bridges` or `switches`.
        #[arg(value_parser = named::<Links>)]
        links: Links,
    },
    /// Gives the driver memory limits of cgroups, as from version 615 on, until the driver is installed again; without: no limit is left.
    MemoryLimits {
        /// Whether it has them.
        #[arg(action = clap::ArgAction::Set)]
        supported: bool,
    },
    /// Prints the history of attachments, instances, modes and resets, one JSON object a line.
    History,
    /// Traces NVML calls: `start`, `stop`, or `list` those since the start.
    Trace {
        /// The action.
        action: Trace,
    },
}

/// An action on the trace.
#[derive(Clone, Copy, ValueEnum)]
pub enum Trace {
    /// Begin, with an empty trace.
    Start,
    /// Stop and delete it.
    Stop,
    /// Print process id, process and call, one call a line.
    List,
}

/// A fault on the command line.
#[derive(Args)]
pub struct Inject {
    /// Name of the call, `change` for all that change a GPU, or `any`. Functions of CUDA fail only in programs that initialise CUDA while a fault is
    /// injected, and `any` means those too.
    #[arg(long)]
    call: String,
    /// Return this code of NVML or CUDA.
    #[arg(long)]
    code: Option<u32>,
    /// Take this many seconds longer.
    #[arg(long)]
    hang: Option<f64>,
    /// Kill the calling process before or after the call does its work.
    #[arg(long)]
    kill: Option<Moment>,
    /// The first call that is hit, counted from now.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    nth: u32,
    /// How many calls are hit from then on; 0 for all.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Only calls on this GPU: index, UUID or PCI address.
    #[arg(long)]
    gpu: Option<String>,
    /// Only calls by programs with this name prefix.
    #[arg(long)]
    process: Option<String>,
}

/// When a call kills its process.
#[derive(Clone, Copy, ValueEnum)]
pub enum Moment {
    /// Before it does anything.
    Before,
    /// When it has done its work.
    After,
}

/// Runs a command.
pub fn run(store: &Store, command: Command) -> Result<(), Box<dyn Error>> {
    let gpu = |name: &str| operations::find_gpu(store, name);
    match command {
        Command::Show { output } => print!("{}", report::show(store, output)?),
        Command::Inject(inject) => operations::inject(store, fault(store, inject)?)?,
        Command::ClearFaults => operations::clear_faults(store)?,
        Command::Faults => println!("{}", serde_json::to_string_pretty(&operations::faults(store.dir())?)?),
        Command::Partition { gpu: name, profiles } => {
            operations::partition(store, gpu(&name)?, &profiles)?;
            // without device nodes, or without the right to create them, there is nothing to do
            let _ = nodes::sync_caps(Path::new("/dev"), &*store.read()?);
        }
        Command::Lose { gpu: name, restore } => {
            let gpu = gpu(&name)?;
            store.change(|machine, _| machine.set_lost(gpu, !restore))?;
        }
        Command::Xid { gpu: name, code, instance } => {
            let gpu = gpu(&name)?;
            store.change(|machine, _| machine.raise_xid(gpu, instance, code))?;
        }
        Command::RecoveryAction { gpu: name, action } => {
            let gpu = gpu(&name)?;
            store.change(|machine, _| machine.set_recovery_action(gpu, action))?;
        }
        Command::Ecc { gpu: name, errors } => {
            let gpu = gpu(&name)?;
            store.change(|machine, _| machine.add_ecc(gpu, errors))?;
        }
        Command::Leak { gpu: name, mib, instance } => {
            let gpu = gpu(&name)?;
            store.change(|machine, _| machine.leak(gpu, instance, mib << 20))?;
        }
        Command::Reset { gpu: name, mig_off } => {
            let gpu = gpu(&name)?;
            if mig_off {
                store.change(|machine, clients| machine.set_mig_mode(gpu, false, clients).map(drop))?;
            }
            operations::reset(store, gpu)?;
        }
        Command::Latency { factor } => store.change(|machine, _| {
            machine.latency_permille = factor;
            Ok(())
        })?,
        Command::Virtualize { mode, unlicensed } => store.change(|machine, _| {
            machine.virtualization = mode;
            machine.unlicensed = unlicensed;
            Ok(())
        })?,
        Command::Registry { keys } => {
            let root = store.dir().ancestors().nth(2).ok_or("the state is in no driver root")?;
            materialize::registry(root, &keys)?;
        }
        Command::Link { links } => store.change(|machine, _| {
            machine.links = links;
            Ok(())
        })?,
        Command::MemoryLimits { supported } => store.change(|machine, _| {
            machine.memory_limits = MemoryLimits { supported, set: Vec::new() };
            Ok(())
        })?,
        Command::History => print!("{}", fs::read_to_string(store.dir().join(history::FILE))?),
        Command::Trace { action } => trace(store, action)?,
    }
    Ok(())
}

/// Why a latency cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LatencyError {
    #[error("real, none or a factor: {0}")]
    Number(#[from] ParseFloatError),
    #[error("the factor must be between 0 and 1000")]
    Range,
}

/// Thousandths of real latency, from `real`, `none` or a factor.
pub fn latency(text: &str) -> Result<u32, LatencyError> {
    let factor = match text {
        "real" => 1.0,
        "none" => 0.0,
        other => other.parse::<f64>()?,
    };
    if !(0.0..=1000.0).contains(&factor) {
        return Err(LatencyError::Range);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within 0 and 1000")]
    Ok((factor * 1000.0).round() as u32)
}

fn named<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_value(text.into())
}

fn fault(store: &Store, inject: Inject) -> Result<Fault, Box<dyn Error>> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; a test names seconds")]
    let milliseconds = |seconds: f64| (seconds.clamp(0.0, 1e6) * 1000.0) as u64;
    let effect = match (inject.code, inject.hang, inject.kill) {
        (Some(code), None, None) => Effect::Fail(code),
        (None, Some(seconds), None) => Effect::Hang(milliseconds(seconds)),
        (None, None, Some(Moment::Before)) => Effect::KillBefore,
        (None, None, Some(Moment::After)) => Effect::KillAfter,
        _ => return Err("name one of --code, --hang and --kill".into()),
    };
    let gpu = inject.gpu.map(|name| operations::find_gpu(store, &name)).transpose()?;
    let times = Some(inject.times).filter(|times| *times > 0);
    Ok(Fault { call: inject.call, gpu, process: inject.process, nth: inject.nth, times, effect, seen: 0 })
}

fn trace(store: &Store, action: Trace) -> Result<(), Box<dyn Error>> {
    let path = store.dir().join(TRACE);
    match action {
        Trace::Start => fs::write(path, "")?,
        Trace::Stop => fs::remove_file(path)?,
        Trace::List => print!("{}", fs::read_to_string(path)?),
    }
    Ok(())
}
