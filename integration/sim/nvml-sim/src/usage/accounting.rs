//! Accounting of processes: what each has used of a GPU, also after its end.
//!
//! "Accounting mode does not support MIG-enabled configurations" (a maintainer in NVIDIA/DCGM issue 73); without accounting mode the lists are not
//! supported (nvml.h).

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlAccountingStats_t, nvmlDevice_t};
use silicon::Code;
use silicon::accounting::{self, ENTRIES, Entry};
use silicon::activity::Meter;
use silicon::machine::Gpu;

use crate::call::{
    context::Context,
    nvml,
    out::{put, put_list},
};

/// An entry with the slot of its process, if it runs, and the id under which this process knows it.
struct Known {
    entry: Entry,
    slot: Option<u64>,
    pid: Option<u32>,
}

impl Context {
    /// A GPU that can have accounting.
    fn accountable(&self, device: nvmlDevice_t) -> Result<&Gpu, Code> {
        let gpu = self.gpu(device)?;
        if gpu.mig { Err(Code::NOT_SUPPORTED) } else { Ok(gpu) }
    }

    /// All entries of a GPU with accounting mode, oldest first.
    fn accounted(&self, device: nvmlDevice_t) -> Result<Vec<Known>, Code> {
        let gpu = self.accountable(device)?;
        if !gpu.accounting {
            return Err(Code::NOT_SUPPORTED);
        }
        let unreadable = |_| Code::UNKNOWN;
        let dir = self.store.dir();
        let mut running = Vec::new();
        for (slot, client) in self.client_slots()?.into_iter().filter(|(_, client)| client.gpu == gpu.index) {
            running.push((accounting::number_of(dir, slot).map_err(unreadable)?, slot, client.pid));
        }
        let known = |entry: Entry| match running.iter().find(|(number, ..)| *number == entry.number) {
            Some((_, slot, pid)) => Known { entry, slot: Some(*slot), pid: Some(*pid) },
            None => Known { pid: entry.pid, entry, slot: None },
        };
        Ok(accounting::read(dir, gpu.index).map_err(unreadable)?.into_iter().map(known).collect())
    }

    fn statistics(&self, Known { entry, slot, .. }: &Known) -> Result<nvmlAccountingStats_t, Code> {
        let (end, worked) = match slot {
            Some(slot) => (accounting::now(), self.activity(Meter::Process(*slot))?.total.time),
            None => (entry.last, entry.time),
        };
        let microseconds = end.saturating_sub(entry.start);
        let percent = worked / 10 / microseconds.max(1);
        Ok(nvmlAccountingStats_t {
            gpuUtilization: u32::try_from(percent).unwrap_or(100).min(100),
            // kernels read and write no memory
            memoryUtilization: 0,
            maxMemoryUsage: entry.memory,
            // zero while it runs (nvml.h)
            time: if slot.is_some() { 0 } else { microseconds / 1000 },
            startTime: entry.start,
            isRunning: slot.is_some().into(),
            reserved: [0; 5],
        })
    }

    fn clear(&self, numbers: impl IntoIterator<Item = u64>) -> Result<(), Code> {
        accounting::clear(self.store.dir(), numbers).map_err(|_| Code::UNKNOWN)
    }
}

nvml! {
    fn nvmlDeviceGetAccountingMode[device](ctx, device: nvmlDevice_t, mode: *mut c_uint) {
        put(mode, ctx.accountable(device)?.accounting.into())
    }

    fn nvmlDeviceSetAccountingMode[device](ctx, device: nvmlDevice_t, mode: c_uint) {
        let index = ctx.accountable(device)?.index;
        let on = match mode {
            0 => false,
            1 => true,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        if !ctx.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        if !on {
            // disabling clears the information of all processes (documentation of nvml-wrapper)
            let all = accounting::read(ctx.store.dir(), index).map_err(|_| Code::UNKNOWN)?;
            ctx.clear(all.into_iter().map(|entry| entry.number))?;
        }
        ctx.quietly(|machine| {
            machine.gpu_mut(index)?.accounting = on;
            Ok(())
        })
    }

    fn nvmlDeviceGetAccountingBufferSize[device](ctx, device: nvmlDevice_t, size: *mut c_uint) {
        if !ctx.accountable(device)?.accounting {
            return Err(Code::NOT_SUPPORTED);
        }
        put(size, u32::try_from(ENTRIES).unwrap_or(0))
    }

    fn nvmlDeviceGetAccountingPids[device](ctx, device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint) {
        let mut known: Vec<c_uint> = ctx.accounted(device)?.iter().filter_map(|known| known.pid).collect();
        known.sort_unstable();
        known.dedup();
        put_list(known, pids, count)
    }

    fn nvmlDeviceGetAccountingStats[device](
        ctx, device: nvmlDevice_t, pid: c_uint, statistics: *mut nvmlAccountingStats_t,
    ) {
        let all = ctx.accounted(device)?;
        // of several with one id the latest is shown
        let known = all.iter().rfind(|known| known.pid == Some(pid)).ok_or(Code::NOT_FOUND)?;
        put(statistics, ctx.statistics(known)?)
    }

    fn nvmlDeviceClearAccountingPids[device](ctx, device: nvmlDevice_t) {
        let all = ctx.accounted(device)?;
        if !ctx.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        ctx.clear(all.iter().filter(|known| known.slot.is_none()).map(|known| known.entry.number))
    }
}
