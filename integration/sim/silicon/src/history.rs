//! An append-only history of the devices, for tests.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Name of the file in the state folder: one JSON object a line.
pub const FILE: &str = "history.jsonl";

/// One line of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Process id, in the namespace of the process.
    pub pid: u32,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// An event of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A process began to use a device.
    Attach {
        /// UUID of the GPU or MIG device.
        uuid: String,
        /// The owner, such as a pod's name.
        owner: String,
        /// Owners of the processes that used the device at that moment.
        others: Vec<String>,
    },
    /// A process stopped using a device.
    Detach {
        /// UUID of the GPU or MIG device.
        uuid: String,
        /// The owner.
        owner: String,
    },
    /// An instance was created.
    Create {
        /// GPU index.
        gpu: u32,
        /// GPU-instance id.
        gi: u32,
        /// Compute-instance id, none for the GPU instance itself.
        ci: Option<u32>,
        /// Profile id.
        profile: u32,
    },
    /// An instance was destroyed.
    Destroy {
        /// GPU index.
        gpu: u32,
        /// GPU-instance id.
        gi: u32,
        /// Compute-instance id, none for the GPU instance itself.
        ci: Option<u32>,
    },
    /// MIG mode was set.
    Mode {
        /// GPU index.
        gpu: u32,
        /// The mode.
        on: bool,
        /// Activation status, 0 when active.
        activation: u32,
    },
    /// A GPU was reset.
    Reset {
        /// GPU index.
        gpu: u32,
    },
}

/// Creates the file, writable for all users because containers write to it.
pub fn create(dir: &Path) -> io::Result<()> {
    let path = dir.join(FILE);
    OpenOptions::new().create(true).append(true).open(&path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// Appends a line in one write of less than a page, so that lines of several processes do not mix.
pub fn record(dir: &Path, event: Event) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let mut line = serde_json::to_vec(&Line { time_ms, pid: std::process::id(), event })?;
    line.push(b'\n');
    OpenOptions::new().append(true).open(dir.join(FILE))?.write_all(&line)
}

/// Reads the history.
pub fn read(dir: &Path) -> io::Result<Vec<Line>> {
    let text = fs::read_to_string(dir.join(FILE))?;
    text.lines().map(|l| serde_json::from_str(l).map_err(io::Error::from)).collect()
}
