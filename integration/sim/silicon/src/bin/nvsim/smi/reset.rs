//! Reset of GPUs, which processes must not use.

use std::process::ExitCode;

use silicon::store::Error;
use silicon::{Code, Store, ids, operations};

/// Resets these GPUs, or all.
pub fn run(store: &Store, which: Option<&str>) -> Result<ExitCode, Error> {
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
