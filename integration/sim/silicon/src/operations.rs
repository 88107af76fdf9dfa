//! Operations of an administrator outside of NVML.

use std::fs;
use std::io;
use std::path::Path;

use crate::code::Code;
use crate::compute_profile;
use crate::fault::{self, Fault};
use crate::history::{self, Event};
use crate::latency::Slow;
use crate::store::{self, Error, Store};

/// Resets a GPU as `nvidia-smi --gpu-reset` does: refused with clients; a pending MIG mode is activated.
pub fn reset(store: &Store, gpu: u32) -> Result<(), Error> {
    store.change(|machine, clients| machine.reset(gpu, clients))?;
    let machine = store.read()?;
    // the history is for tests only; the reset itself is done
    let _ = history::record(store.dir(), Event::Reset { gpu });
    std::thread::sleep(Slow::Reset.on(&machine));
    Ok(())
}

/// Partitions an idle GPU as `nvidia-smi mig -cgi … -C` does on an empty one: MIG mode on, then an instance of each
/// profile, by name or id, with its widest compute instance. All or nothing.
pub fn partition(store: &Store, gpu: u32, profiles: &[String]) -> Result<(), Error> {
    store.change(|machine, clients| {
        // the reset activates the mode
        let _ = machine.set_mig_mode(gpu, true, clients)?;
        machine.reset(gpu, clients)?;
        for wanted in profiles {
            let named = |p: &&crate::Profile| p.name == *wanted || p.id.to_string() == *wanted;
            let board = &machine.gpu(gpu)?.board;
            let profile = board.profiles.iter().find(named).ok_or(Code::INVALID_ARGUMENT)?;
            let widest = compute_profile::profiles(board, profile).into_iter().max_by_key(|p| (p.slices, p.sm));
            let (id, ci) = (profile.id, widest.ok_or(Code::UNKNOWN)?.id);
            let gi = machine.create_gi(gpu, id, None)?.id;
            machine.create_ci(gpu, gi, ci, None)?;
        }
        Ok(())
    })
}

/// The GPU that an administrator names by index, UUID or PCI address.
pub fn find_gpu(store: &Store, name: &str) -> Result<u32, Error> {
    let machine = store.read()?;
    let same_address = |index: u32| {
        let own = crate::ids::pci_bus_id(index);
        own.eq_ignore_ascii_case(name) || own.get(4..).is_some_and(|short| short.eq_ignore_ascii_case(name))
    };
    let named = |g: &&crate::machine::Gpu| g.index.to_string() == name || g.uuid == name || same_address(g.index);
    machine.gpus.iter().find(named).map(|g| g.index).ok_or(Error::Refused(Code::NOT_FOUND))
}

/// Adds a fault.
pub fn inject(store: &Store, fault: Fault) -> io::Result<()> {
    let _lock = store.lock()?;
    let mut faults = faults(store.dir())?;
    faults.push(fault);
    store::replace(&store.dir().join(fault::FILE), &serde_json::to_vec(&faults)?)
}

/// The faults, with the number of matching calls.
pub fn faults(dir: &Path) -> io::Result<Vec<Fault>> {
    match fs::read(dir.join(fault::FILE)) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Counts a call, and returns the effect of the first fault that is due; none for a process that may not change the state.
pub fn meet_fault(store: &Store, call: &fault::Call<'_>) -> Option<fault::Effect> {
    if !faults(store.dir()).is_ok_and(|faults| fault::concerned(&faults, call)) {
        return None;
    }
    let _lock = store.lock().ok()?;
    let mut faults = faults(store.dir()).ok()?;
    let effect = fault::meet(&mut faults, call);
    store::replace(&store.dir().join(fault::FILE), &serde_json::to_vec(&faults).ok()?).ok()?;
    effect
}

/// Removes every fault.
pub fn clear_faults(store: &Store) -> io::Result<()> {
    let _lock = store.lock()?;
    crate::nodes::remove_if_there(&store.dir().join(fault::FILE))
}
