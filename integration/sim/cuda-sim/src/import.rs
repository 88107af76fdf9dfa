//! Importing memory: of other processes by `cuIpc*`, and memory objects of other programs of the GPU. See [`crate::imports`].

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::{
    abi::{Failure, Handle, INVALID_VALUE, NOT_SUPPORTED, Pointer, get, put},
    engine::now,
    imports::IpcHandle,
    process::{Process, cuda, current, handle, number},
};

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
const DESCRIPTOR: c_int = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY: c_uint = 1;

/// The first fields of `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExternalDescriptor {
    kind: c_int,
    padding: c_int,
    descriptor: c_int,
    /// The rest of the union.
    handle: [c_int; 3],
    bytes: c_ulonglong,
    flags: c_uint,
}

/// The first fields of `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BufferDescriptor {
    offset: c_ulonglong,
    bytes: c_ulonglong,
    flags: c_uint,
}

impl Process {
    fn open(&mut self, wanted: &IpcHandle, flags: c_uint) -> Result<Pointer, Failure> {
        if flags != LAZY {
            return Err(INVALID_VALUE);
        }
        self.current_device()?;
        let uuids: Vec<[u8; 16]> = self.devices.iter().map(|device| device.identity.uuid).collect();
        let mut imports = std::mem::take(&mut self.imports);
        let by = (std::process::id(), current());
        let opened = imports.open(wanted, by, |uuid| uuids.contains(uuid), |bytes| self.address(bytes));
        self.imports = imports;
        opened
    }
}

cuda! {
    fn cuIpcGetMemHandle(process, to: *mut IpcHandle, pointer: Pointer) {
        // memory of pools is shared by other functions
        let of = process.allocations.get(&pointer).filter(|of| of.pool.is_none()).copied().ok_or(INVALID_VALUE)?;
        let uuid = process.devices.get(of.device).ok_or(INVALID_VALUE)?.identity.uuid;
        let exported = process.imports.export(pointer, of.bytes, uuid, (std::process::id(), now()))?;
        put(to, exported)
    }

    fn cuIpcOpenMemHandle(process, pointer: *mut Pointer, wanted: IpcHandle, flags: c_uint) {
        let opened = process.open(&wanted, flags)?;
        put(pointer, opened)
    }

    fn cuIpcOpenMemHandle_v2(process, pointer: *mut Pointer, wanted: IpcHandle, flags: c_uint) {
        let opened = process.open(&wanted, flags)?;
        put(pointer, opened)
    }

    fn cuIpcCloseMemHandle(process, pointer: Pointer) {
        process.current_device()?;
        process.imports.close(pointer)
    }

    fn cuImportExternalMemory(process, memory: *mut Handle, description: *const ExternalDescriptor) {
        process.current_device()?;
        let wanted = get(description)?;
        if wanted.kind != DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let created = process.handle();
        process.imports.import(created, wanted.descriptor, wanted.bytes)?;
        put(memory, handle(created))
    }

    fn cuExternalMemoryGetMappedBuffer(
        process, pointer: *mut Pointer, memory: Handle, description: *const BufferDescriptor,
    ) {
        let (size, wanted) = (process.imports.external(number(memory))?, get(description)?);
        let end = wanted.offset.checked_add(wanted.bytes).ok_or(INVALID_VALUE)?;
        if wanted.bytes == 0 || end > size || wanted.flags != 0 {
            return Err(INVALID_VALUE);
        }
        let address = process.address(wanted.bytes);
        process.imports.add_buffer(address, wanted.bytes);
        put(pointer, address)
    }

    fn cuDestroyExternalMemory(process, memory: Handle) {
        process.imports.destroy_external(number(memory))
    }
}
