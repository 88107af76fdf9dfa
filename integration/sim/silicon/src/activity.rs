//! How long kernels ran: on each GPU, on each MIG device, and of each process. A file that processes map, as that of [`engines`].
//!
//! A meter has a sum for each quantity of a [`Load`], and a word for each of the latest spans of time. A kernel is counted when it is launched, in the
//! spans in which it will run. Spans more than 14 seconds ahead are left out, because they would replace those of the present sample.

use std::{
    fs::{self, File, OpenOptions},
    io,
    iter::Sum,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
};

use crate::engines;

/// Name of the file in the state folder.
pub const FILE: &str = "activity";
/// Words of a process before the meters: see [`Process`].
const PROCESS: usize = 3;
/// Most GPUs of a node.
const GPUS: usize = 64;
/// Engines of all GPUs: see [`engines::index`].
const ENGINES: usize = GPUS * 16 * 8;
/// Processes, as many as the list of clients has slots.
pub const PROCESSES: usize = 1024;
/// Quantities of a load.
const QUANTITIES: usize = 3;
/// Spans of a quantity.
const SPANS: usize = 256;
/// Nanoseconds of a span.
const SPAN: u64 = 62_500_000;
/// Spans of a rate: one second, the longest sample period of NVML (`nvmlUtilization_t` in nvml.h).
const SAMPLE: u64 = 16;
/// Words of a quantity, and of a meter.
const QUANTITY: usize = 1 + SPANS;
const METER: usize = QUANTITIES * QUANTITY;
const METERS: usize = PROCESSES * PROCESS;
/// Words before the list of accounted processes.
pub const WORDS: usize = METERS + (GPUS + ENGINES + PROCESSES) * METER;
/// Entries of the list of accounted processes, after which the oldest is overwritten: the buffer size that drivers have by default. Not checked on
/// hardware.
pub const ENTRIES: usize = 4000;
/// Words of an entry.
pub const ENTRY: usize = 7;
/// Words of the list: the number of entries ever begun, and the entries.
pub const LIST: usize = 1 + ENTRIES * ENTRY;
/// Bytes of the file; those that nothing has used take no space.
pub const SIZE: u64 = (WORDS + LIST) as u64 * 8;
/// Warps that a multiprocessor holds on data-centre GPUs from Hopper on. Others, such as the RTX PRO 6000, hold fewer: there the part is too small.
const WARPS: u64 = 64;

/// Nanoseconds of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// During which a kernel ran.
    pub time: u64,
    /// The same, weighted by the part of the multiprocessors that had a block.
    pub sm: u64,
    /// The same, weighted by the part of the warps that were resident.
    pub warps: u64,
}

impl Load {
    /// A kernel of so many nanoseconds with so many blocks and threads of a block. Its blocks spread over all multiprocessors of the device.
    pub fn of_kernel(time: u64, blocks: u64, threads: u64, multiprocessors: u32) -> Self {
        let all = u64::from(multiprocessors.max(1));
        let warps = blocks.saturating_mul(threads.div_ceil(32));
        Self { time, sm: scale(time, blocks.min(all), all), warps: scale(time, warps.min(all * WARPS), all * WARPS) }
    }

    /// A part of it.
    #[must_use]
    pub fn part(self, some: u64, all: u64) -> Self {
        let of = |nanoseconds| scale(nanoseconds, some, all);
        Self { time: of(self.time), sm: of(self.sm), warps: of(self.warps) }
    }

    /// What was added since an earlier reading; nothing where that was more.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            time: self.time.saturating_sub(earlier.time),
            sm: self.sm.saturating_sub(earlier.sm),
            warps: self.warps.saturating_sub(earlier.warps),
        }
    }

    /// In the order of a meter.
    pub fn quantities(self) -> [u64; QUANTITIES] {
        [self.time, self.sm, self.warps]
    }
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |sum, load| Self {
            time: sum.time + load.time,
            sm: sum.sm + load.sm,
            warps: sum.warps + load.warps,
        })
    }
}

/// `value * some / all`, rounded down.
fn scale(value: u64, some: u64, all: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(some) / u128::from(all.max(1))).unwrap_or(u64::MAX)
}

/// Words of a process, by the slot that it has in the list of clients.
#[derive(Clone, Copy, Debug)]
pub struct Process(u64);

impl Process {
    /// The process with this slot.
    pub fn new(slot: u64) -> Self {
        Self(slot)
    }

    fn first(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX).min(PROCESSES - 1) * PROCESS
    }

    /// When its last kernel ends, in nanoseconds of the monotonic clock.
    pub fn free(self) -> usize {
        self.first()
    }

    /// Of a client of the Multi-Process Service: see [`threads`]. Zero otherwise.
    pub fn threads(self) -> usize {
        self.first() + 1
    }

    /// Number of its entry in the list of accounted processes, from 1 on; zero without accounting.
    pub fn account(self) -> usize {
        self.first() + 2
    }
}

/// The word of a client of the Multi-Process Service on an engine, with its percentage of threads.
pub fn threads(engine: usize, percent: u32) -> u64 {
    (engine as u64 + 1) << 32 | u64::from(percent)
}

/// The percentage of threads of a client, if it is one of this engine.
pub fn threads_on(engine: usize, word: u64) -> Option<u64> {
    (word >> 32 == engine as u64 + 1).then_some(word & u64::from(u32::MAX))
}

/// What a meter measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meter {
    /// A GPU; the work of its MIG devices counts by their part of its multiprocessors.
    Gpu(u32),
    /// A MIG device, by GPU, GPU instance and compute instance.
    Mig(u32, (u32, u32)),
    /// A process, by its slot in the list of clients.
    Process(u64),
}

impl Meter {
    /// Its first word.
    pub fn word(self) -> usize {
        let number = match self {
            Self::Gpu(gpu) => usize::try_from(gpu).unwrap_or(0).min(GPUS - 1),
            Self::Mig(gpu, instance) => GPUS + engines::index(gpu, Some(instance)),
            Self::Process(slot) => GPUS + ENGINES + usize::try_from(slot).unwrap_or(usize::MAX).min(PROCESSES - 1),
        };
        METERS + number * METER
    }
}

/// Distance of a quantity's sum from the first word of its meter.
pub fn sum_of(quantity: usize) -> usize {
    quantity * QUANTITY
}

/// Work in one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Distance of its word from that of the sum.
    pub word: usize,
    /// In nanoseconds.
    pub amount: u64,
    span: u64,
}

impl Part {
    /// The word of the span with this work.
    pub fn added_to(self, word: u64) -> u64 {
        self.span << 32 | (of_span(word, self.span) + self.amount).min(SPAN)
    }
}

/// What a word has for a span; the word may be of an earlier one.
fn of_span(word: u64, span: u64) -> u64 {
    if word >> 32 == span { word & u64::from(u32::MAX) } else { 0 }
}

/// An amount in equal parts over the time from `start` to `end`, by span.
pub fn parts(start: u64, end: u64, amount: u64, now: u64) -> impl Iterator<Item = Part> {
    let last = (now / SPAN + SPANS as u64 - 2 * SAMPLE).min(end / SPAN);
    let until = move |time: u64| scale(amount, time - start, end - start);
    (start / SPAN..=last).filter_map(move |span| {
        let (from, to) = (start.max(span * SPAN), end.min((span + 1) * SPAN));
        let amount = if from < to { until(to) - until(from) } else { 0 };
        let word = 1 + usize::try_from(span % SPANS as u64).unwrap_or(0);
        (amount > 0).then_some(Part { word, amount, span })
    })
}

/// What a meter shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// In the sample period.
    pub recent: Load,
    /// Since the driver was loaded, or since the process began to use the device.
    pub total: Load,
}

/// Nanoseconds of the sample period.
pub const PERIOD: u64 = SAMPLE * SPAN;

/// End of the present sample period, in nanoseconds of the monotonic clock: that of the last complete span.
pub fn sampled_at(now: u64) -> u64 {
    now / SPAN * SPAN
}

/// A part of the sample period in percent.
pub fn percent(nanoseconds: u64) -> u32 {
    u32::try_from((nanoseconds * 100 + PERIOD / 2) / PERIOD).unwrap_or(100).min(100)
}

/// Creates the file, writable for all users because containers are not root on the node.
pub fn create(dir: &Path) -> io::Result<()> {
    let path = dir.join(FILE);
    OpenOptions::new().create(true).truncate(false).write(true).open(&path)?.set_len(SIZE)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// A process takes a slot and clears what an earlier process may have left in it.
pub fn enter(dir: &Path, slot: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(dir.join(FILE))?;
    file.write_all_at(&[0; PROCESS * 8], Process::new(slot).free() as u64 * 8)?;
    file.write_all_at(&[0; METER * 8], Meter::Process(slot).word() as u64 * 8)
}

/// What a meter shows at this time of the monotonic clock, in nanoseconds.
pub fn read(dir: &Path, meter: Meter, now: u64) -> io::Result<Activity> {
    let mut bytes = [0; METER * 8];
    File::open(dir.join(FILE))?.read_exact_at(&mut bytes, meter.word() as u64 * 8)?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let mut quantities = words.chunks_exact(QUANTITY).map(|words| quantity(words, now));
    let mut next = || quantities.next().unwrap_or_default();
    let (time, sm, warps) = (next(), next(), next());
    Ok(Activity {
        recent: Load { time: time.0, sm: sm.0, warps: warps.0 },
        total: Load { time: time.1, sm: sm.1, warps: warps.1 },
    })
}

/// What a quantity has in the sample period and in all. Work that waits in the queue is not done; that of the present span is done evenly.
fn quantity(words: &[u64], now: u64) -> (u64, u64) {
    let (Some((sum, spans)), present) = (words.split_first(), now / SPAN) else { return (0, 0) };
    let (mut recent, mut waiting) = (0, 0);
    for word in spans {
        let (span, amount) = (word >> 32, word & u64::from(u32::MAX));
        if span > present {
            waiting += amount;
        } else if span == present {
            waiting += scale(amount, SPAN - now % SPAN, SPAN);
        } else if span + SAMPLE >= present {
            recent += amount;
        }
    }
    (recent, sum.saturating_sub(waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = PERIOD;

    /// A file in which kernels ran at these times, on a GPU alone.
    fn worked(gpu: u32, intervals: &[(u64, u64)], now: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path()).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(dir.path().join(FILE)).unwrap();
        let change = |index: usize, change: &dyn Fn(u64) -> u64| {
            let (mut word, at) = ([0; 8], index as u64 * 8);
            file.read_exact_at(&mut word, at).unwrap();
            file.write_all_at(&change(u64::from_ne_bytes(word)).to_ne_bytes(), at).unwrap();
        };
        for (start, end) in intervals {
            for part in parts(*start, *end, end - start, now) {
                change(Meter::Gpu(gpu).word() + part.word, &|word| part.added_to(word));
                change(Meter::Gpu(gpu).word(), &|sum| sum + part.amount);
            }
        }
        dir
    }

    #[test]
    fn sample_has_the_last_second_and_the_sum_all_that_is_done() {
        // half of each span of the latest second, and all of a second long ago whose words are the same
        let half = (0..16).map(|span| (100 * SECOND + span * SPAN, 100 * SECOND + span * SPAN + SPAN / 2));
        let all: Vec<(u64, u64)> = [(84 * SECOND, 85 * SECOND)].into_iter().chain(half).collect();
        let dir = worked(1, &all, 84 * SECOND);
        let time = |now: u64| {
            let Activity { recent, total } = read(dir.path(), Meter::Gpu(1), now).unwrap();
            (recent.time, total.time)
        };
        assert_eq!(time(101 * SECOND), (0, SECOND), "farther ahead than the file reaches");
        let dir = worked(1, &all, 100 * SECOND);
        let time = |now: u64| {
            let Activity { recent, total } = read(dir.path(), Meter::Gpu(1), now).unwrap();
            (recent.time, total.time)
        };
        assert_eq!(time(101 * SECOND), (SECOND / 2, SECOND + SECOND / 2));
        assert_eq!(time(100 * SECOND).1, SECOND, "the queue is not done");
        assert_eq!(time(102 * SECOND), (0, SECOND + SECOND / 2));
        assert_eq!(read(dir.path(), Meter::Gpu(2), 101 * SECOND).unwrap(), Activity::default());
    }

    #[test]
    fn sum_never_decreases_while_time_passes_and_kernels_are_launched() {
        let mut before = 0;
        for step in 0..200 {
            let now = 10 * SECOND + step * 7_000_000;
            // a kernel of 20 ms every 28 ms
            let launched = (0..=step / 4).map(|kernel| 10 * SECOND + kernel * 28_000_000);
            let kernels: Vec<(u64, u64)> = launched.map(|start| (start, start + 20_000_000)).collect();
            let dir = worked(0, &kernels, 10 * SECOND);
            let total = read(dir.path(), Meter::Gpu(0), now).unwrap().total.time;
            assert!(total >= before, "{step}: {total} after {before}");
            before = total;
        }
        assert!((950_000_000..1_050_000_000).contains(&before), "{before}");
    }

    #[test]
    fn kernel_longer_than_the_file_reaches_does_not_hide_the_present() {
        let dir = worked(0, &[(9 * SECOND, 10 * SECOND), (10 * SECOND, 1000 * SECOND)], 10 * SECOND);
        let recent = |now: u64| read(dir.path(), Meter::Gpu(0), now).unwrap().recent.time;
        assert_eq!([10, 11, 20].map(|second| recent(second * SECOND)), [SECOND; 3]);
    }

    #[test]
    fn parts_add_up_to_the_amount() {
        for (start, end, amount) in [(5, 6, 1), (SPAN - 1, SPAN + 1, 2), (7, 10 * SPAN + 3, 1_000_003), (3, 3, 0)] {
            assert_eq!(parts(start, end, amount, 0).map(|part| part.amount).sum::<u64>(), amount, "{start} to {end}");
        }
    }

    #[test]
    fn small_kernel_takes_time_and_few_multiprocessors() {
        let one = Load::of_kernel(1000, 1, 32, 100);
        assert_eq!(one, Load { time: 1000, sm: 10, warps: 0 });
        assert_eq!(Load::of_kernel(1000, 512, 1024, 100), Load { time: 1000, sm: 1000, warps: 1000 });
        assert_eq!(Load::of_kernel(1000, 100, 1024, 100), Load { time: 1000, sm: 1000, warps: 500 });
    }

    #[test]
    fn every_meter_is_in_the_file_and_has_words_of_its_own() {
        let slots = crate::clients::SLOTS;
        assert_eq!(slots, PROCESSES as u64);
        let meters = [Meter::Gpu(0), Meter::Gpu(63), Meter::Mig(0, (0, 0)), Meter::Mig(63, (15, 7)), Meter::Process(0)];
        let words: Vec<usize> = meters.iter().map(|meter| meter.word()).collect();
        assert!(words.is_sorted() && words.windows(2).all(|two| two[1] - two[0] >= METER), "{words:?}");
        assert_eq!(Meter::Process(slots - 1).word() + METER, WORDS);
        assert!(Process::new(slots - 1).account() < Meter::Gpu(0).word());
    }
}
