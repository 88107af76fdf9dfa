//! How the GPUs of a node are connected: all below one CPU, without `NVLink`.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use silicon::Code;

use crate::call::nvml;
use crate::out::put;

/// `NVML_TOPOLOGY_INTERNAL`: one board.
const INTERNAL: c_uint = 0;
/// `NVML_TOPOLOGY_NODE`: one CPU.
const NODE: c_uint = 40;

nvml! {
    fn nvmlDeviceGetTopologyCommonAncestor[a](ctx, a: nvmlDevice_t, b: nvmlDevice_t, level: *mut c_uint) {
        let same = ctx.gpu(a)?.index == ctx.gpu(b)?.index;
        put(level, if same { INTERNAL } else { NODE })
    }

    fn nvmlDeviceGetP2PStatus[a](
        ctx, a: nvmlDevice_t, b: nvmlDevice_t, _capability: c_uint, status: *mut c_uint,
    ) {
        ctx.gpu(a)?;
        ctx.gpu(b)?;
        put(status, 0)
    }

    fn nvmlDeviceOnSameBoard[a](ctx, a: nvmlDevice_t, b: nvmlDevice_t, same: *mut c_uint) {
        put(same, (ctx.gpu(a)?.index == ctx.gpu(b)?.index).into())
    }

    fn nvmlDeviceGetNumaNodeId[device](ctx, device: nvmlDevice_t, node: *mut c_uint) {
        ctx.gpu(device)?;
        put(node, 0)
    }

    fn nvmlDeviceGetCpuAffinity[device](
        ctx, device: nvmlDevice_t, size: c_uint, set: *mut c_ulong,
    ) {
        ctx.gpu(device)?;
        if set.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for i in 0..size as usize {
            let bits = cpus.saturating_sub(i * 64).min(64);
            let word = if bits == 64 { c_ulong::MAX } else { (1 << bits) - 1 };
            // SAFETY: NVML demands an array of `size` words.
            put(unsafe { set.add(i) }, word)?;
        }
        Ok(())
    }
}
