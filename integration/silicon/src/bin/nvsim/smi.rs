//! The driver root's `nvidia-smi`: resetting and listing GPUs, nothing else.

use std::process::ExitCode;

use silicon::store::Error;
use silicon::{Code, Store, ids, operations, paths};

const USAGE: &str = "simulated nvidia-smi: only -L, and -r | --gpu-reset [-i ID[,ID...]]";

/// Runs as `nvidia-smi`.
pub fn main(arguments: Vec<String>) -> ExitCode {
    let store = Store::new(paths::state_folder());
    let mut reset = false;
    let mut list = false;
    let mut which = None;
    let mut given = arguments.into_iter();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "-r" | "--gpu-reset" => reset = true,
            "-L" | "--list-gpus" => list = true,
            "-i" => which = given.next(),
            other => match other.strip_prefix("--id=") {
                Some(id) => which = Some(id.to_owned()),
                None => return fail(&format!("unknown argument {other}\n{USAGE}")),
            },
        }
    }
    let done = match (reset, list) {
        (true, false) => reset_all(&store, which.as_deref()),
        (false, true) => list_all(&store),
        _ => return fail(USAGE),
    };
    done.unwrap_or_else(|e| fail(&e.to_string()))
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(2)
}

fn reset_all(store: &Store, which: Option<&str>) -> Result<ExitCode, Error> {
    let gpus = match which {
        Some(names) => names.split(',').map(|n| operations::find_gpu(store, n.trim())).collect::<Result<_, _>>()?,
        None => store.read()?.gpus.iter().map(|g| g.index).collect::<Vec<_>>(),
    };
    let mut busy = 0;
    for gpu in gpus {
        match operations::reset(store, gpu) {
            Ok(()) => println!("GPU {} was successfully reset.", ids::pci_bus_id(gpu)),
            Err(Error::Refused(Code::IN_USE)) => {
                println!("GPU {} could not be reset: in use by another client.", ids::pci_bus_id(gpu));
                busy += 1;
            }
            Err(e) => return Err(e),
        }
    }
    if busy > 0 {
        println!("{busy} device(s) in use by one or more other processes.");
        return Ok(ExitCode::from(255));
    }
    println!("All done.");
    Ok(ExitCode::SUCCESS)
}

fn list_all(store: &Store) -> Result<ExitCode, Error> {
    let machine = store.read()?;
    for gpu in &machine.gpus {
        println!("GPU {}: {} (UUID: {})", gpu.index, machine.board.name, gpu.uuid);
        for device in machine.mig_devices().iter().filter(|d| d.gpu.index == gpu.index) {
            let name = machine.mig_profile_name(device);
            println!("  MIG {name:<16} Device {:>2}: (UUID: {})", device.ci.mig_index, device.uuid());
        }
    }
    Ok(ExitCode::SUCCESS)
}
