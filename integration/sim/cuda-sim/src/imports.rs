//! Memory that other processes or other programs of the GPU have allocated: it takes nothing of the device in the name of this process.
//!
//! A process lists what it exports in a file without a name. An importer opens that file by the process id and the descriptor that a handle names, so
//! that a handle ends with its process. What happens to mappings of memory that its owner frees is undefined in CUDA; here their addresses stay.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use crate::abi::{Failure, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Pointer, UNKNOWN};

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    magic: [u8; 8],
    pid: u32,
    descriptor: i32,
    slot: u64,
    id: u64,
    reserved: [u64; 4],
}

/// Begin of a handle of the simulator.
const MAGIC: [u8; 8] = *b"nvsimipc";
/// Bytes of an entry of the list: id, size, and UUID of the device.
const ENTRY: usize = 32;

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Number of the export; 0 when it was freed.
    id: u64,
    bytes: u64,
    /// The GPU or MIG device.
    pub uuid: [u8; 16],
}

impl Exported {
    fn to_bytes(self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        let fields = self.id.to_ne_bytes().into_iter().chain(self.bytes.to_ne_bytes()).chain(self.uuid);
        entry.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        entry
    }

    fn from_bytes(entry: [u8; ENTRY]) -> Self {
        let [first, second] = [0, 8].map(|at| {
            let mut number = [0; 8];
            number.iter_mut().zip(entry.iter().skip(at)).for_each(|(to, from)| *to = *from);
            u64::from_ne_bytes(number)
        });
        let mut uuid = [0; 16];
        uuid.iter_mut().zip(entry.iter().skip(16)).for_each(|(to, from)| *to = *from);
        Self { id: first, bytes: second, uuid }
    }
}

/// Memory that a handle has opened.
#[derive(Clone, Copy, Debug)]
struct Opened {
    context: usize,
    owner: (u32, u64),
    bytes: u64,
    count: u32,
}

/// A memory object of another program of the GPU.
#[derive(Debug)]
struct External {
    _object: OwnedFd,
    bytes: u64,
}

/// What a process exports and imports.
#[derive(Debug, Default)]
pub struct Imports {
    list: Option<File>,
    /// Slot and id of what is exported, by address.
    exported: BTreeMap<Pointer, (u64, u64)>,
    slots: u64,
    opened: BTreeMap<Pointer, Opened>,
    externals: BTreeMap<usize, External>,
    /// Sizes of mapped buffers.
    buffers: BTreeMap<Pointer, u64>,
}

impl Imports {
    /// The handle of an allocation, the same as often as it is asked for. `seed` differs between processes and times.
    pub fn export(
        &mut self,
        address: Pointer,
        bytes: u64,
        uuid: [u8; 16],
        (pid, seed): (u32, u64),
    ) -> Result<IpcHandle, Failure> {
        let list = match &self.list {
            Some(list) => list,
            None => self.list.insert(nameless().map_err(|_| UNKNOWN)?),
        };
        let (slot, id) = if let Some(known) = self.exported.get(&address) {
            *known
        } else {
            self.slots += 1;
            let id = (seed ^ u64::from(pid) << 32).wrapping_add(self.slots).max(1);
            write(list, self.slots, Exported { id, bytes, uuid }).map_err(|_| UNKNOWN)?;
            self.exported.insert(address, (self.slots, id));
            (self.slots, id)
        };
        Ok(IpcHandle { magic: MAGIC, pid, descriptor: list.as_raw_fd(), slot, id, reserved: [0; 4] })
    }

    /// An allocation is gone, and its handle with it.
    pub fn end_export(&mut self, address: Pointer) {
        if let (Some((slot, _)), Some(list)) = (self.exported.remove(&address), &self.list) {
            // the file is in memory: without memory the entry stays, as if the free came later
            let _ = write(list, slot, Exported { id: 0, bytes: 0, uuid: [0; 16] });
        }
    }

    /// Opens a handle in a context; a second time it returns the address of the first. `address` is a new one for so many bytes.
    pub fn open(
        &mut self,
        handle: &IpcHandle,
        (pid, context): (u32, usize),
        has_device: impl FnOnce(&[u8; 16]) -> bool,
        address: impl FnOnce(u64) -> Pointer,
    ) -> Result<Pointer, Failure> {
        if handle.magic != MAGIC {
            return Err(INVALID_VALUE);
        }
        // the exporter has the memory already
        if handle.pid == pid {
            return Err(INVALID_CONTEXT);
        }
        let found = read(handle).ok().filter(|found| found.id == handle.id && found.id != 0).ok_or(INVALID_HANDLE)?;
        let owner = (handle.pid, handle.id);
        if let Some((at, known)) = self.opened.iter_mut().find(|(_, known)| known.owner == owner) {
            // one context of each device may open the handles of a process
            if known.context != context {
                return Err(INVALID_CONTEXT);
            }
            known.count += 1;
            return Ok(*at);
        }
        if !has_device(&found.uuid) {
            return Err(INVALID_HANDLE);
        }
        let at = address(found.bytes);
        self.opened.insert(at, Opened { context, owner, bytes: found.bytes, count: 1 });
        Ok(at)
    }

    /// Closes a handle as often as it was opened.
    pub fn close(&mut self, address: Pointer) -> Result<(), Failure> {
        let known = self.opened.get_mut(&address).ok_or(INVALID_VALUE)?;
        known.count -= 1;
        if known.count == 0 {
            self.opened.remove(&address);
        }
        Ok(())
    }

    /// A context is gone, and its mappings with it.
    pub fn end_context(&mut self, context: usize) {
        self.opened.retain(|_, opened| opened.context != context);
    }

    /// Imports a memory object of this size; the descriptor belongs to the library from then on.
    pub fn import(&mut self, number: usize, descriptor: i32, bytes: u64) -> Result<(), Failure> {
        let size = size_of_file(descriptor).ok_or(INVALID_HANDLE)?;
        if bytes == 0 || size < bytes {
            return Err(INVALID_VALUE);
        }
        // SAFETY: it is open, and CUDA demands that the caller does not use it any more.
        let object = unsafe { OwnedFd::from_raw_fd(descriptor) };
        self.externals.insert(number, External { _object: object, bytes });
        Ok(())
    }

    /// Bytes of a memory object.
    pub fn external(&self, number: usize) -> Result<u64, Failure> {
        self.externals.get(&number).map(|external| external.bytes).ok_or(INVALID_HANDLE)
    }

    /// Destroys a memory object; its buffers stay until they are freed.
    pub fn destroy_external(&mut self, number: usize) -> Result<(), Failure> {
        self.externals.remove(&number).map(drop).ok_or(INVALID_HANDLE)
    }

    pub fn add_buffer(&mut self, address: Pointer, bytes: u64) {
        self.buffers.insert(address, bytes);
    }

    /// Frees a mapped buffer; memory of an opened handle is closed instead.
    pub fn free(&mut self, address: Pointer) -> Result<(), Failure> {
        self.buffers.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    /// A mapping has this address in it.
    pub fn knows(&self, pointer: Pointer) -> bool {
        let buffer = self.buffers.range(..=pointer).next_back().map(|(at, bytes)| (*at, *bytes));
        let opened = self.opened.range(..=pointer).next_back().map(|(at, opened)| (*at, opened.bytes));
        [buffer, opened].into_iter().flatten().any(|(at, bytes)| pointer < at + bytes)
    }
}

/// A new file without a name.
fn nameless() -> io::Result<File> {
    // older versions of glibc, for which this is also built, have no function for it
    // SAFETY: the name ends with NUL; the descriptor that is returned has no other owner.
    let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, c"nvsim-ipc".as_ptr(), libc::MFD_CLOEXEC) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0);
    let Some(descriptor) = descriptor else { return Err(io::Error::last_os_error()) };
    // SAFETY: as above.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

fn write(list: &File, slot: u64, entry: Exported) -> io::Result<()> {
    list.write_all_at(&entry.to_bytes(), slot * ENTRY as u64)
}

/// The entry of a handle, as long as its process lives.
fn read(handle: &IpcHandle) -> io::Result<Exported> {
    let list = File::open(format!("/proc/{}/fd/{}", handle.pid, handle.descriptor))?;
    let mut entry = [0; ENTRY];
    list.read_exact_at(&mut entry, handle.slot.checked_mul(ENTRY as u64).ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok(Exported::from_bytes(entry))
}

/// Bytes of an open file; `None` for what is none.
fn size_of_file(descriptor: i32) -> Option<u64> {
    // SAFETY: stat is plain data, for which zeroes are valid.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes to `found`.
    let code = unsafe { libc::fstat(descriptor, &raw mut found) };
    (code == 0).then(|| u64::try_from(found.st_size).unwrap_or(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends there")]
mod tests {
    use super::*;

    #[test]
    fn handle_is_valid_while_its_owner_has_the_memory() {
        let (mut owner, mut importer) = (Imports::default(), Imports::default());
        let handle = owner.export(0x100, 50, [7; 16], (std::process::id(), 1)).unwrap();
        assert_eq!(owner.export(0x100, 50, [7; 16], (std::process::id(), 9)).unwrap().id, handle.id);
        let mut open = |context, known: bool| importer.open(&handle, (0, context), |_| known, |bytes| 0x1000 + bytes);
        assert_eq!(open(1, false), Err(INVALID_HANDLE), "the device is not visible");
        assert_eq!((open(1, true), open(1, true), open(2, true)), (Ok(0x1032), Ok(0x1032), Err(INVALID_CONTEXT)));
        owner.end_export(0x100);
        assert_eq!(open(1, true), Err(INVALID_HANDLE));
        assert!(importer.knows(0x1033) && !importer.knows(0x1032 + 50));
        assert_eq!(importer.free(0x1032), Err(INVALID_VALUE));
        assert_eq!([(); 3].map(|()| importer.close(0x1032)), [Ok(()), Ok(()), Err(INVALID_VALUE)]);
        assert_eq!(importer.open(&handle, (std::process::id(), 1), |_| true, |_| 0), Err(INVALID_CONTEXT));
    }
}
