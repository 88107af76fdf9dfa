//! Accounting of processes: a list of the latest ones of all GPUs at the end of the file of [`activity`], each with its times and memory.
//!
//! A process writes its entry itself and may be killed at any time: an ended one has ended with its last kernel or change of memory. Its id is that of
//! its own PID namespace; other namespaces know it only while it runs.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

pub use crate::activity::ENTRIES;
use crate::activity::{self, ENTRY, Process};

/// A word of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// Number of the entry; zero if it is empty.
    Number,
    /// GPU index.
    Gpu,
    /// The process and its PID namespace.
    Pid,
    /// When it began, in microseconds since 1970.
    Start,
    /// When it did something last, in the same unit.
    Last,
    /// Nanoseconds of its kernels.
    Time,
    /// Most bytes that it had.
    Memory,
}

/// An accounted process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the entry, from 1 on.
    pub number: u64,
    /// GPU index.
    pub gpu: u32,
    /// Process id; none in another PID namespace.
    pub pid: Option<u32>,
    /// When it began, in microseconds since 1970.
    pub start: u64,
    /// When it did something last, in microseconds since 1970.
    pub last: u64,
    /// Nanoseconds of its kernels.
    pub time: u64,
    /// Most bytes that it had.
    pub memory: u64,
}

/// Place of a field of an entry in the file, in words.
pub fn word(number: u64, field: Field) -> usize {
    let at = usize::try_from(number % ENTRIES as u64).unwrap_or(0);
    activity::WORDS + 1 + at * ENTRY + field as usize
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A number that tells PID namespaces apart.
fn namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino() & u64::from(u32::MAX))
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(dir.join(activity::FILE))
}

fn get(file: &File, word: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, word as u64 * 8)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn set(file: &File, word: usize, value: u64) -> io::Result<()> {
    file.write_all_at(&value.to_ne_bytes(), word as u64 * 8)
}

/// This process begins to use a GPU; the list of clients is held.
pub fn begin(dir: &Path, gpu: u32, slot: u64, memory: u64) -> io::Result<()> {
    let file = open(dir)?;
    let (number, now) = (get(&file, activity::WORDS)? + 1, now());
    set(&file, activity::WORDS, number)?;
    let pid = namespace()? << 32 | u64::from(std::process::id());
    let fields = [(Field::Gpu, gpu.into()), (Field::Pid, pid), (Field::Start, now), (Field::Last, now)];
    let fields = fields.into_iter().chain([(Field::Time, 0), (Field::Memory, memory), (Field::Number, number)]);
    fields.into_iter().try_for_each(|(field, value)| set(&file, word(number, field), value))?;
    set(&file, Process::new(slot).account(), number)
}

/// A process has another amount of memory; the list of clients is held.
pub fn change(dir: &Path, slot: u64, memory: u64) -> io::Result<()> {
    let file = open(dir)?;
    let number = get(&file, Process::new(slot).account())?;
    if number == 0 || get(&file, word(number, Field::Number))? != number {
        return Ok(());
    }
    let most = get(&file, word(number, Field::Memory))?.max(memory);
    set(&file, word(number, Field::Memory), most)?;
    let last = get(&file, word(number, Field::Last))?.max(now());
    set(&file, word(number, Field::Last), last)
}

/// The entry of a process that runs.
pub fn number_of(dir: &Path, slot: u64) -> io::Result<u64> {
    get(&File::open(dir.join(activity::FILE))?, Process::new(slot).account())
}

/// All entries of a GPU, oldest first.
pub fn read(dir: &Path, gpu: u32) -> io::Result<Vec<Entry>> {
    let file = File::open(dir.join(activity::FILE))?;
    let (newest, own) = (get(&file, activity::WORDS)?, namespace()?);
    let mut entries = Vec::new();
    for number in newest.saturating_sub(ENTRIES as u64) + 1..=newest {
        let field = |field| get(&file, word(number, field));
        if field(Field::Number)? != number || field(Field::Gpu)? != u64::from(gpu) {
            continue;
        }
        let pid = field(Field::Pid)?;
        entries.push(Entry {
            number,
            gpu,
            pid: u32::try_from(pid & u64::from(u32::MAX)).ok().filter(|_| pid >> 32 == own),
            start: field(Field::Start)?,
            last: field(Field::Last)?,
            time: field(Field::Time)?,
            memory: field(Field::Memory)?,
        });
    }
    Ok(entries)
}

/// Removes these entries.
pub fn clear(dir: &Path, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
    let file = open(dir)?;
    numbers.into_iter().try_for_each(|number| set(&file, word(number, Field::Number), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_has_the_most_memory_and_is_found_by_its_slot() {
        let dir = tempfile::tempdir().unwrap();
        activity::create(dir.path()).unwrap();
        begin(dir.path(), 0, 5, 10).unwrap();
        begin(dir.path(), 1, 6, 1).unwrap();
        for memory in [30, 20] {
            change(dir.path(), 5, memory).unwrap();
        }
        // a process without accounting
        change(dir.path(), 7, 99).unwrap();
        let entries = read(dir.path(), 0).unwrap();
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        assert_eq!((entry.pid, entry.memory, entry.number), (Some(std::process::id()), 30, 1));
        assert!(entry.start <= entry.last);
        assert_eq!([5, 6, 7].map(|slot| number_of(dir.path(), slot).unwrap()), [1, 2, 0]);
        clear(dir.path(), [1]).unwrap();
        assert!(read(dir.path(), 0).unwrap().is_empty() && read(dir.path(), 1).unwrap().len() == 1);
        // the entry is gone, and its process goes on
        change(dir.path(), 5, 40).unwrap();
        assert!(read(dir.path(), 0).unwrap().is_empty());
    }

    #[test]
    fn oldest_entry_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        activity::create(dir.path()).unwrap();
        (0..=ENTRIES as u64).for_each(|slot| begin(dir.path(), 0, slot % 1000, 0).unwrap());
        let entries = read(dir.path(), 0).unwrap();
        assert_eq!((entries.len(), entries[0].number), (ENTRIES, 2));
        assert_eq!(word(ENTRIES as u64 - 1, Field::Memory) + 1, activity::WORDS + activity::LIST);
    }
}
