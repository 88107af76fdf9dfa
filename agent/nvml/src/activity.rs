//! What a GPU does: utilization of it and of its processes, power, energy, temperature, clocks and traffic.

use std::mem::zeroed;

use gputenancy_agent_core::usage::reading::{Board, ProcessRate, Rates, Traffic};
use nvml_wrapper_sys::bindings::{
    field_id::{
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    },
    nvmlClockType_enum_NVML_CLOCK_SM, nvmlFieldValue_t, nvmlProcessUtilizationSample_t,
    nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU, nvmlUtilization_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
};

use crate::{
    Gpu, NvmlFailure, code,
    library::{call, output},
};

/// Retries of a list that grows.
const RETRIES: u32 = 3;
/// `scopeId` for all links together.
const ALL_LINKS: u32 = u32::MAX;
/// A sum of `NVLink` traffic is in KiB (nvml.h, `NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX`).
const KIB: u64 = 1024;

fn part(percent: u32) -> f64 {
    f64::from(percent.min(100)) / 100.0
}

impl Gpu<'_> {
    /// Utilization in the last sample period; `None` in MIG mode, where NVML has none.
    ///
    /// # Errors
    /// When NVML refuses the call for another reason.
    pub fn rates(&self) -> Result<Option<Rates>, NvmlFailure> {
        let empty = nvmlUtilization_t { gpu: 0, memory: 0 };
        let rates = output(empty, |rates| call!(self.nvml, nvmlDeviceGetUtilizationRates(self.handle, rates)));
        Ok(NvmlFailure::optional(rates)?.map(|rates| Rates { gpu: part(rates.gpu), memory: part(rates.memory) }))
    }

    /// Processes that ran a kernel in a sample that is newer than `seen`, in microseconds since 1970, and the time of the newest sample. Of a process with several samples it
    /// is the newest one. `None` in MIG mode.
    ///
    /// # Errors
    /// When NVML refuses the call for another reason.
    pub fn process_rates(&self, seen: u64) -> Result<Option<(Vec<ProcessRate>, u64)>, NvmlFailure> {
        let empty =
            nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };
        let (mut capacity, mut retries) = (64_u32, 0);
        loop {
            let (mut samples, mut count) = (vec![empty; capacity as usize], capacity);
            let (buffer, length) = (samples.as_mut_ptr(), &raw mut count);
            match call!(self.nvml, nvmlDeviceGetProcessUtilization(self.handle, buffer, length, seen)) {
                Ok(()) => {
                    samples.truncate(count as usize);
                    return Ok(Some(newest(samples, seen)));
                }
                Err(failure) if failure.code == code::INSUFFICIENT_SIZE && retries < RETRIES => {
                    retries += 1;
                    capacity = count.max(capacity).saturating_mul(2).min(1 << 16);
                }
                // no process ran since
                Err(failure) if failure.code == code::NOT_FOUND => return Ok(Some((Vec::new(), seen))),
                Err(failure) => return NvmlFailure::optional(Err(failure)),
            }
        }
    }

    /// What the board as a whole shows. What the driver refuses is absent.
    pub fn board_activity(&self) -> Board {
        let (nvml, handle) = (self.nvml, self.handle);
        let sensor = nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        let clock = nvmlClockType_enum_NVML_CLOCK_SM;
        let [pcie_to, pcie_from, nvlink_to, nvlink_from] = self.counters();
        let kib = |kib: Option<u64>| kib.map(|kib| kib.saturating_mul(KIB));
        Board {
            power: output(0, |to| call!(nvml, nvmlDeviceGetPowerUsage(handle, to))).ok(),
            energy: output(0, |to| call!(nvml, nvmlDeviceGetTotalEnergyConsumption(handle, to))).ok(),
            temperature: output(0, |to| call!(nvml, nvmlDeviceGetTemperature(handle, sensor, to))).ok(),
            clock: output(0, |to| call!(nvml, nvmlDeviceGetClockInfo(handle, clock, to))).ok(),
            clock_events: output(0, |to| call!(nvml, nvmlDeviceGetCurrentClocksEventReasons(handle, to))).ok(),
            pcie: Traffic { transmit: pcie_to, receive: pcie_from },
            nvlink: Traffic { transmit: kib(nvlink_to), receive: kib(nvlink_from) },
        }
    }

    /// Bytes sent and received over the PCI bus, and KiB over all `NVLink`s.
    fn counters(&self) -> [Option<u64>; 4] {
        let fields = [
            (NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
            (NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
            (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        ];
        let mut values = fields.map(|(id, scope)| {
            // SAFETY: a struct of integers and a union of numbers; zero is a value of each.
            let empty: nvmlFieldValue_t = unsafe { zeroed() };
            nvmlFieldValue_t { fieldId: id, scopeId: scope, ..empty }
        });
        match call!(self.nvml, nvmlDeviceGetFieldValues(self.handle, 4, values.as_mut_ptr())) {
            Ok(()) => values.map(|value| number(&value)),
            Err(_) => [None; 4],
        }
    }
}

/// The number of a field, if the driver has it.
#[allow(non_upper_case_globals, reason = "names of the bindings")]
fn number(field: &nvmlFieldValue_t) -> Option<u64> {
    if field.nvmlReturn != code::SUCCESS {
        return None;
    }
    match field.valueType {
        // SAFETY: NVML has written the member that the type names.
        nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(u64::from(unsafe { field.value.uiVal })),
        // SAFETY: as above.
        nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(unsafe { field.value.ulVal }),
        // SAFETY: as above.
        nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Some(unsafe { field.value.ullVal }),
        _ => None,
    }
}

/// The newest sample of each process, and the time of the newest one.
fn newest(mut samples: Vec<nvmlProcessUtilizationSample_t>, seen: u64) -> (Vec<ProcessRate>, u64) {
    samples.sort_unstable_by_key(|sample| (sample.pid, std::cmp::Reverse(sample.timeStamp)));
    samples.dedup_by_key(|sample| sample.pid);
    let time = samples.iter().map(|sample| sample.timeStamp).max().unwrap_or(seen).max(seen);
    // a driver that ignores the argument reports old samples as well
    let fresh = samples.iter().filter(|sample| sample.timeStamp > seen);
    (fresh.map(|sample| ProcessRate { pid: sample.pid, time: part(sample.smUtil) }).collect(), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_sample_of_a_process_counts_and_no_old_one() {
        let sample = |pid, time, sm| nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: time,
            smUtil: sm,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let samples = vec![sample(7, 20, 40), sample(7, 30, 50), sample(8, 10, 90), sample(9, 25, 140)];
        let (rates, time) = newest(samples, 10);
        let rate = |pid, time| ProcessRate { pid, time };
        assert_eq!((rates, time), (vec![rate(7, 0.5), rate(9, 1.0)], 30));
        assert_eq!(newest(Vec::new(), 10), (Vec::new(), 10));
    }
}
