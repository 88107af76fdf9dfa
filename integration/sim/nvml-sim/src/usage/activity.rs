//! What GPUs and processes do: utilisation, power and energy, from what the engines of the simulated CUDA have run.
//!
//! A GPU in MIG mode has no utilisation, in any architecture: "On MIG-enabled GPUs, querying device utilization rates is not currently supported", and
//! the same for processes (nvml.h; `research/platform.md` 2.7). It has power, and its MIG devices have none (a public
//! report of an H100 with driver 535); the same is assumed of energy.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_t,
    nvmlUtilization_t,
};
use silicon::activity::{self, Activity, Meter, PERIOD};
use silicon::machine::Gpu;
use silicon::{Code, accounting};

use crate::{
    call::{
        context::Context,
        handle::Device,
        nvml,
        out::{get, put, put_list},
    },
    mig::profile::version,
};

/// Milliwatts of an idle board. Chosen.
const IDLE_POWER: u32 = 62_000;
/// Milliwatts that a board draws beyond that while all of it works. Chosen.
const WORK_POWER: u32 = 250_000;
/// MHz of the multiprocessors of an idle GPU, and of one that works. Chosen.
const IDLE_CLOCK: u32 = 345;
const WORK_CLOCK: u32 = 1410;
/// `nvmlClocksEventReasonGpuIdle`.
const GPU_IDLE: c_ulonglong = 1;
/// Microseconds to which the time of a sample is rounded, so that readings of one sample have one time.
const ROUND: u64 = 10_000;

/// Utilisation of a process in the sample period.
struct Sample {
    pid: u32,
    /// Microseconds since 1970.
    time: u64,
    percent: u32,
}

impl Context {
    /// What a meter shows now.
    pub fn activity(&self, meter: Meter) -> Result<Activity, Code> {
        activity::read(self.store.dir(), meter, now()).map_err(|_| Code::UNKNOWN)
    }

    /// The GPU of a handle, for what MIG devices do not have.
    fn powered(&self, device: nvmlDevice_t) -> Result<&Gpu, Code> {
        match self.device(device)? {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Mig(_) => Err(Code::NOT_SUPPORTED),
        }
    }

    /// Why the clock is not at its highest: nothing works. The simulated board has no limit of power or temperature.
    fn clock_events(&self, device: nvmlDevice_t) -> Result<c_ulonglong, Code> {
        let worked = self.activity(Meter::Gpu(self.powered(device)?.index))?.recent.time;
        Ok(if worked > 0 { 0 } else { GPU_IDLE })
    }

    /// The processes that worked on a GPU, in a sample that is newer than `seen`, in microseconds since 1970.
    fn samples(&self, device: nvmlDevice_t, seen: u64) -> Result<Vec<Sample>, Code> {
        let gpu = self.gpu(device)?;
        if gpu.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        let age = now().saturating_sub(activity::sampled_at(now())) / 1000;
        let time = (accounting::now() - age) / ROUND * ROUND;
        let clients = self.client_slots()?.into_iter().filter(|(_, client)| client.gpu == gpu.index && time > seen);
        let mut samples = Vec::new();
        for (slot, client) in clients {
            let worked = self.activity(Meter::Process(slot))?.recent.time;
            if worked > 0 {
                samples.push(Sample { pid: client.pid, time, percent: activity::percent(worked) });
            }
        }
        // "If no valid sample entries are found since the lastSeenTimeStamp, NVML_ERROR_NOT_FOUND is returned" (nvml.h)
        if samples.is_empty() { Err(Code::NOT_FOUND) } else { Ok(samples) }
    }
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).unwrap_or(0)
}

/// Millijoules of so many milliwatts.
fn energy(milliwatts: u32, nanoseconds: u64) -> u64 {
    u64::try_from(u128::from(milliwatts) * u128::from(nanoseconds) / 1_000_000_000).unwrap_or(u64::MAX)
}

nvml! {
    fn nvmlDeviceGetPowerUsage[device](ctx, device: nvmlDevice_t, milliwatts: *mut c_uint) {
        let worked = ctx.activity(Meter::Gpu(ctx.powered(device)?.index))?.recent.time;
        let more = u64::from(WORK_POWER) * worked.min(PERIOD) / PERIOD;
        put(milliwatts, IDLE_POWER + u32::try_from(more).unwrap_or(WORK_POWER))
    }

    fn nvmlDeviceGetTotalEnergyConsumption[device](ctx, device: nvmlDevice_t, millijoules: *mut c_ulonglong) {
        // since the driver was loaded, which the simulated one is with the machine
        let worked = ctx.activity(Meter::Gpu(ctx.powered(device)?.index))?.total.time;
        put(millijoules, energy(IDLE_POWER, now()) + energy(WORK_POWER, worked))
    }

    fn nvmlDeviceGetClockInfo[device](ctx, device: nvmlDevice_t, domain: c_uint, mhz: *mut c_uint) {
        let worked = ctx.activity(Meter::Gpu(ctx.powered(device)?.index))?.recent.time;
        match domain {
            // graphics and multiprocessors
            0 | 1 => put(mhz, if worked > 0 { WORK_CLOCK } else { IDLE_CLOCK }),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn nvmlDeviceGetCurrentClocksEventReasons[device](ctx, device: nvmlDevice_t, reasons: *mut c_ulonglong) {
        put(reasons, ctx.clock_events(device)?)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons[device](ctx, device: nvmlDevice_t, reasons: *mut c_ulonglong) {
        put(reasons, ctx.clock_events(device)?)
    }

    fn nvmlDeviceGetUtilizationRates[device](ctx, device: nvmlDevice_t, rates: *mut nvmlUtilization_t) {
        let gpu = ctx.device(device)?.gpu();
        if gpu.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        // kernels read and write no memory
        let worked = ctx.activity(Meter::Gpu(gpu.index))?.recent.time;
        put(rates, nvmlUtilization_t { gpu: activity::percent(worked), memory: 0 })
    }

    fn nvmlDeviceGetProcessUtilization[device](
        ctx, device: nvmlDevice_t, to: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, seen: c_ulonglong,
    ) {
        let sample = |Sample { pid, time, percent }: Sample| nvmlProcessUtilizationSample_t {
            pid, timeStamp: time, smUtil: percent, memUtil: 0, encUtil: 0, decUtil: 0,
        };
        put_list(ctx.samples(device, seen)?.into_iter().map(sample).collect(), to, count)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo[device](
        ctx, device: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t,
    ) {
        let given = get(info)?;
        version(given.version, size_of::<nvmlProcessesUtilizationInfo_t>(), 1)?;
        let sample = |Sample { pid, time, percent }: Sample| nvmlProcessUtilizationInfo_v1_t {
            timeStamp: time, pid, smUtil: percent, memUtil: 0, encUtil: 0, decUtil: 0, jpgUtil: 0, ofaUtil: 0,
        };
        let samples = ctx.samples(device, given.lastSeenTimeStamp)?.into_iter().map(sample).collect();
        let mut count = given.processSamplesCount;
        let written = put_list(samples, given.procUtilArray, &raw mut count);
        put(info, nvmlProcessesUtilizationInfo_t { processSamplesCount: count, ..given })?;
        written
    }
}
