//! What runs kernels: one after another over all processes of a device, in the order in which they were launched, as far as their streams permit.
//!
//! Hardware switches between processes every few milliseconds. Here a kernel of one process waits for the whole of another one's;
//! in both cases the time between two events on a stream includes the kernels of other processes.

use std::{
    fs::OpenOptions,
    io,
    os::fd::AsRawFd,
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use silicon::engines;

/// The engine of a GPU or MIG device.
pub struct Engine {
    /// When it is free, in nanoseconds of the monotonic clock; shared by all processes.
    free: NonNull<AtomicU64>,
}

// SAFETY: it points to an atomic number that stays mapped until the process ends.
unsafe impl Send for Engine {}

impl Engine {
    /// The engine of a device, in the folder of the simulated node's state.
    pub fn open(folder: &Path, gpu: u32, instance: Option<(u32, u32)>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(folder.join(engines::FILE))?;
        let size = usize::try_from(engines::SIZE).map_err(io::Error::other)?;
        if file.metadata()?.len() < engines::SIZE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: maps an open file of that size, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, shared, file.as_raw_fd(), 0) };
        let first: NonNull<AtomicU64> =
            NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: every index is within the file.
        Ok(Self { free: unsafe { first.add(engines::index(gpu, instance)) } })
    }

    /// Runs a kernel for so many nanoseconds, not before `ready`; returns when it ends.
    pub fn execute(&self, ready: u64, duration: u64) -> u64 {
        // SAFETY: mapped until the process ends.
        let free = unsafe { self.free.as_ref() };
        let from = ready.max(now());
        let after = |free: u64| from.max(free) + duration;
        let before = free.fetch_update(SeqCst, SeqCst, |free| Some(after(free)));
        after(before.unwrap_or_else(|free| free))
    }
}

/// Nanoseconds of the monotonic clock, which all processes share.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).unwrap_or(0)
}

/// Waits until then.
pub fn wait_until(end: u64) {
    while let Some(left) = end.checked_sub(now()).filter(|left| *left > 0) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}
