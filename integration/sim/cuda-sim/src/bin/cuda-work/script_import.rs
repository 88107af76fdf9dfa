//! Calls of a script that share memory with other processes, or import memory objects.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    fs::{self, File},
    os::fd::{FromRawFd, IntoRawFd},
    ptr::null_mut,
};

use libloading::Library;

use crate::{Failed, allocate::Block, kernel::Handle};

/// Bytes of `CUipcMemHandle`.
const HANDLE: usize = 64;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; HANDLE]);

/// Memory objects, by the number that the caller chose.
#[derive(Default)]
pub struct Imports {
    external: BTreeMap<u64, Handle>,
}

impl Imports {
    /// `None` for a line that it does not know. Handles are passed in files.
    pub fn call(
        &mut self,
        cuda: &Library,
        blocks: &mut BTreeMap<u64, Block>,
        words: &[&str],
    ) -> Option<Result<(), Failed>> {
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let pointer = |blocks: &BTreeMap<u64, Block>| match *blocks.get(&number(1)?)? {
            Block::Pointer(pointer) | Block::Stream(pointer) => Some(pointer),
            _ => None,
        };
        Some(match *words.first()? {
            "ipc-export" => {
                let mut handle = IpcHandle([0; HANDLE]);
                let (to, of) = (&raw mut handle, pointer(blocks)?);
                let code = cuda!(cuda, cuIpcGetMemHandle(to => *mut IpcHandle, of => u64));
                code.and_then(|()| fs::write(words.get(2).unwrap_or(&""), handle.0).map_err(|_| Failed("write", -1)))
            }
            "ipc-open" => {
                let handle = IpcHandle(fs::read(words.get(2)?).ok()?.try_into().ok()?);
                let mut opened = 0_u64;
                let to = &raw mut opened;
                let code = cuda!(cuda, cuIpcOpenMemHandle_v2(to => *mut u64, handle => IpcHandle, 1 => c_uint));
                code.map(|()| {
                    blocks.insert(number(1).unwrap_or(0), Block::Pointer(opened));
                })
            }
            "ipc-close" => {
                let opened = pointer(blocks)?;
                cuda!(cuda, cuIpcCloseMemHandle(opened => u64))
            }
            "external" => {
                let (object, bytes) = (object(number(2)?)?, number(2)?);
                let mut memory: Handle = null_mut();
                // CUDA_EXTERNAL_MEMORY_HANDLE_DESC: a file descriptor, its size, no flags
                let mut words = [0_u64; 13];
                words.iter_mut().zip([1, u64::try_from(object).ok()?, 0, bytes]).for_each(|(to, from)| *to = from);
                let of = words.as_ptr();
                let code = cuda!(cuda, cuImportExternalMemory(&raw mut memory => *mut Handle, of => *const u64));
                if code.is_err() {
                    // SAFETY: it stays this program's if it was not imported.
                    drop(unsafe { File::from_raw_fd(object) });
                }
                code.map(|()| {
                    self.external.insert(number(1).unwrap_or(0), memory);
                })
            }
            "external-map" => {
                let memory = *self.external.get(&number(2)?)?;
                let mut mapped = 0_u64;
                // CUDA_EXTERNAL_MEMORY_BUFFER_DESC: from the begin, no flags
                let mut words = [0_u64; 11];
                words.iter_mut().skip(1).take(1).for_each(|to| *to = number(3).unwrap_or(0));
                let (to, of): (*mut u64, *const c_void) = (&raw mut mapped, words.as_ptr().cast());
                let code = cuda!(cuda, cuExternalMemoryGetMappedBuffer(
                    to => *mut u64, memory => Handle, of => *const c_void,
                ));
                code.map(|()| {
                    blocks.insert(number(1).unwrap_or(0), Block::Pointer(mapped));
                })
            }
            "external-destroy" => {
                let memory = *self.external.get(&number(1)?)?;
                cuda!(cuda, cuDestroyExternalMemory(memory => Handle))
            }
            _ => return None,
        })
    }
}

/// The descriptor of a file in memory of this size.
fn object(bytes: u64) -> Option<c_int> {
    let file = nix::sys::memfd::memfd_create(c"external", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).ok()?;
    let file = File::from(file);
    file.set_len(bytes).ok()?;
    Some(file.into_raw_fd())
}
