//! This container's share: whether a device is its GPU, what it has, and which processes use it.

use std::{
    ffi::{c_char, c_uint},
    io,
    path::Path,
};

use gputenancy_ledger::{
    Limits, MapError, Mapped, Process, Usage,
    paths::{LIMITS, USAGE},
};

use crate::{
    abi::{Code, Device, NO_INSTANCE, SUCCESS, UNKNOWN},
    real::driver,
};

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BUFFER: usize = 96;

/// A text with NUL at its end.
type Uuid = [u8; UUID_BUFFER];

/// The files of a share. The second one may not be usable.
type Files = (Mapped<Limits>, Option<Mapped<Usage>>);

/// A share of a GPU or of a MIG instance.
pub struct Share {
    limits: Mapped<Limits>,
    /// `None` without a usable usage file: then no program gets memory.
    usage: Option<Mapped<Usage>>,
    /// Handle of the GPU or MIG instance.
    device: Device,
}

/// Memory of a share, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The share.
    pub total: u64,
    /// What programs can still allocate.
    pub free: u64,
}

impl Share {
    /// The share of this container, if the device is its GPU, or the GPU of its MIG instance. Fails with the driver's code if it does not know the device,
    /// and with [`UNKNOWN`] if the files of the share cannot be read.
    ///
    /// Devices are compared by UUID in each call: handles are not valid after `nvmlShutdown`.
    pub fn of_device(device: Device) -> Result<Option<Self>, Code> {
        let Some((limits, usage)) = open()? else { return Ok(None) };
        let (own, wanted) = (uuid(device)?, padded(&limits.uuid()));
        if own == wanted {
            return Ok(Some(Self { limits, usage, device }));
        }
        if !wanted.starts_with(b"MIG-") {
            return Ok(None);
        }
        // the list of the whole GPU has the processes of all shares of its instances
        let instance = by_uuid(&wanted)?;
        let of_share = uuid(parent(instance)?)? == own;
        Ok(of_share.then_some(Self { limits, usage, device: instance }))
    }

    /// The living processes of this container that use the share.
    pub fn processes(&self) -> Vec<Process> {
        self.usage.as_ref().map(Mapped::<Usage>::processes).unwrap_or_default()
    }

    /// Its memory. The context of the first process is not counted, as in CUDA's view.
    pub fn memory(&self) -> Bytes {
        let used = self.processes().iter().fold(0_u64, |sum, process| sum.saturating_add(process.bytes));
        let total = self.limits.visible();
        Bytes { total, free: self.limits.limit().saturating_sub(used).min(total) }
    }

    /// GPU instance and compute instance of the share; [`NO_INSTANCE`] for a share of a whole GPU.
    pub fn instance(&self) -> (c_uint, c_uint) {
        let (mut gpu, mut compute) = (NO_INSTANCE, NO_INSTANCE);
        let code = driver!(nvmlDeviceGetGpuInstanceId(self.device => Device, &raw mut gpu => *mut c_uint));
        let (SUCCESS, SUCCESS) =
            (code, driver!(nvmlDeviceGetComputeInstanceId(self.device => Device, &raw mut compute => *mut c_uint)))
        else {
            return (NO_INSTANCE, NO_INSTANCE);
        };
        (gpu, compute)
    }
}

/// Files of the share; `None` if the container has no share with a limit.
fn open() -> Result<Option<Files>, Code> {
    let limits = match Mapped::<Limits>::open(Path::new(LIMITS)) {
        Ok(limits) => limits,
        Err(MapError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(UNKNOWN),
    };
    match Mapped::<Usage>::open(Path::new(USAGE)) {
        Ok(usage) => Ok(Some((limits, Some(usage)))),
        // such as too many open files
        Err(MapError::Io(error)) if !is_missing(&error) => Err(UNKNOWN),
        Err(_) => Ok(Some((limits, None))),
    }
}

/// The file is not there, or too short.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

fn padded(text: &[u8]) -> Uuid {
    let mut uuid = [0; UUID_BUFFER];
    // the last byte stays NUL
    uuid.iter_mut().take(UUID_BUFFER.saturating_sub(1)).zip(text).for_each(|(to, from)| *to = *from);
    uuid
}

fn uuid(device: Device) -> Result<Uuid, Code> {
    let mut buffer: Uuid = [0; UUID_BUFFER];
    let length = c_uint::try_from(UUID_BUFFER).unwrap_or_default();
    let to: *mut c_char = buffer.as_mut_ptr().cast();
    let code = driver!(nvmlDeviceGetUUID(device => Device, to => *mut c_char, length => c_uint));
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(UUID_BUFFER);
    if code == SUCCESS { Ok(padded(buffer.get(..end).unwrap_or_default())) } else { Err(code) }
}

fn by_uuid(uuid: &Uuid) -> Result<Device, Code> {
    let mut device: Device = std::ptr::null_mut();
    let text: *const c_char = uuid.as_ptr().cast();
    let code = driver!(nvmlDeviceGetHandleByUUID(text => *const c_char, &raw mut device => *mut Device));
    if code == SUCCESS { Ok(device) } else { Err(code) }
}

fn parent(instance: Device) -> Result<Device, Code> {
    let mut device: Device = std::ptr::null_mut();
    let code = driver!(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        instance => Device, &raw mut device => *mut Device
    ));
    if code == SUCCESS { Ok(device) } else { Err(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_padded_with_nul() {
        let uuid = padded(b"GPU-00");
        assert!(uuid.starts_with(b"GPU-00\0") && uuid[6..].iter().all(|byte| *byte == 0));
        assert_eq!(padded(&[b'x'; 200])[95], 0, "too long for any buffer");
    }
}
