//! Finds and kills processes by id, safe against reused ids.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;

/// A process, distinguished from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Clock ticks from the machine's boot to its start.
    pub started: u64,
}

struct Stat {
    state: char,
    parent: i32,
    started: u64,
}

/// Reads the fields of `/proc/PID/stat` behind the name, which may contain blanks and brackets.
fn parse(stat: &str) -> Option<Stat> {
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, started })
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).filter(|stat| !matches!(stat.state, 'Z' | 'X'))
}

impl Process {
    /// The process with this number, if there is one.
    pub fn find(pid: i32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, started: stat.started })
    }

    /// Whether it still runs.
    pub fn alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// SIGKILL.
    pub fn kill(self) {
        if self.alive() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

/// The first child of a process.
pub fn child_of(parent: i32) -> Option<Process> {
    let numbers = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid: i32| Some((pid, stat(pid)?)))
        .find(|(_, stat)| stat.parent == parent)
        .map(|(pid, stat)| Process { pid, started: stat.started })
}

/// Polling interval where there is no notification.
pub const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_with_spaces_and_brackets_in_name_is_parsed() {
        let line = "12 (a) b (c) S 7 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1";
        let stat = parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.started), ('S', 7, 4711));
    }

    #[test]
    fn process_with_reused_pid_is_distinguished() {
        let me = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.alive());
        assert!(!Process { started: me.started + 1, ..me }.alive());
    }
}
