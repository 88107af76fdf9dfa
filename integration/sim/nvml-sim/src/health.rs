//! ECC errors, recovery action, temperature and compute mode.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvmlDevice_t, nvmlEccErrorCounts_t, nvmlFieldValue_t,
    nvmlReturn_enum_NVML_SUCCESS, nvmlValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
};
use silicon::Code;
use silicon::machine::Gpu;

use crate::call::{
    nvml,
    out::{get, put},
};

/// Degrees Celsius of an idle board.
const IDLE_TEMPERATURE: u32 = 34;

/// Uncorrected errors by counter (0 since the last reset, 1 ever); corrected ones do not happen.
fn errors(gpu: &Gpu, kind: u32, counter: u32) -> Result<u64, Code> {
    match (kind, counter) {
        (0, 0 | 1) => Ok(0),
        (1, 0) => Ok(gpu.ecc_volatile),
        (1, 1) => Ok(gpu.ecc_aggregate),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

nvml! {
    fn nvmlDeviceGetEccMode[device](ctx, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        ctx.device(device)?;
        put(current, 1)?;
        put(pending, 1)
    }

    fn nvmlDeviceGetTotalEccErrors[device](
        ctx, device: nvmlDevice_t, kind: c_uint, counter: c_uint, count: *mut c_ulonglong,
    ) {
        put(count, errors(ctx.gpu(device)?, kind, counter)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter[device](
        ctx, device: nvmlDevice_t, kind: c_uint, counter: c_uint, location: c_uint, count: *mut c_ulonglong,
    ) {
        // All simulated errors are in device memory, location 2.
        let all = errors(ctx.gpu(device)?, kind, counter)?;
        put(count, if location == 2 { all } else { 0 })
    }

    fn nvmlDeviceGetDetailedEccErrors[device](
        ctx, device: nvmlDevice_t, kind: c_uint, counter: c_uint, counts: *mut nvmlEccErrorCounts_t,
    ) {
        let all = errors(ctx.gpu(device)?, kind, counter)?;
        put(counts, nvmlEccErrorCounts_t { l1Cache: 0, l2Cache: 0, deviceMemory: all, registerFile: 0 })
    }

    fn nvmlDeviceGetRemappedRows[device](
        ctx, device: nvmlDevice_t, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint,
        failed: *mut c_uint,
    ) {
        ctx.gpu(device)?;
        [corrected, uncorrected, pending, failed].into_iter().try_for_each(|to| put(to, 0))
    }

    fn nvmlDeviceGetTemperature[device](ctx, device: nvmlDevice_t, sensor: c_uint, degrees: *mut c_uint) {
        ctx.gpu(device)?;
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(degrees, IDLE_TEMPERATURE)
    }

    fn nvmlDeviceGetComputeMode[device](ctx, device: nvmlDevice_t, mode: *mut c_uint) {
        put(mode, ctx.device(device)?.gpu().compute_mode)
    }

    fn nvmlDeviceSetComputeMode[device](ctx, device: nvmlDevice_t, mode: c_uint) {
        let gpu = ctx.gpu(device)?;
        // 1 was "exclusive thread", which no present driver accepts; MIG mode permits only the default
        if ![0, 2, 3].contains(&mode) {
            return Err(Code::INVALID_ARGUMENT);
        }
        if gpu.mig && mode != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if !ctx.view.configure() {
            return Err(Code::NO_PERMISSION);
        }
        let index = gpu.index;
        ctx.quietly(|machine| {
            machine.gpu_mut(index)?.compute_mode = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetFieldValues[device](
        ctx, device: nvmlDevice_t, count: c_uint, values: *mut nvmlFieldValue_t,
    ) {
        let action = ctx.device(device)?.gpu().recovery_action;
        if values.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for i in 0..count as usize {
            // SAFETY: NVML demands an array of `count` values.
            let value = unsafe { values.add(i) };
            let field = get(value)?;
            let known = action.filter(|_| field.fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
            put(value, match known {
                Some(action) => nvmlFieldValue_t {
                    nvmlReturn: nvmlReturn_enum_NVML_SUCCESS,
                    valueType: nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
                    value: nvmlValue_t { uiVal: action },
                    ..field
                },
                None => nvmlFieldValue_t { nvmlReturn: Code::NOT_SUPPORTED.0, ..field },
            })?;
        }
        Ok(())
    }
}
