//! The files in this process's memory.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Deref,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    ptr::NonNull,
    time::Duration,
};

use crate::{Counts, Limits, Usage, page::SLOTS};

/// Why a file cannot be used.
#[derive(Debug)]
pub enum MapError {
    /// It cannot be opened or mapped.
    Io(io::Error),
    /// It is of another version, or not what the agent has mounted.
    Invalid,
}

/// What a container has done to its usage file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// It is larger than the layout, which takes memory of the node.
    Larger,
    /// It is shorter, has holes, or does not begin as a file of this version: programs that start get no memory.
    Broken,
}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A layout of atomic numbers: any bytes are a value of it.
trait Layout {
    fn is_valid(&self) -> bool;
}

impl Layout for Limits {
    fn is_valid(&self) -> bool {
        Limits::is_valid(self)
    }
}

impl Layout for Usage {
    fn is_valid(&self) -> bool {
        Usage::is_valid(self)
    }
}

/// A file that is mapped as long as this lives. The open file is kept, because it has the locks: the kernel releases them when the process ends or
/// begins another program; a child keeps them after `fork`, as it keeps the files of the driver that hold the memory.
#[derive(Debug)]
pub struct Mapped<T> {
    at: NonNull<T>,
    file: File,
}

// SAFETY: it is the only owner of the mapping, whose content is atomic numbers.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped until it is dropped, with at least the size of `T`, at the start of a page; any bytes are a value of `T`, which
        // only has atomic numbers, so that other processes may change it.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the range that `map` got; nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

/// How a file is opened that a container may have a lease of: the call would wait for the end of the lease.
pub fn without_waiting() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options
}

impl Mapped<Limits> {
    /// Opens the limits as a container does.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        valid(map(without_waiting().open(path)?, false)?)
    }

    /// Opens the limits that the agent has mounted into this container. Its mount is read-only: a file that the container could write is none of the
    /// agent's, and is refused as [`MapError::Invalid`].
    pub fn open_mounted(path: &Path) -> Result<Self, MapError> {
        let file = without_waiting().open(path)?;
        if !is_mounted_read_only(&file)? {
            return Err(MapError::Invalid);
        }
        valid(map(file, false)?)
    }

    /// Opens the limits to change them, as the agent does.
    pub fn open_writable(path: &Path) -> Result<Self, MapError> {
        valid(map(without_waiting().write(true).open(path)?, true)?)
    }

    /// Creates the limits for the agent, which writes them.
    pub fn create(path: &Path) -> io::Result<Self> {
        create(path, 0o644)
    }
}

impl Mapped<Usage> {
    /// Opens the usage as a container does, whose processes may have any user id.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        valid(map(OpenOptions::new().read(true).write(true).open(path)?, true)?)
    }

    /// Whether the file is complete and of this version, without mapping it: a container can shorten its usage at any time, and who reads a mapped file
    /// then ends by SIGBUS.
    pub fn is_valid_file(path: &Path) -> bool {
        without_waiting().open(path).and_then(|file| Self::damage(&file)).is_ok_and(|damage| damage.is_none())
    }

    fn damage(file: &File) -> io::Result<Option<Damage>> {
        let meta = file.metadata()?;
        let (mut magic, mut version) = ([0; 8], [0; 4]);
        let read = file.read_exact_at(&mut magic, 0).and_then(|()| file.read_exact_at(&mut version, 8));
        let whole = meta.len() >= Self::SIZE && meta.blocks().saturating_mul(512) >= Self::SIZE;
        let broken = !whole || read.is_err() || !Usage::begins_with(magic, version);
        let larger = (meta.len() > Self::SIZE).then_some(Damage::Larger);
        Ok(if broken { Some(Damage::Broken) } else { larger })
    }

    /// Repairs the file of a living container, and returns what was wrong. The file stays the same one, because its processes have it mapped, and the
    /// container has it mounted: neither would get a new one. What the slots hold is the container's own account, and stays.
    pub fn repair(path: &Path) -> io::Result<Option<Damage>> {
        let Some(damage) = Self::damage(&without_waiting().open(path)?)? else { return Ok(None) };
        let file = without_waiting().write(true).open(path)?;
        if file.metadata()?.len() > Self::SIZE {
            file.set_len(Self::SIZE)?;
        }
        if damage == Damage::Broken {
            allocate(&file, size_of::<Usage>())?;
            file.write_all_at(&Usage::FIRST, 0)?;
        }
        Ok(Some(damage))
    }

    /// What the file counts, without mapping it; `None` if it is missing, incomplete or of another version.
    pub fn read_counts(path: &Path) -> Option<Counts> {
        let mut header = [0; Usage::HEADER];
        without_waiting().open(path).and_then(|file| file.read_exact_at(&mut header, 0)).ok()?;
        Usage::counts(&header)
    }

    /// How long the living process waits for the GPU that waits longest; zero if none does. Without mapping the file.
    pub fn longest_wait(path: &Path) -> Duration {
        Self::waiting_since(path)
            .map_or(Duration::ZERO, |since| monotonic().saturating_sub(Duration::from_nanos(since)))
    }

    fn waiting_since(path: &Path) -> Option<u64> {
        let file = without_waiting().open(path).ok()?;
        let mut bytes = vec![0; size_of::<Usage>()];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let number = |slot: usize| {
            let at = bytes.get(Usage::waiting_offset(slot)..)?.first_chunk()?;
            Some(u64::from_le_bytes(*at)).filter(|since| *since != 0)
        };
        let waits = (0..SLOTS).filter_map(|slot| Some((slot, number(slot)?)));
        // a process that was killed while it waited has left its number
        waits.filter(|(slot, _)| has_lock(&file, *slot)).map(|(_, since)| since).min()
    }

    /// Bytes of the file.
    pub const SIZE: u64 = size_of::<Usage>() as u64;

    /// Gets the right to take a slot, for as long as this file is open; false if a process lives that has it, or another one is taking it. It is the
    /// lock of a second byte: the lock that shows that the process of a slot lives is taken when the slot is empty, so that it never shows what an
    /// earlier process held as that of a living one.
    pub(crate) fn lock_entry(&self, slot: usize) -> bool {
        self.lock(slot.saturating_add(SLOTS))
    }

    /// From now on the process of the slot lives.
    pub(crate) fn lock_slot(&self, slot: usize) -> bool {
        self.lock(slot)
    }

    fn lock(&self, byte: usize) -> bool {
        let Some(lock) = lock_of(byte, libc::F_WRLCK) else { return false };
        // SAFETY: an open file, and a struct that the kernel only reads.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
    }

    /// Another open file has the lock of a slot: its process lives.
    pub(crate) fn is_locked(&self, slot: usize) -> bool {
        has_lock(&self.file, slot)
    }

    /// Creates an empty usage.
    pub fn create(path: &Path) -> io::Result<Self> {
        let usage: Self = create(path, 0o666)?;
        usage.initialize();
        Ok(usage)
    }
}

/// The file was opened through a mount that is read-only, whatever the rights of the file are.
fn is_mounted_read_only(file: &File) -> io::Result<bool> {
    // SAFETY: statvfs is plain data, for which zeroes are valid.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and a struct to which the kernel writes.
    match unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut about) } {
        0 => Ok(about.f_flag & libc::ST_RDONLY != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Another open file has the lock of a slot. Without an answer of the kernel its process is taken for living: it keeps its memory.
fn has_lock(file: &File, slot: usize) -> bool {
    let Some(mut lock) = lock_of(slot, libc::F_WRLCK) else { return false };
    // SAFETY: an open file, and a struct to which the kernel writes the lock that it finds.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked != 0 || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// The monotonic clock, which all containers of a node share.
fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// A byte of the file, which need not be so long.
fn lock_of(byte: usize, kind: libc::c_int) -> Option<libc::flock> {
    Some(libc::flock {
        l_type: libc::c_short::try_from(kind).ok()?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).ok()?,
        l_start: libc::off_t::try_from(byte).ok()?,
        l_len: 1,
        l_pid: 0,
    })
}

fn create<T: Layout>(path: &Path, mode: u32) -> io::Result<Mapped<T>> {
    use std::os::unix::fs::PermissionsExt;
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path)?;
    allocate(&file, size_of::<T>())?;
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    map(file, true)
}

/// Gives the file its memory at once: a page that is missing when a program writes to it would end the program.
fn allocate(file: &File, size: usize) -> io::Result<()> {
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an open file and two numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn valid<T: Layout>(mapped: Mapped<T>) -> Result<Mapped<T>, MapError> {
    if mapped.is_valid() { Ok(mapped) } else { Err(MapError::Invalid) }
}

/// Maps a file that is long enough. Whoever may write it can also shorten it, and then this process gets SIGBUS: a container can do that to its
/// own usage, which only its own processes map.
fn map<T: Layout>(file: File, writable: bool) -> io::Result<Mapped<T>> {
    let size = size_of::<T>();
    if file.metadata()?.len() < size as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED) {
        Some(at) => Ok(Mapped { at, file }),
        None => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ledger, UNIT};

    #[test]
    fn damaged_file_is_repaired_under_the_processes_that_have_it_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        Mapped::<Usage>::create(&path).unwrap();
        let usage = Mapped::<Usage>::open(&path).unwrap();
        let ledger = Ledger::join(&usage).unwrap();
        ledger.reserve(UNIT, u64::MAX).unwrap();
        let file = || OpenOptions::new().write(true).open(&path).unwrap();
        let inode = || std::fs::metadata(&path).unwrap().ino();
        let before = inode();
        let repaired = || {
            let damage = Mapped::<Usage>::repair(&path).unwrap();
            assert_eq!((Mapped::<Usage>::repair(&path).unwrap(), inode()), (None, before));
            assert!(Mapped::<Usage>::is_valid_file(&path));
            damage
        };
        assert_eq!(repaired(), None);
        file().write_all_at(&[7; 12], 0).unwrap();
        assert_eq!(repaired(), Some(Damage::Broken), "its first bytes");
        ledger.reserve(UNIT, u64::MAX).unwrap();
        assert_eq!(Mapped::<Usage>::open(&path).unwrap().used(), 2 * UNIT, "still shared with the process");
        file().set_len(Mapped::<Usage>::SIZE + 1).unwrap();
        assert_eq!(repaired(), Some(Damage::Larger));
        assert_eq!(usage.used(), 2 * UNIT);
        file().write_all_at(&[7; 12], 0).unwrap();
        file().set_len(Mapped::<Usage>::SIZE + 1).unwrap();
        assert_eq!(repaired(), Some(Damage::Broken), "both");
        file().set_len(10).unwrap();
        assert_eq!(repaired(), Some(Damage::Broken), "shorter");
        file().set_len(10).unwrap();
        file().set_len(Mapped::<Usage>::SIZE).unwrap();
        assert_eq!(repaired(), Some(Damage::Broken), "with holes");
        std::fs::remove_file(&path).unwrap();
        assert!(Mapped::<Usage>::repair(&path).is_err());
    }

    #[test]
    fn longest_wait_of_a_living_process_is_read_without_a_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        Mapped::<Usage>::create(&path).unwrap();
        let since = || Mapped::<Usage>::waiting_since(&path);
        let open = || Mapped::<Usage>::open(&path).unwrap();
        let (first, second) = (open(), open());
        let (one, two) = (Ledger::join(&first).unwrap(), Ledger::join(&second).unwrap());
        assert_eq!(since(), None);
        one.waiting(7, || {
            assert_eq!(since(), Some(7));
            // another thread, and another process
            one.waiting(8, || two.waiting(5, || assert_eq!(since(), Some(5))));
            assert_eq!(since(), Some(7));
        });
        assert_eq!(since(), None);
        let killed = || two.waiting(5, || std::panic::resume_unwind(Box::new(())));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(killed)).is_err());
        assert_eq!(since(), Some(5));
        assert!(Mapped::<Usage>::longest_wait(&path) > Duration::ZERO);
        drop(second);
        assert_eq!(since(), None, "the process was killed");
    }
}
