//! The state file: read by every process of a node, replaced as a whole under a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};

use crate::activity;
use crate::clients::{self, Client, Clients};
use crate::code::Code;
use crate::engines;
use crate::history;
use crate::machine::Machine;
use crate::physical;

const STATE: &str = "state.json";
const LOCK: &str = "state.lock";

/// Why the state cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No state: no simulated driver is installed.
    #[error("no simulated driver: {0}: {1}")]
    Missing(PathBuf, #[source] io::Error),
    /// The state is invalid.
    #[error("state {0} is broken: {1}")]
    Broken(PathBuf, #[source] serde_json::Error),
    /// This process may not change it.
    #[error("state {0} cannot be changed: {1}")]
    Denied(PathBuf, #[source] io::Error),
    /// The driver refused the call.
    #[error("{0}")]
    Refused(#[from] Code),
}

impl Error {
    /// NVML's return code.
    pub fn code(&self) -> Code {
        match self {
            Self::Missing(..) => Code::DRIVER_NOT_LOADED,
            Self::Broken(..) => Code::UNKNOWN,
            Self::Denied(..) => Code::NO_PERMISSION,
            Self::Refused(code) => *code,
        }
    }
}

/// Identity of one version of a file: it is only ever replaced, so that this changes with the content.
type Stamp = (u64, i64, i64, u64);

/// The state folder of a machine.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    cache: Mutex<Option<(Stamp, Arc<Machine>)>>,
}

impl Store {
    /// The store in this folder, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), cache: Mutex::new(None) }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes the first state, and the files next to it.
    pub fn create(&self, machine: &Machine) -> Result<(), Error> {
        let denied = |e| Error::Denied(self.dir.clone(), e);
        fs::create_dir_all(&self.dir).map_err(denied)?;
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o755)).map_err(denied)?;
        Clients::create(&self.dir.join(clients::FILE)).map_err(denied)?;
        history::create(&self.dir).map_err(denied)?;
        engines::create(&self.dir).map_err(denied)?;
        activity::create(&self.dir).map_err(denied)?;
        physical::create(&self.dir).map_err(denied)?;
        let _lock = self.lock().map_err(denied)?;
        self.write(machine).map_err(denied)
    }

    /// The present state.
    pub fn read(&self) -> Result<Arc<Machine>, Error> {
        let path = self.dir.join(STATE);
        let missing = |e| Error::Missing(path.clone(), e);
        let stamp = stamp(&path).map_err(missing)?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, machine)) = cache.as_ref()
            && *of == stamp
        {
            return Ok(machine.clone());
        }
        let text = fs::read(&path).map_err(missing)?;
        let machine: Machine = serde_json::from_slice(&text).map_err(|e| Error::Broken(path.clone(), e))?;
        let machine = Arc::new(machine);
        *cache = Some((stamp, machine.clone()));
        Ok(machine)
    }

    /// Changes the state exclusively; no client is added meanwhile.
    pub fn change<T>(&self, decide: impl FnOnce(&mut Machine, &[Client]) -> Result<T, Code>) -> Result<T, Error> {
        self.read()?;
        let denied = |e| Error::Denied(self.dir.clone(), e);
        let _lock = self.lock().map_err(denied)?;
        let clients = self.clients().map_err(denied)?;
        let hold = clients.hold().map_err(denied)?;
        let live = clients.live().map_err(denied)?;
        let before = self.read()?;
        let mut machine = (*before).clone();
        let answer = decide(&mut machine, &live)?;
        if machine != *before {
            self.write(&machine).map_err(denied)?;
        }
        drop(hold);
        Ok(answer)
    }

    /// The processes that use the GPUs.
    pub fn clients(&self) -> io::Result<&'static Clients> {
        Clients::open(&self.dir.join(clients::FILE))
    }

    /// Locks the folder; the kernel releases the lock when the process ends.
    pub fn lock(&self) -> io::Result<Flock<File>> {
        let path = self.dir.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e.into())
    }

    fn write(&self, machine: &Machine) -> io::Result<()> {
        replace(&self.dir.join(STATE), &serde_json::to_vec(machine)?)
    }
}

/// Replaces a file as a whole; a reader sees the old or the new content, whenever this process is killed.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension(format!("new.{}", std::process::id()));
    let mut file = File::create(&fresh)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&fresh, path)
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(path)?;
    Ok((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
}
