//! The files in this process's memory.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Deref,
    os::fd::AsRawFd,
    path::Path,
    ptr::NonNull,
};

use crate::{Limits, Usage};

/// Why a file cannot be used.
#[derive(Debug)]
pub enum MapError {
    /// It cannot be opened or mapped.
    Io(io::Error),
    /// It is shorter than its layout, or of another version.
    Invalid,
}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A layout of atomic numbers: any bytes are a value of it.
trait Layout: Default {
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

/// A file that is mapped as long as this lives.
#[derive(Debug)]
pub struct Mapped<T> {
    at: NonNull<T>,
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

impl Mapped<Limits> {
    /// Opens the limits as a container does.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        valid(map(&File::open(path)?, false)?)
    }

    /// Creates the limits for the agent, which writes them.
    pub fn create(path: &Path) -> io::Result<Self> {
        create(path, 0o644)
    }
}

impl Mapped<Usage> {
    /// Opens the usage as a container does, whose processes may have any user id.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        valid(map(&OpenOptions::new().read(true).write(true).open(path)?, true)?)
    }

    /// Creates an empty usage.
    pub fn create(path: &Path) -> io::Result<Self> {
        let usage: Self = create(path, 0o666)?;
        usage.initialize();
        Ok(usage)
    }
}

fn create<T: Layout>(path: &Path, mode: u32) -> io::Result<Mapped<T>> {
    use std::os::unix::fs::PermissionsExt;
    let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path)?;
    file.set_len(size_of::<T>() as u64)?;
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    map(&file, true)
}

fn valid<T: Layout>(mapped: Mapped<T>) -> Result<Mapped<T>, MapError> {
    if mapped.is_valid() { Ok(mapped) } else { Err(MapError::Invalid) }
}

/// Maps a file that is long enough. Whoever may write it can also shorten it, and then this process gets SIGBUS: a container can do that to its
/// own usage alone.
fn map<T: Layout>(file: &File, writable: bool) -> io::Result<Mapped<T>> {
    let size = size_of::<T>();
    if file.metadata()?.len() < size as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: a new mapping of an open file, at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED) {
        Some(at) => Ok(Mapped { at }),
        None => Err(io::Error::last_os_error()),
    }
}
