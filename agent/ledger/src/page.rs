//! Layout of the two files. Fields never move within a version; a process that finds another version counts nothing.

use std::{
    mem::offset_of,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use crate::{
    accounts::{Accounts, Slot},
    pace::{self, Pace, Turn, Used},
    word,
    work::{NEIGHBOURS, RECENT, Work, WorkCell},
};

/// Bytes that the ledger counts as one: the alignment of CUDA's allocations.
pub const UNIT: u64 = 256;
/// Most processes of a container that use the GPU at a time.
pub const SLOTS: usize = 256;
/// Bytes of a UUID such as `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, filled with NUL.
pub const UUID_LENGTH: usize = 64;

/// First bytes of [`Limits`].
const LIMITS: u64 = u64::from_le_bytes(*b"GPUTLIMS");
/// First bytes of [`Usage`].
const USAGE: u64 = u64::from_le_bytes(*b"GPUTUSED");
/// Version of both layouts.
const VERSION: u32 = 3;

/// Nanoseconds after which the agent does not relay any more, for all that is known.
const STALE: u64 = 50_000_000;

/// What a process does whose usage file is missing or of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    /// It allocates without being counted.
    Allow,
    /// It gets no memory.
    Deny,
}

/// Limits of one share, by the agent. Numbers may change at any time, each by itself.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Limits {
    magic: AtomicU64,
    version: AtomicU32,
    /// Not 0: without usage file nothing is allocated.
    deny_missing: AtomicU32,
    /// UUID of the GPU, eight bytes at a time.
    uuid: [AtomicU64; UUID_LENGTH / 8],
    /// Bytes that the processes may hold together, with their contexts.
    limit: AtomicU64,
    /// Bytes that programs see as the memory of the GPU.
    visible: AtomicU64,
    /// Bytes that each process counts for its context.
    context: AtomicU64,
    /// Percent of the GPU's time; 0 in files of earlier releases, and without a limit.
    percent: AtomicU64,
    /// The share's turns: see [`Turn`]. A length of 0 is no turn.
    period: AtomicU64,
    turn_start: AtomicU64,
    turn_length: AtomicU64,
    /// Not 0: it may use time that neighbours leave idle.
    burst: AtomicU64,
    /// Not 0: nothing is launched.
    suspended: AtomicU64,
    /// Until when the grant holds: see [`Limits::grant`].
    granted_until: AtomicU64,
    /// See [`packed`].
    granted: AtomicU64,
    /// When the agent last read what the neighbours ran; 0: it does not.
    relayed: AtomicU64,
    /// Work of the neighbours, as the agent has read it.
    neighbours: [WorkCell; NEIGHBOURS],
}

/// Nanoseconds of a unit of time in [`packed`].
const MICRO: u64 = 1_000;
/// Bits of such a time: a period is at most a second.
const TIME_BITS: u32 = 20;

/// Percent and turn of a grant in one number, so that a reader has all of it or nothing.
fn packed(percent: u64, turn: Option<Turn>) -> u64 {
    let (start, length) = turn.map_or((0, 0), |turn| (turn.start / MICRO, turn.length / MICRO));
    let mask = (1 << TIME_BITS) - 1;
    percent << (2 * TIME_BITS) | (start & mask) << TIME_BITS | (length & mask)
}

/// `None`: it was not written by [`packed`], or for another period.
fn unpacked(word: u64, period: u64) -> Option<(u64, Option<Turn>)> {
    let mask = (1 << TIME_BITS) - 1;
    let (start, length) = ((word >> TIME_BITS & mask) * MICRO, (word & mask) * MICRO);
    let turn = if length == 0 { None } else { Some(Turn { period, start, length }.valid()?) };
    Some((word >> (2 * TIME_BITS), turn)).filter(|(percent, _)| (1..=100).contains(percent))
}

impl Limits {
    /// Writes everything; the magic number last, so that a reader sees all or nothing.
    pub fn write(&self, uuid: &str, memory: u64, context: u64, missing: OnMissing) {
        self.version.store(VERSION, SeqCst);
        self.deny_missing.store(u32::from(missing == OnMissing::Deny), SeqCst);
        let mut bytes = [0; UUID_LENGTH];
        bytes.iter_mut().zip(uuid.bytes()).for_each(|(to, from)| *to = from);
        for (word, chunk) in self.uuid.iter().zip(bytes.chunks_exact(8)) {
            word.store(chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), SeqCst);
        }
        self.context.store(context, SeqCst);
        self.resize(memory);
        self.magic.store(LIMITS, SeqCst);
    }

    /// Changes the memory of running programs, in bytes. The context of the first process is not counted against it.
    pub fn resize(&self, memory: u64) {
        self.visible.store(memory, SeqCst);
        self.limit.store(memory.saturating_add(self.context.load(SeqCst)), SeqCst);
    }

    /// Sets the part of the GPU's time, or removes its limit. Changes it for running programs.
    pub fn set_pace(&self, pace: Option<Pace>) {
        let turn = pace.and_then(|pace| pace.turn).unwrap_or(Turn { period: 0, start: 0, length: 0 });
        // a reader between two of these has a turn that is not valid, or that of before
        self.turn_length.store(0, SeqCst);
        self.period.store(turn.period, SeqCst);
        self.turn_start.store(turn.start, SeqCst);
        self.turn_length.store(turn.length, SeqCst);
        self.burst.store(pace.is_some_and(|pace| pace.burst).into(), SeqCst);
        self.percent.store(pace.map_or(0, |pace| pace.percent), SeqCst);
    }

    /// The part of the GPU's time without grants, if it is limited.
    pub fn pace(&self) -> Option<Pace> {
        let percent = Some(self.percent.load(Relaxed)).filter(|percent| (1..100).contains(percent))?;
        let (period, start) = (self.period.load(Relaxed), self.turn_start.load(Relaxed));
        let turn = Turn { period, start, length: self.turn_length.load(Relaxed) }.valid();
        Some(Pace { percent, turn, burst: self.burst.load(Relaxed) != 0 })
    }

    /// The part of the GPU's time with what the agent grants at this time of the monotonic clock.
    pub fn pace_at(&self, now: impl FnOnce() -> u64) -> Option<Pace> {
        let pace = self.pace()?;
        // first: a word that is replaced meanwhile is that of before for one launch
        let word = self.granted.load(SeqCst);
        let until = self.granted_until.load(SeqCst);
        if until == 0 || until <= now() {
            return Some(pace);
        }
        let granted = unpacked(word, self.period.load(Relaxed));
        Some(granted.map_or(pace, |(percent, turn)| Pace { percent, turn, ..pace }))
    }

    /// Grants another part of the time until then, by the monotonic clock. The grant ends by itself, so that the share has its own part again if
    /// the agent does not run. `None` ends it now.
    pub fn grant(&self, part: Option<(Pace, u64)>) {
        let word = part.map_or(0, |(pace, _)| packed(pace.percent, pace.turn));
        if self.granted.load(SeqCst) != word {
            self.granted_until.store(0, SeqCst);
            self.granted.store(word, SeqCst);
        }
        self.granted_until.store(part.map_or(0, |(_, until)| until), SeqCst);
    }

    /// Stops all launches, or permits them again. Memory is not affected.
    pub fn set_suspended(&self, suspended: bool) {
        self.suspended.store(suspended.into(), SeqCst);
    }

    /// Nothing is launched for now.
    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed) != 0
    }

    /// Writes what a neighbour has run in place of the oldest work; `at` counts these calls.
    pub(crate) fn relay(&self, at: usize, work: Work) {
        if let Some(cell) = self.neighbours.get(at % NEIGHBOURS) {
            cell.store(work);
        }
    }

    /// Everything that neighbours have run until then was relayed; 0: the agent does not relay.
    pub(crate) fn set_relayed(&self, at: u64) {
        self.relayed.store(at, SeqCst);
    }

    /// Until when the work of neighbours is known, if the agent relays it.
    pub fn relayed(&self, now: u64) -> Option<u64> {
        Some(self.relayed.load(SeqCst)).filter(|at| now.saturating_sub(*at) < STALE)
    }

    /// When the GPU ended the last work that neighbours launched before this time.
    ///
    /// A neighbour writes its work into its own file, and the agent copies it here. A forged one can only make the charge for this share's own
    /// work smaller: the charge is never more than the time from the start of that work to its end, which it is without any neighbour. So no
    /// neighbour can take time from this share by what it writes. How much it can give away is bounded by its own part: see [`crate::Arbiter`].
    pub fn waited_until(&self, launched: u64) -> u64 {
        let before = self.neighbours.iter().map(WorkCell::load).filter(|work| work.launched < launched);
        before.map(|work| work.end).max().unwrap_or(0)
    }

    /// It was written by an agent of this version.
    pub fn is_valid(&self) -> bool {
        self.magic.load(SeqCst) == LIMITS && self.version.load(SeqCst) == VERSION
    }

    /// The GPU, filled with NUL.
    pub fn uuid(&self) -> [u8; UUID_LENGTH] {
        let mut bytes = [0; UUID_LENGTH];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.uuid) {
            chunk.copy_from_slice(&word.load(SeqCst).to_le_bytes());
        }
        bytes
    }

    /// Bytes that processes may hold together.
    pub fn limit(&self) -> u64 {
        self.limit.load(SeqCst)
    }

    /// Bytes that programs see as the memory of the GPU.
    pub fn visible(&self) -> u64 {
        self.visible.load(SeqCst)
    }

    /// Bytes that each process counts for its context.
    pub fn context(&self) -> u64 {
        self.context.load(SeqCst)
    }

    /// What a process does without a usage file.
    pub fn on_missing(&self) -> OnMissing {
        if self.deny_missing.load(SeqCst) == 0 { OnMissing::Allow } else { OnMissing::Deny }
    }
}

/// What the processes of one container hold.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Usage {
    magic: AtomicU64,
    version: AtomicU32,
    /// Sum of what the processes hold: see [`word`].
    total: AtomicU64,
    /// Reservations that exceeded the limit.
    denied: AtomicU64,
    /// When the GPU's time that was charged last ended, in nanoseconds of the monotonic clock.
    covered: AtomicU64,
    /// When the time that was used is paid for: see [`Pace`].
    paid: AtomicU64,
    /// Kernels that ran longer than the shim waits.
    endless: AtomicU64,
    /// Slots that were ever taken are below this one.
    slots_used: AtomicU64,
    pub(crate) slots: [Slot; SLOTS],
    /// When a process last launched, or waited for that. Zero in files of earlier releases, as what follows.
    wanted: AtomicU64,
    /// Nanoseconds that launches waited for the part of the time.
    delayed: AtomicU64,
    /// Number of works that were ever recorded.
    recorded: AtomicU64,
    /// The latest of them.
    recent: [WorkCell; RECENT],
}

/// What the container uses and wants, read without mapping the file. The container can write anything into its file.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    pub(crate) wanted: u64,
    pub(crate) delayed: u64,
    pub(crate) recorded: u64,
    pub(crate) recent: [Work; RECENT],
}

/// What a usage file counts, read without mapping it. The container can write anything into its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    total: u64,
    denied: u64,
    endless: u64,
}

impl Counts {
    /// Bytes that the processes hold, with those that were killed until another process joins or is denied.
    pub fn used(&self) -> u64 {
        word::units(self.total).saturating_mul(UNIT)
    }

    /// Reservations that exceeded the limit.
    pub fn denied(&self) -> u64 {
        self.denied
    }

    /// Kernels that ran longer than the shim waits.
    pub fn endless(&self) -> u64 {
        self.endless
    }

    /// Whether no process has reserved or released between these two reads: see [`word`].
    pub fn is_unchanged(&self, later: &Self) -> bool {
        self.total == later.total
    }
}

impl Usage {
    /// Marks an empty file as complete.
    pub fn initialize(&self) {
        self.version.store(VERSION, SeqCst);
        self.magic.store(USAGE, SeqCst);
    }

    /// It is of this version.
    pub fn is_valid(&self) -> bool {
        self.magic.load(SeqCst) == USAGE && self.version.load(SeqCst) == VERSION
    }

    /// Bytes of a file that a reader without a mapping needs.
    pub(crate) const HEADER: usize = offset_of!(Self, endless) + 8;

    /// The counts in the first bytes of a file; `None` if it is of another version.
    pub(crate) fn counts(header: &[u8; Self::HEADER]) -> Option<Counts> {
        let (magic, rest) = header.split_first_chunk()?;
        let (version, _) = rest.split_first_chunk()?;
        let word = |at: usize| Some(u64::from_le_bytes(header.get(at..)?.first_chunk().copied()?));
        let total = word(offset_of!(Self, total))?;
        let denied = word(offset_of!(Self, denied))?;
        let endless = word(offset_of!(Self, endless))?;
        Self::begins_with(*magic, *version).then_some(Counts { total, denied, endless })
    }

    /// The first bytes of a file of this version.
    pub(crate) const FIRST: [u8; 12] = {
        let ([a, b, c, d, e, f, g, h], [i, j, k, l]) = (USAGE.to_le_bytes(), VERSION.to_le_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    };

    /// These first bytes of a file are of this version.
    pub(crate) fn begins_with(magic: [u8; 8], version: [u8; 4]) -> bool {
        u64::from_le_bytes(magic) == USAGE && u32::from_le_bytes(version) == VERSION
    }

    /// Bytes that the processes hold.
    pub fn used(&self) -> u64 {
        word::units(self.total.load(SeqCst)).saturating_mul(UNIT)
    }

    /// Reservations that exceeded the limit.
    pub fn denied(&self) -> u64 {
        self.denied.load(SeqCst)
    }

    /// When the time that the container used is paid for, in nanoseconds of the monotonic clock.
    pub fn paid(&self) -> u64 {
        self.paid.load(Relaxed)
    }

    /// Charges the time in which kernels of a process used the GPU. Time in which several processes of the container used it is charged once.
    /// `neighbours`: when the GPU ended what neighbours had launched before, where that is known: the kernels waited until then.
    pub fn charge_time(&self, used: &Used, neighbours: Option<u64>, percent: u64) {
        let covered = self.covered.fetch_max(used.end, SeqCst);
        let from = used.start.max(covered).max(neighbours.unwrap_or(0));
        let time = used.end.saturating_sub(from);
        if time > 0 {
            let next = |paid| match neighbours {
                Some(_) => pace::paid_next_to(paid, covered, used, time, percent),
                None => pace::paid_after(paid, from, time, percent),
            };
            // the closure returns a number in every case
            let _ = self.paid.fetch_update(SeqCst, SeqCst, |paid| Some(next(paid)));
        }
    }

    /// Records work that has ended, for the neighbours.
    pub fn record(&self, launched: u64, end: u64) {
        let at = self.recorded.fetch_add(1, SeqCst);
        let cell = usize::try_from(at % RECENT as u64).ok().and_then(|at| self.recent.get(at));
        if let Some(cell) = cell {
            cell.store(Work { launched, end });
        }
    }

    /// The container launches at this time, or waits for that.
    pub fn want(&self, now: u64) {
        self.wanted.store(now, Relaxed);
    }

    /// Adds nanoseconds that a launch waited for the part of the time.
    pub fn count_delay(&self, nanoseconds: u64) {
        self.delayed.fetch_add(nanoseconds, Relaxed);
    }

    /// Nanoseconds that launches waited for the part of the time.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Relaxed)
    }

    /// Where the file has [`Activity`], and how many bytes.
    pub(crate) const ACTIVITY: (usize, usize) = {
        let from = offset_of!(Self, wanted);
        (from, offset_of!(Self, recent) + size_of::<[WorkCell; RECENT]>() - from)
    };

    /// Where the file has the number until when the GPU's time is charged. Earlier releases write it, and nothing of [`Activity`].
    pub(crate) const COVERED: usize = offset_of!(Self, covered);

    /// Reads these bytes.
    pub(crate) fn activity(bytes: &[u8]) -> Option<Activity> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let recent = offset_of!(Self, recent).checked_sub(Self::ACTIVITY.0)?;
        let mut works = [Work::default(); RECENT];
        for (at, work) in works.iter_mut().enumerate() {
            let at = recent.checked_add(at.checked_mul(size_of::<WorkCell>())?)?;
            *work = Work { launched: word(at)?, end: word(at.checked_add(8)?)? };
        }
        Some(Activity { wanted: word(0)?, delayed: word(8)?, recorded: word(16)?, recent: works })
    }

    /// Kernels that ran longer than the shim waits.
    pub fn endless(&self) -> u64 {
        self.endless.load(SeqCst)
    }

    /// Counts a kernel that does not end, for all that is known.
    pub fn count_endless(&self) {
        self.endless.fetch_add(1, SeqCst);
    }

    /// What the processes hold.
    pub(crate) fn accounts(&self) -> Accounts<'_> {
        Accounts { total: &self.total, used: &self.slots_used, slots: &self.slots }
    }

    /// Where the file has the number of a slot since when it waits.
    pub(crate) fn waiting_offset(slot: usize) -> usize {
        let slots = slot.saturating_mul(size_of::<Slot>());
        offset_of!(Self, slots).saturating_add(slots).saturating_add(offset_of!(Slot, waiting))
    }

    pub(crate) fn count_denial(&self) {
        self.denied.fetch_add(1, SeqCst);
    }
}
