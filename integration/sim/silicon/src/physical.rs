//! The physical memory of the simulated GPUs: one sparse file of a node, which outlives the processes that write to it.
//!
//! The bytes of GPU 0 come first, then those of GPU 1, and so on; a MIG instance has those of its placement. A process holds a record lock on the
//! bytes that it has, so that they are free when it ends, however it ends. As with [`crate::clients`], a process opens the file once: closing any
//! descriptor of it would drop its locks.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};
use nix::libc;

use crate::board::RESERVED_MIB;
use crate::code::Code;
use crate::machine::Machine;

/// Name of the file in the state folder.
pub const FILE: &str = "memory";
/// Most bytes of one write when memory is filled.
const CHUNK: usize = 1 << 20;

/// Creates the file, writable for all users because containers are not root on the node.
pub fn create(dir: &Path) -> io::Result<()> {
    let path = dir.join(FILE);
    OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// The bytes of a GPU or MIG device in the file.
pub fn of_device(machine: &Machine, gpu: u32, instance: Option<(u32, u32)>) -> Result<Range<u64>, Code> {
    let on = machine.gpu(gpu)?;
    let board = &on.board;
    let before = machine.gpus.iter().take_while(|other| other.index < on.index);
    let begin: u64 = before.map(|other| other.board.memory_mib << 20).sum();
    let Some((gi, ci)) = instance else {
        return Ok(begin..begin + ((board.memory_mib - RESERVED_MIB) << 20));
    };
    let of = machine.mig_device(gpu, gi, ci)?.gi;
    let units = board.geometry.as_ref().map(|geometry| u64::from(geometry.memory_units)).filter(|units| *units > 0);
    let unit = (board.memory_mib << 20) / units.ok_or(Code::NOT_SUPPORTED)?;
    let begin = begin + u64::from(of.placement.start) * unit;
    Ok(begin..begin + (on.profile_of(of)?.memory_mib << 20))
}

/// The physical memory as one process sees it, and what it has of it.
#[derive(Debug)]
pub struct Physical {
    file: File,
    /// Own ranges, by their begin: the kernel does not report the locks of the process that asks.
    own: BTreeMap<u64, u64>,
}

impl Physical {
    /// Opens the file in the folder of the state; once in a process.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(FILE))?;
        Ok(Self { file, own: BTreeMap::new() })
    }

    /// Takes so many bytes from the first free ranges; `None` if there are not as many.
    pub fn take(&mut self, within: &Range<u64>, bytes: u64) -> io::Result<Option<Vec<Range<u64>>>> {
        loop {
            let (mut taken, mut missing) = (Vec::new(), bytes);
            for range in self.free(within)? {
                let part = range.start..range.end.min(range.start + missing);
                if missing == 0 || !self.lock(&part)? {
                    break;
                }
                missing -= part.end - part.start;
                self.own.insert(part.start, part.end);
                taken.push(part);
            }
            if missing == 0 {
                return Ok(Some(taken));
            }
            for part in taken {
                self.give_back(&part)?;
            }
            // otherwise another process has taken some of them meanwhile
            if self.free(within)?.iter().map(|range| range.end - range.start).sum::<u64>() < bytes {
                return Ok(None);
            }
        }
    }

    /// Gives back a range that was taken. What it contains stays.
    pub fn give_back(&mut self, range: &Range<u64>) -> io::Result<()> {
        self.own.remove(&range.start);
        fcntl(&self.file, FcntlArg::F_SETLK(&lock_of(libc::F_UNLCK, range)))?;
        Ok(())
    }

    /// Ranges that no process has, in their order.
    fn free(&self, within: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut unknown = without(within, &self.own);
        let mut free = Vec::new();
        while let Some(range) = unknown.pop() {
            match self.locked(&range)? {
                None => free.push(range),
                Some((lock, _)) => unknown.extend(outside(&range, &lock)),
            }
        }
        free.sort_by_key(|range| range.start);
        Ok(free)
    }

    /// Ranges that other processes have, in their order, with the process.
    pub fn others(&self, within: &Range<u64>) -> io::Result<Vec<(Range<u64>, u32)>> {
        let (mut unknown, mut found) = (vec![within.clone()], Vec::new());
        while let Some(range) = unknown.pop() {
            if let Some((lock, pid)) = self.locked(&range)? {
                unknown.extend(outside(&range, &lock));
                found.push((lock, pid));
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        Ok(found)
    }

    /// A part of this range that another process has locked, and the process.
    fn locked(&self, range: &Range<u64>) -> io::Result<Option<(Range<u64>, u32)>> {
        let mut lock = lock_of(libc::F_WRLCK, range);
        fcntl(&self.file, FcntlArg::F_GETLK(&mut lock))?;
        if i32::from(lock.l_type) == libc::F_UNLCK {
            return Ok(None);
        }
        let [start, length] = [lock.l_start, lock.l_len].map(|number| u64::try_from(number).unwrap_or(0));
        let part = start.max(range.start)..start.saturating_add(length).min(range.end);
        Ok(Some((part, u32::try_from(lock.l_pid).unwrap_or(0))))
    }

    /// Locks a range; false if another process has a part of it.
    fn lock(&self, range: &Range<u64>) -> io::Result<bool> {
        match fcntl(&self.file, FcntlArg::F_SETLK(&lock_of(libc::F_WRLCK, range))) {
            Ok(_) => Ok(true),
            Err(Errno::EACCES | Errno::EAGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from this byte on; what was never written is zero.
    pub fn read(&self, at: u64, mut to: &mut [u8]) -> io::Result<()> {
        let mut at = at;
        while !to.is_empty() {
            match self.file.read_at(to, at) {
                Ok(0) => {
                    // behind the end of the file
                    to.fill(0);
                    return Ok(());
                }
                Ok(count) => {
                    at += count as u64;
                    to = to.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes from this byte on.
    pub fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, at)
    }

    /// Writes zeroes, for which the file keeps no bytes.
    pub fn zero(&self, range: &Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let [at, length] = signed(range);
        Ok(fallocate(&self.file, flags, at, length)?)
    }

    /// Repeats `unit` from the begin of the range to its end. The range is a multiple of it.
    pub fn fill(&self, range: &Range<u64>, unit: &[u8]) -> io::Result<()> {
        if unit.iter().all(|byte| *byte == 0) {
            return self.zero(range);
        }
        let chunk = unit.repeat(CHUNK / unit.len());
        let mut at = range.start;
        while at < range.end {
            let count = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(chunk.len());
            self.write(at, chunk.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
        Ok(())
    }
}

/// The parts of a range that no known range covers, by begin and end.
fn without(range: &Range<u64>, known: &BTreeMap<u64, u64>) -> Vec<Range<u64>> {
    let (mut rest, mut at) = (Vec::new(), range.start);
    for (start, end) in known.range(..range.end).filter(|(_, end)| **end > range.start) {
        if *start > at {
            rest.push(at..*start);
        }
        at = at.max(*end);
    }
    if at < range.end {
        rest.push(at..range.end);
    }
    rest
}

/// The parts of a range before and behind a part of it.
fn outside(range: &Range<u64>, part: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    [range.start..part.start, part.end..range.end].into_iter().filter(|rest| !rest.is_empty())
}

/// Begin and length for the kernel.
fn signed(range: &Range<u64>) -> [i64; 2] {
    [range.start, range.end - range.start].map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn lock_of(kind: libc::c_int, range: &Range<u64>) -> libc::flock {
    let [l_start, l_len] = signed(range);
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start,
        l_len,
        l_pid: 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends there")]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]
mod tests {
    use super::*;
    use crate::board::Variant;
    use crate::boards;

    fn physical() -> (tempfile::TempDir, Physical) {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path()).unwrap();
        let physical = Physical::open(folder.path()).unwrap();
        (folder, physical)
    }

    #[test]
    fn memory_is_taken_from_the_first_free_ranges_and_keeps_its_content() {
        let (_folder, mut memory) = physical();
        let within = 100..200;
        let mut take = |bytes| memory.take(&within, bytes).unwrap();
        assert_eq!((take(20), take(30), take(30)), (Some(vec![100..120]), Some(vec![120..150]), Some(vec![150..180])));
        assert_eq!(take(21), None);
        memory.write(120, &[7; 30]).unwrap();
        memory.give_back(&(120..150)).unwrap();
        assert_eq!(memory.take(&within, 51).unwrap(), None);
        assert_eq!(memory.take(&within, 40).unwrap(), Some(vec![120..150, 180..190]), "in two pieces");
        let mut content = [1; 31];
        memory.read(120, &mut content).unwrap();
        assert_eq!((&content[..30], content[30]), (&[7; 30][..], 0));
    }

    #[test]
    fn what_was_zeroed_or_never_written_is_zero() {
        let (_folder, memory) = physical();
        memory.fill(&(3..3 + 4 * CHUNK as u64), &[1, 2, 3, 4]).unwrap();
        memory.zero(&(10..20)).unwrap();
        let mut content = [9; 20];
        memory.read(3, &mut content).unwrap();
        assert_eq!(content, [1, 2, 3, 4, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4]);
        memory.fill(&(3..13), &[0]).unwrap();
        memory.read(3, &mut content).unwrap();
        assert_eq!(content[..10], [0; 10]);
        memory.read(5 * CHUNK as u64, &mut content).unwrap();
        assert_eq!(content, [0; 20], "behind the end of the file");
    }

    #[test]
    fn devices_do_not_overlap_unless_one_is_on_the_other() {
        let mut machine = Machine::power_on("node", boards::load("a30-24gb").unwrap(), Variant::Normal, 2, &[]);
        let whole: Vec<_> = (0..2).map(|gpu| of_device(&machine, gpu, None).unwrap()).collect();
        assert!(whole[0].end <= whole[1].start);
        let _ = machine.set_mig_mode(1, true, &[]).unwrap();
        machine.reset(1, &[]).unwrap();
        let mut instances = Vec::new();
        for profile in [5, 14, 14] {
            let gi = machine.create_gi(1, profile, None).unwrap().id;
            let ci = machine.create_ci(1, gi, 0, None).unwrap().id;
            instances.push(of_device(&machine, 1, Some((gi, ci))).unwrap());
        }
        instances.sort_by_key(|range| range.start);
        assert!(instances.iter().all(|range| range.start >= whole[1].start && !range.is_empty()), "{instances:?}");
        assert!(instances.windows(2).all(|two| two[0].end <= two[1].start), "{instances:?}");
        assert!(of_device(&machine, 1, Some((9, 9))).is_err());
    }
}
