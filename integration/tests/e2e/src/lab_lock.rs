//! Locks of labs: each running test has exclusive use of one lab.

use std::{
    fs::{self, File, TryLockError},
    io::Write as _,
    time::{Duration, Instant},
};

use lab::place::Folders;

use crate::{Error, Result};

/// Exclusive use of a lab until this is dropped or its process is killed.
pub struct LabLock {
    /// The lab's name.
    pub lab: String,
    /// The holder before was killed, so that it has cleaned up nothing.
    pub interrupted: bool,
    since: Instant,
    // the kernel releases a lock when its file is closed; it has content while the lab is in use
    lock: File,
}

impl LabLock {
    /// Waits for one of the labs `NAME`, `NAME-2`, …: as many as `GPUTENANCY_LABS` says (default 1), NAME being
    /// `GPUTENANCY_LAB_NAME` (default `lab`).
    pub async fn acquire() -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let first = variable("GPUTENANCY_LAB_NAME").unwrap_or_else(|| "lab".into());
        let count = variable("GPUTENANCY_LABS").and_then(|n| n.parse().ok()).unwrap_or(1);
        let more = (2..=count).map(|n: u32| format!("{first}-{n}"));
        let names: Vec<String> = std::iter::once(first.clone()).chain(more).collect();
        loop {
            for lab in &names {
                if let Some(lock) = lock(lab)? {
                    let io = |source| Error::Io { what: format!("marking lab {lab} as in use"), source };
                    let interrupted = lock.metadata().map_err(io)?.len() > 0;
                    (&lock).write_all(b"in use").map_err(io)?;
                    return Ok(Self { lab: lab.clone(), interrupted, since: Instant::now(), lock });
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// The lock of a lab, if it is free.
fn lock(lab: &str) -> Result<Option<File>> {
    let folder = Folders::find()?.lab(lab);
    let io = |source| Error::Io { what: format!("locking lab {lab} (is it up? `make lab-up`)"), source };
    let file = fs::OpenOptions::new().create(true).append(true).open(folder.join("test.lock")).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

impl Drop for LabLock {
    /// Prints how long the test took, so that slow tests are visible.
    fn drop(&mut self) {
        // a mark that stays makes the next test install again
        let _ = self.lock.set_len(0);
        let thread = std::thread::current();
        let seconds = self.since.elapsed().as_secs();
        // not through `print!`, which the test harness captures
        let _ = writeln!(std::io::stderr(), "{seconds:>5} s  {}  {}", self.lab, thread.name().unwrap_or_default());
    }
}
