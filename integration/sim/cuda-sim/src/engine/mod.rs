//! What runs kernels: one after another over all processes of a device, in the order in which they were launched, as far as their streams permit.
//!
//! Hardware switches between processes every few milliseconds. Here a kernel of one process waits for the whole of another one's;
//! in both cases the time between two events on a stream includes the kernels of other processes.
//!
//! Clients of the Multi-Process Service run their kernels at the same time, each on its percentage of the threads: a kernel takes as much longer. Where
//! the clients that have kernels at its begin have more than 100 percent together, they share the GPU in proportion. A client that begins or ends later
//! changes nothing in what is launched already.

use std::{
    fs::OpenOptions,
    io,
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use silicon::{
    Store, accounting,
    activity::{self, Load, Meter, PROCESSES, Process},
    engines,
};

/// Words that all processes share, mapped until the process ends.
type Words = &'static [AtomicU64];

/// The engine of a GPU or MIG device, as a process uses it.
pub struct Engine {
    gpu: u32,
    instance: Option<(u32, u32)>,
    /// When each engine is free, in nanoseconds of the monotonic clock.
    engines: Words,
    /// What engines and processes have done.
    activity: Words,
    /// Multiprocessors of the device, and of its GPU.
    multiprocessors: (u32, u32),
    /// Slot of this process in the list of clients.
    slot: Option<u64>,
    /// Percentage of threads of a client of the Multi-Process Service.
    threads: Option<u64>,
}

/// When a kernel runs, and from when on no other one did before.
struct Interval {
    start: u64,
    end: u64,
    busy_from: u64,
}

impl Engine {
    /// The engine of a device, for the process with this slot in the list of clients; with a percentage of threads for a client of the Multi-Process
    /// Service.
    pub fn open(
        store: &Store,
        (gpu, instance): (u32, Option<(u32, u32)>),
        slot: Option<u64>,
        threads: Option<u32>,
    ) -> io::Result<Self> {
        let machine = store.read().map_err(io::Error::other)?;
        let all = machine.gpus.get(gpu as usize).map_or(0, |gpu| gpu.board.engines().sm);
        let own = match instance {
            Some((gi, ci)) => {
                let device = machine.mig_device(gpu, gi, ci).map_err(io::Error::other)?;
                device.gpu.compute_profile(device.gi, device.ci).map_err(io::Error::other)?.sm
            }
            None => all,
        };
        let engine = Self {
            gpu,
            instance,
            engines: map(&store.dir().join(engines::FILE), engines::SIZE)?,
            activity: map(&store.dir().join(activity::FILE), activity::SIZE)?,
            multiprocessors: (own, all),
            slot,
            threads: threads.map(u64::from),
        };
        if let (Some(slot), Some(threads)) = (slot, threads) {
            let word = activity::threads(engine.index(), threads);
            engine.change(Process::new(slot).threads(), |_| word);
        }
        Ok(engine)
    }

    /// A kernel of so many nanoseconds on the whole device.
    pub fn load(&self, duration: u64, blocks: u64, threads: u64) -> Load {
        Load::of_kernel(duration, blocks, threads, self.multiprocessors.0)
    }

    /// Runs a kernel, not before `ready`; returns when it ends.
    pub fn execute(&self, ready: u64, load: Load) -> u64 {
        let now = now();
        let interval = match self.slot.zip(self.threads) {
            Some((slot, threads)) => self.concurrent(slot, threads, ready.max(now), load.time),
            None => self.alone(ready.max(now), load.time),
        };
        self.count(&interval, load, now);
        interval.end
    }

    /// Runs after all kernels of the device.
    fn alone(&self, from: u64, duration: u64) -> Interval {
        let free = self.engines.get(self.index());
        let after = |free: u64| from.max(free) + duration;
        let before = free.map_or(0, |word| word.fetch_update(SeqCst, SeqCst, |free| Some(after(free))).unwrap_or(0));
        let end = after(before);
        Interval { start: end - duration, end, busy_from: end - duration }
    }

    /// Runs after the kernels of this process, at the same time as those of other clients.
    fn concurrent(&self, slot: u64, threads: u64, from: u64, duration: u64) -> Interval {
        let start = from.max(self.word(Process::new(slot).free()));
        let slots = 0..u64::try_from(PROCESSES).unwrap_or(0);
        let others = slots.filter(|other| *other != slot).map(Process::new).filter_map(|other| {
            let threads = activity::threads_on(self.index(), self.word(other.threads()))?;
            (self.word(other.free()) > start).then_some(threads)
        });
        let all = threads + others.sum::<u64>();
        let time = u128::from(duration) * u128::from(all.max(100)) / u128::from(threads.max(1));
        let end = start + u64::try_from(time).unwrap_or(u64::MAX / 2);
        let before = self.engines.get(self.index()).map_or(0, |word| word.fetch_max(end, SeqCst));
        Interval { start, end, busy_from: before.clamp(start, end) }
    }

    /// Counts a kernel for the GPU, the MIG device and the process.
    fn count(&self, interval: &Interval, load: Load, now: u64) {
        let Interval { start, end, busy_from } = *interval;
        let of_device = Load { time: end - busy_from, ..load };
        let (own, all) = self.multiprocessors;
        let of_gpu = of_device.part(own.into(), all.into());
        let add = |meter: Meter, load: Load| {
            for ((quantity, amount), from) in load.quantities().into_iter().enumerate().zip([busy_from, start, start]) {
                self.add(meter.word() + activity::sum_of(quantity), (from, end), amount, now);
            }
        };
        match self.instance {
            Some(instance) => {
                add(Meter::Gpu(self.gpu), of_gpu);
                add(Meter::Mig(self.gpu, instance), of_device);
            }
            None => add(Meter::Gpu(self.gpu), of_device),
        }
        let Some(slot) = self.slot else { return };
        self.change(Process::new(slot).free(), |free| free.max(end));
        self.add(Meter::Process(slot).word(), (start, end), end - start, now);
        let number = self.word(Process::new(slot).account());
        if number != 0 && self.word(accounting::word(number, accounting::Field::Number)) == number {
            let last = accounting::now() + end.saturating_sub(now) / 1000;
            self.change(accounting::word(number, accounting::Field::Time), |time| time + (end - start));
            self.change(accounting::word(number, accounting::Field::Last), |before| before.max(last));
        }
    }

    /// Adds an amount to a quantity of a meter, whose sum is at this word.
    fn add(&self, sum: usize, (start, end): (u64, u64), amount: u64, now: u64) {
        let mut added = 0;
        for part in activity::parts(start, end, amount, now) {
            self.change(sum + part.word, |word| part.added_to(word));
            added += part.amount;
        }
        self.change(sum, |sum| sum + added);
    }

    /// Index among the engines of the node.
    fn index(&self) -> usize {
        engines::index(self.gpu, self.instance)
    }

    fn word(&self, index: usize) -> u64 {
        self.activity.get(index).map_or(0, |word| word.load(SeqCst))
    }

    fn change(&self, index: usize, change: impl Fn(u64) -> u64) {
        let word = self.activity.get(index);
        let _ = word.map(|word| word.fetch_update(SeqCst, SeqCst, |value| Some(change(value))));
    }
}

/// Maps a file of the state folder that has at least so many bytes.
fn map(path: &Path, bytes: u64) -> io::Result<Words> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let size = usize::try_from(bytes).map_err(io::Error::other)?;
    let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: maps an open file of that size, at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, shared, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped with this size until the process ends, aligned to a page, and changed by atomic operations alone while it is in use.
    Ok(unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>().cast_const(), size / size_of::<u64>()) })
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

#[cfg(test)]
mod tests;
