//! A lab of one's own: tests that run at once each take a lab that no other test has, and give it back at their end.

use std::{
    fs::{self, File, TryLockError},
    io::Write as _,
    time::{Duration, Instant},
};

use lab::place::Folders;

use crate::{Error, Result};

/// A lab that no other test uses until this is dropped, also where its holder is killed.
pub struct Turn {
    /// The lab's name.
    pub lab: String,
    since: Instant,
    // the kernel lets go of a lock when its file is closed
    _lock: File,
}

impl Turn {
    /// Waits for one of the labs `NAME`, `NAME-2`, …: as many as `GPUTENANCY_LABS` says (default 1), NAME being
    /// `GPUTENANCY_LAB_NAME` (default `lab`).
    pub async fn take() -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let first = variable("GPUTENANCY_LAB_NAME").unwrap_or_else(|| "lab".into());
        let count = variable("GPUTENANCY_LABS").and_then(|n| n.parse().ok()).unwrap_or(1);
        let more = (2..=count).map(|n: u32| format!("{first}-{n}"));
        let names: Vec<String> = std::iter::once(first.clone()).chain(more).collect();
        loop {
            for lab in &names {
                if let Some(lock) = lock(lab)? {
                    return Ok(Self { lab: lab.clone(), since: Instant::now(), _lock: lock });
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// The lock of a lab, if it is free.
fn lock(lab: &str) -> Result<Option<File>> {
    let folder = Folders::find()?.lab(lab);
    let io = |source| Error::Io { what: format!("taking lab {lab} (is it up? `make lab-up`)"), source };
    let file = fs::OpenOptions::new().create(true).append(true).open(folder.join("turn.lock")).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

impl Drop for Turn {
    /// Says how long the test took: slow tests must be visible.
    fn drop(&mut self) {
        let thread = std::thread::current();
        let seconds = self.since.elapsed().as_secs();
        // past the capture of the test harness, which would show it only after a failure
        let _ = writeln!(std::io::stderr(), "{seconds:>5} s  {}  {}", self.lab, thread.name().unwrap_or_default());
    }
}
