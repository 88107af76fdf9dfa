//! Faults that a test injects into functions by name ([`silicon::fault`]). A process asks for them only if there are any when it initialises CUDA, so
//! that no call is slower otherwise.

use std::{path::Path, time::Duration};

use silicon::{
    Store,
    fault::{self, Call, Effect},
    operations,
};

use crate::abi::Failure;

/// The faults of a process.
pub struct Faults {
    process: String,
}

impl Faults {
    /// The faults, if there are any in the folder of the simulated node's state.
    pub fn of(folder: &Path) -> Option<Self> {
        let name = || std::env::current_exe().ok()?.file_name()?.to_str().map(str::to_owned);
        folder.join(fault::FILE).exists().then(|| Self { process: name().unwrap_or_default() })
    }

    /// What happens to a call before it does anything; true if the process ends when it has done its work.
    pub fn before(&self, store: &Store, name: &str) -> Result<bool, Failure> {
        let call = Call { name, changes: false, gpu: None, process: &self.process };
        match operations::meet_fault(store, &call) {
            Some(Effect::Fail(code)) => return Err(Failure(code.cast_signed())),
            Some(Effect::Hang(milliseconds)) => std::thread::sleep(Duration::from_millis(milliseconds)),
            Some(Effect::KillBefore) => end(),
            Some(Effect::KillAfter) => return Ok(true),
            None => {}
        }
        Ok(false)
    }
}

/// Kills the process, as the OOM killer does.
pub fn end() {
    // SAFETY: kill and getpid take and return plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // the signal ends this thread before the system call returns
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
