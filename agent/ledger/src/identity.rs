//! Identity of a process: its id may be used again, its id with its start may not.

use std::{fs, os::unix::fs::MetadataExt};

/// A process, as its own PID namespace names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start in clock ticks since the machine booted, field 22 of `/proc/<pid>/stat`; 0 if it cannot be read.
    pub start: u64,
    /// Inode of the PID namespace; 0 if it cannot be read.
    pub namespace: u64,
}

impl Identity {
    /// This process.
    pub fn own() -> Self {
        let namespace = fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino()).unwrap_or_default();
        let start = Stat::read("/proc/self/stat").map(|stat| stat.start).unwrap_or_default();
        Self { pid: std::process::id(), start, namespace }
    }

    /// The process has ended. Unknown, and so not, for a process of another namespace, or one that cannot be looked at.
    pub fn has_ended(&self, own_namespace: u64) -> bool {
        if self.namespace != 0 && self.namespace != own_namespace {
            return false;
        }
        match Stat::read(&format!("/proc/{}/stat", self.pid)) {
            // its identity is not complete while start is 0
            Some(stat) => self.start != 0 && (stat.start != self.start || (stat.is_zombie && !has_threads(self.pid))),
            // unreadable for another reason, such as the mount option hidepid: then it is assumed to run
            None => !exists(self.pid),
        }
    }
}

/// What `/proc` says of a process or thread.
struct Stat {
    is_zombie: bool,
    start: u64,
}

impl Stat {
    fn read(path: &str) -> Option<Self> {
        let stat = fs::read_to_string(path).ok()?;
        // the command is in parentheses and may contain some
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
        Some(Self { is_zombie, start: fields.nth(18)?.parse().ok()? })
    }
}

/// A process whose first thread has ended is shown as a zombie while others run on.
fn has_threads(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| Stat::read(thread.path().join("stat").to_str()?));
    stats.into_iter().any(|stat| !stat.is_zombie)
}

fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: takes two numbers; signal 0 is not sent.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn process_has_ended_when_its_id_is_free_a_zombie_or_of_another_process() {
        let own = Identity::own();
        assert!(own.start > 0 && own.namespace > 0 && !own.has_ended(own.namespace));
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let start = Stat::read(&format!("/proc/{}/stat", child.id())).unwrap().start;
        let identity = Identity { pid: child.id(), start, namespace: own.namespace };
        assert!(!identity.has_ended(own.namespace));
        assert!(Identity { start: start - 1, ..identity }.has_ended(own.namespace), "its id is used again");
        assert!(!Identity { start: 0, ..identity }.has_ended(own.namespace), "not complete yet");
        child.kill().unwrap();
        while !Stat::read(&format!("/proc/{}/stat", child.id())).unwrap().is_zombie {}
        assert!(identity.has_ended(own.namespace), "a zombie");
        child.wait().unwrap();
        assert!(identity.has_ended(own.namespace));
        assert!(!Identity { namespace: 1, ..identity }.has_ended(own.namespace), "of another namespace");
    }
}
