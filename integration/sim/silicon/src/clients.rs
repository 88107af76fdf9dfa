//! Processes that use a GPU: a file of fixed-size slots, each held by a POSIX record lock of the process it names.
//!
//! The kernel releases the lock when the process ends, and translates its id into the reader's PID
//! namespace. Closing any descriptor of the file would drop a process's own locks too, so a file once opened stays
//! open until the process ends.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};

/// Name of the file in the state folder.
pub const FILE: &str = "clients";
const HEADER: u64 = 4096;
const SLOT: u64 = 512;
pub(crate) const SLOTS: u64 = 1024;

/// A process that uses a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Process id in the reader's PID namespace; 0 when the process is not visible there.
    #[serde(skip)]
    pub pid: u32,
    /// GPU index.
    pub gpu: u32,
    /// GPU-instance and compute-instance id, none for a whole GPU.
    pub instance: Option<(u32, u32)>,
    /// Memory in bytes.
    pub memory: u64,
    /// Program name.
    pub name: String,
    /// Its owner, such as a pod's name.
    pub owner: String,
    /// Its cgroup and those above it, by id; [`crate::attach::attach`] writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<u64>,
}

impl Client {
    /// Both use the same GPU or MIG device.
    pub fn shares_device_with(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.instance == other.instance
    }
}

/// An open file of clients.
#[derive(Debug)]
pub struct Clients {
    file: File,
    /// Record locks do not exclude threads of one process, this does.
    threads: Mutex<()>,
}

/// Exclusive lock of the list: no client is added while it is held.
#[derive(Debug)]
pub struct Hold<'a> {
    clients: &'a Clients,
    _threads: MutexGuard<'a, ()>,
}

type Key = (u64, u64, bool);
static OPEN: Mutex<BTreeMap<Key, &'static Clients>> = Mutex::new(BTreeMap::new());

impl Clients {
    /// Creates the file, writable for all users because containers are not root on the node.
    pub fn create(path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_len(HEADER + SLOTS * SLOT)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
    }

    /// Opens the file, once per process; for reading alone where it cannot be written.
    pub fn open(path: &Path) -> io::Result<&'static Self> {
        let meta = std::fs::metadata(path)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let key = |writable| (meta.dev(), meta.ino(), writable);
        if let Some(known) = open.get(&key(true)).or_else(|| open.get(&key(false))) {
            return Ok(known);
        }
        let (file, writable) = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => (file, true),
            Err(_) => (File::open(path)?, false),
        };
        let clients: &'static Self = Box::leak(Box::new(Self { file, threads: Mutex::new(()) }));
        open.insert(key(writable), clients);
        Ok(clients)
    }

    /// Locks the list, waiting for other processes.
    pub fn hold(&self) -> io::Result<Hold<'_>> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = lock_of(libc::F_WRLCK, 0);
        loop {
            match fcntl(&self.file, FcntlArg::F_SETLKW(&whole)) {
                Ok(_) => return Ok(Hold { clients: self, _threads: threads }),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// All clients but this process's own.
    pub fn live(&self) -> io::Result<Vec<Client>> {
        Ok(self.live_slots()?.into_iter().map(|(_, client)| client).collect())
    }

    /// As [`Clients::live`], with the slot of each.
    pub fn live_slots(&self) -> io::Result<Vec<(u64, Client)>> {
        let mut found = Vec::new();
        let mut ranges = vec![(HEADER, HEADER + SLOTS * SLOT)];
        while let Some((from, to)) = ranges.pop() {
            let Some((at, pid)) = self.locked(from, to)? else { continue };
            let slot = (at - HEADER) / SLOT;
            // The slot was written before it was locked; if its lock is still the same, so is its text.
            if let Ok(client) = self.read(slot)
                && self.locked(at, at + 1)? == Some((at, pid))
            {
                found.push((slot, Client { pid, ..client }));
            }
            ranges.push((from, at));
            ranges.push((at + 1, to));
        }
        found.sort_by_key(|(_, c)| (c.gpu, c.instance, c.pid));
        Ok(found)
    }

    /// A locked byte in this range and the process that locked it.
    fn locked(&self, from: u64, to: u64) -> io::Result<Option<(u64, u32)>> {
        if from >= to {
            return Ok(None);
        }
        let mut lock = lock_of(libc::F_WRLCK, from);
        lock.l_len = i64::try_from(to - from).unwrap_or(i64::MAX);
        fcntl(&self.file, FcntlArg::F_GETLK(&mut lock))?;
        let unlocked = i32::from(lock.l_type) == libc::F_UNLCK;
        let at = u64::try_from(lock.l_start).unwrap_or(0).max(from);
        Ok((!unlocked).then(|| (at, u32::try_from(lock.l_pid).unwrap_or(0))))
    }

    fn read(&self, slot: u64) -> io::Result<Client> {
        let mut text = vec![0; usize::try_from(SLOT).unwrap_or(512)];
        self.file.read_exact_at(&mut text, HEADER + slot * SLOT)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

impl Hold<'_> {
    /// Adds a client of this process; its slot is occupied until the process ends or [`Hold::leave`].
    ///
    /// `mine` are the slots of this process, which the kernel does not report as locked.
    pub fn enter(&self, client: &Client, mine: &[u64]) -> io::Result<u64> {
        let file = &self.clients.file;
        let text = text_of(client)?;
        for slot in (0..SLOTS).filter(|s| !mine.contains(s)) {
            let at = HEADER + slot * SLOT;
            if self.clients.locked(at, at + 1)?.is_some() {
                continue;
            }
            file.write_all_at(&text, at)?;
            fcntl(file, FcntlArg::F_SETLK(&lock_of(libc::F_WRLCK, at)))?;
            return Ok(slot);
        }
        Err(io::Error::other("every client slot is taken"))
    }

    /// Changes what a slot of this process says.
    pub fn rewrite(&self, slot: u64, client: &Client) -> io::Result<()> {
        self.clients.file.write_all_at(&text_of(client)?, HEADER + slot * SLOT)
    }

    /// Frees a slot.
    pub fn leave(&self, slot: u64) -> io::Result<()> {
        fcntl(&self.clients.file, FcntlArg::F_SETLK(&lock_of(libc::F_UNLCK, HEADER + slot * SLOT)))?;
        Ok(())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // unlocking an own lock does not fail; otherwise the lock ends with the process
        let _ = fcntl(&self.clients.file, FcntlArg::F_SETLK(&lock_of(libc::F_UNLCK, 0)));
    }
}

/// The text of a slot.
fn text_of(client: &Client) -> io::Result<Vec<u8>> {
    let capacity = usize::try_from(SLOT).unwrap_or(512) - 1;
    let mut text = serde_json::to_vec(client)?;
    if text.len() > capacity {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the owner's name is too long"));
    }
    text.resize(capacity, b' ');
    text.push(b'\n');
    Ok(text)
}

/// A lock of one byte: neighbours must not touch, or the kernel would merge them into one.
fn lock_of(kind: libc::c_int, start: u64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: i64::try_from(start).unwrap_or_default(),
        l_len: 1,
        l_pid: 0,
    }
}
