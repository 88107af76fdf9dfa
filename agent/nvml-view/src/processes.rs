//! Lists of processes: those of this container, with the process ids that it sees itself, from its ledger.
//!
//! The driver's list is not used. It has process ids of the host or of the container, depending on the driver and the pod, so that a process of another
//! team can have the number of one of this container.

use std::ffi::c_uint;

use gputenancy_ledger::Process;

use crate::{
    abi::{
        COMPUTE, Code, Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, ProcessDetail, ProcessDetailList,
        ProcessV1, ProcessV2, ProcessesUtilization, SUCCESS, VERSION_MISMATCH, first_version,
    },
    share::Share,
};

/// A process in a list of NVML.
pub trait Entry {
    /// From the ledger, with the ids of GPU instance and compute instance.
    fn new(process: Process, instance: (c_uint, c_uint)) -> Self;
}

impl Entry for ProcessV1 {
    fn new(Process { pid, bytes }: Process, _instance: (c_uint, c_uint)) -> Self {
        Self { pid, used: bytes }
    }
}

impl Entry for ProcessV2 {
    fn new(Process { pid, bytes }: Process, (gpu_instance, compute_instance): (c_uint, c_uint)) -> Self {
        Self { pid, used: bytes, gpu_instance, compute_instance }
    }
}

impl Entry for ProcessDetail {
    fn new(Process { pid, bytes }: Process, (gpu_instance, compute_instance): (c_uint, c_uint)) -> Self {
        Self { pid, used: bytes, gpu_instance, compute_instance, protected: 0 }
    }
}

/// Answers for the share's GPU with `answer`; other devices belong to this container alone, and the driver answers.
fn answer(device: Device, real: impl FnOnce() -> Code, answer: impl FnOnce(&Share) -> Code) -> Code {
    match Share::of_device(device) {
        Ok(Some(share)) => answer(&share),
        Ok(None) => real(),
        Err(code) => code,
    }
}

/// The processes of the ledger.
fn entries<T: Entry>(share: &Share) -> Vec<T> {
    let instance = share.instance();
    share.processes().into_iter().map(|process| T::new(process, instance)).collect()
}

/// Compute processes.
pub fn compute<T: Entry>(device: Device, count: *mut c_uint, to: *mut T, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |share| list(&entries(share), count, to))
}

/// A list that is empty on a share, because the ledger has none of these: graphics and MPS processes, sessions of video engines, ended processes.
pub fn none(device: Device, count: *mut c_uint, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |_| list::<ProcessV1>(&[], count, std::ptr::null_mut()))
}

/// Statistics of one process by its id: it could be a process of another team.
pub fn unknown(device: Device, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |_| NOT_FOUND)
}

/// Processes of one kind, with details.
pub fn details(device: Device, to: *mut ProcessDetailList, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |share| {
        // SAFETY: NVML demands that a pointer that is not null points to such a struct.
        let Some(to) = (unsafe { to.as_mut() }) else { return INVALID_ARGUMENT };
        if to.version != first_version::<ProcessDetailList>() {
            return VERSION_MISMATCH;
        }
        let found = if to.mode == COMPUTE { entries(share) } else { Vec::<ProcessDetail>::new() };
        list(&found, &raw mut to.count, to.array)
    })
}

/// Samples of utilization by process: the ledger has none.
pub fn samples(device: Device, count: *mut c_uint, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |_| match list::<ProcessV1>(&[], count, std::ptr::null_mut()) {
        SUCCESS => NOT_FOUND,
        code => code,
    })
}

/// As [`samples`], in the newer struct.
pub fn samples_of_struct(device: Device, to: *mut ProcessesUtilization, real: impl FnOnce() -> Code) -> Code {
    answer(device, real, |_| {
        // SAFETY: NVML demands that a pointer that is not null points to such a struct.
        let Some(to) = (unsafe { to.as_mut() }) else { return INVALID_ARGUMENT };
        if to.version != first_version::<ProcessesUtilization>() {
            return VERSION_MISMATCH;
        }
        to.count = 0;
        NOT_FOUND
    })
}

/// Fills a list as NVML does: always the number, and the entries if the array has place for all.
fn list<T>(entries: &[T], count: *mut c_uint, to: *mut T) -> Code {
    // SAFETY: NVML demands that a pointer that is not null points to a number.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    let place = *count as usize;
    *count = c_uint::try_from(entries.len()).unwrap_or(c_uint::MAX);
    if entries.is_empty() {
        return SUCCESS;
    }
    if entries.len() > place || to.is_null() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: NVML demands an array of `count` entries, at least as many as these.
    unsafe { std::ptr::copy_nonoverlapping(entries.as_ptr(), to, entries.len()) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_the_number_always_and_the_entries_if_they_fit() {
        let entries = [7, 8].map(|pid| ProcessV1::new(Process { pid, bytes: 1 }, (0, 0)));
        let nothing = ProcessV1 { pid: 0, used: 0 };
        for (place, code, first) in
            [(0, INSUFFICIENT_SIZE, 0), (1, INSUFFICIENT_SIZE, 0), (2, SUCCESS, 7), (3, SUCCESS, 7)]
        {
            let (mut count, mut array) = (place, [nothing; 3]);
            assert_eq!(list(&entries, &raw mut count, array.as_mut_ptr()), code, "{place}");
            assert_eq!((count, array[0].pid, array[2]), (2, first, nothing), "{place}");
        }
        let mut count = 9;
        assert_eq!(list(&entries, &raw mut count, std::ptr::null_mut()), INSUFFICIENT_SIZE);
        assert_eq!(list(&entries, std::ptr::null_mut(), std::ptr::null_mut()), INVALID_ARGUMENT);
        assert_eq!((list::<ProcessV1>(&[], &raw mut count, std::ptr::null_mut()), count), (SUCCESS, 0));
    }
}
