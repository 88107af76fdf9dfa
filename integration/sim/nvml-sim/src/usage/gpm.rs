//! Performance monitoring (GPM) from two samples: "For Hopper or newer fully supported devices" (nvml.h), of a GPU, and of a GPU instance as a whole
//! (`research/platform.md` 2.7).
//!
//! Kernels compute nothing and touch no memory: they occupy multiprocessors and warps, and use no memory bandwidth. Metrics of instructions, engines and
//! links are not supported.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlGpmMetric_t,
    nvmlGpmMetric_t__bindgen_ty_1, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};
use silicon::Code;
use silicon::activity::{Load, Meter};
use silicon::machine::Gpu;

use super::activity::now;
use crate::call::{
    context::Context,
    nvml,
    out::{get, put},
};

/// `NVML_GPM_METRIC_MAX` of the newest header; older ones have a shorter array in their struct (`research/platform.md` 2.7).
const MOST: u32 = 333;
/// Distance of the numbers of two samples, as that of two addresses.
const STEP: usize = 0x100;

/// What a device had done at a moment.
#[derive(Clone, Copy)]
struct Sample {
    /// GPU index, and id of the GPU instance.
    device: (u32, Option<u32>),
    /// Nanoseconds of the monotonic clock.
    time: u64,
    load: Load,
}

/// The allocated samples of this process by the number that is their handle; handles are never dereferenced.
struct Samples {
    next: usize,
    known: BTreeMap<usize, Option<Sample>>,
}

fn samples() -> MutexGuard<'static, Samples> {
    static SAMPLES: Mutex<Samples> = Mutex::new(Samples { next: STEP, known: BTreeMap::new() });
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills an allocated sample.
fn fill(handle: nvmlGpmSample_t, sample: Sample) -> Result<(), Code> {
    *samples().known.get_mut(&handle.addr()).ok_or(Code::INVALID_ARGUMENT)? = Some(sample);
    Ok(())
}

/// A sample that is filled.
fn filled(handle: nvmlGpmSample_t) -> Result<Sample, Code> {
    samples().known.get(&handle.addr()).copied().flatten().ok_or(Code::INVALID_ARGUMENT)
}

/// A metric's short name, long name and value in percent between two samples.
fn metric(id: u32, done: Load, time: u64) -> Option<(&'static CStr, &'static CStr, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 nanoseconds")]
    let percent = |nanoseconds: u64| (nanoseconds as f64 * 100.0 / time as f64).min(100.0);
    Some(match id {
        1 => (c"GRACT", c"Graphics and compute activity", percent(done.time)),
        2 => (c"SMUTIL", c"Multiprocessors with a block", percent(done.sm)),
        3 => (c"SMOCC", c"Resident warps", percent(done.warps)),
        10 => (c"DRAMUTIL", c"Memory bandwidth", 0.0),
        _ => return None,
    })
}

/// The first fields of `nvmlGpmMetricsGet_t`, which are the same in all headers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    version: c_uint,
    count: c_uint,
    first: nvmlGpmSample_t,
    second: nvmlGpmSample_t,
}

/// The GPU has performance monitoring.
fn supported(gpu: &Gpu) -> Result<(), Code> {
    if gpu.board.arch.has_gpm() { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

impl Context {
    /// What the compute instances of a GPU instance have done, by their part of its multiprocessors.
    fn load_of(&self, gpu: &Gpu, gi: u32) -> Result<Load, Code> {
        let of = gpu.instance(gi)?;
        let all = gpu.profile_of(of)?.engines.sm;
        let own = of.compute.iter().map(|ci| {
            let sm = gpu.compute_profile(of, ci)?.sm;
            Ok(self.activity(Meter::Mig(gpu.index, (gi, ci.id)))?.total.part(sm.into(), all.into()))
        });
        own.sum()
    }
}

nvml! {
    fn nvmlGpmQueryDeviceSupport[device](ctx, device: nvmlDevice_t, support: *mut nvmlGpmSupport_t) {
        let gpu = ctx.gpu(device)?;
        let version = get(support)?.version;
        if version != NVML_GPM_SUPPORT_VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        put(support, nvmlGpmSupport_t { version, isSupportedDevice: supported(gpu).is_ok().into() })
    }

    fn nvmlGpmSampleAlloc(_ctx, sample: *mut nvmlGpmSample_t) {
        let mut samples = samples();
        let number = samples.next;
        put(sample, std::ptr::without_provenance_mut(number))?;
        samples.next += STEP;
        samples.known.insert(number, None);
        Ok(())
    }

    fn nvmlGpmSampleFree(_ctx, sample: nvmlGpmSample_t) {
        samples().known.remove(&sample.addr()).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }

    fn nvmlGpmSampleGet[device](ctx, device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        // also in MIG mode: DCGM's source reads a whole GPU by this call in either mode
        let gpu = ctx.gpu(device)?;
        supported(gpu)?;
        let (time, load) = (now(), ctx.activity(Meter::Gpu(gpu.index))?.total);
        fill(sample, Sample { device: (gpu.index, None), time, load })
    }

    fn nvmlGpmMigSampleGet[device](ctx, device: nvmlDevice_t, gi: c_uint, sample: nvmlGpmSample_t) {
        let gpu = ctx.mig_gpu(device)?;
        supported(gpu)?;
        let (time, load) = (now(), ctx.load_of(gpu, gi)?);
        fill(sample, Sample { device: (gpu.index, Some(gi)), time, load })
    }

    fn nvmlGpmMetricsGet(_ctx, metrics: *mut nvmlGpmMetricsGet_t) {
        let Request { version, count, first, second } = get(metrics.cast::<Request>())?;
        if version != NVML_GPM_METRICS_GET_VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let (first, second) = (filled(first)?, filled(second)?);
        if count > MOST || first.device != second.device || second.time <= first.time {
            return Err(Code::INVALID_ARGUMENT);
        }
        let (done, time) = (second.load.since(first.load), second.time - first.time);
        // SAFETY: only an address in the struct, which `get` has checked for null.
        let list: *mut nvmlGpmMetric_t = unsafe { &raw mut (*metrics).metrics }.cast();
        for at in 0..count as usize {
            // SAFETY: NVML demands an array of at least `count` metrics.
            let to = unsafe { list.add(at) };
            let wanted = get(to)?;
            put(to, match metric(wanted.metricId, done, time) {
                Some((short, long, value)) => nvmlGpmMetric_t {
                    nvmlReturn: 0,
                    value,
                    metricInfo: nvmlGpmMetric_t__bindgen_ty_1 {
                        shortName: short.as_ptr().cast_mut(),
                        longName: long.as_ptr().cast_mut(),
                        unit: c"%".as_ptr().cast_mut(),
                    },
                    ..wanted
                },
                None => nvmlGpmMetric_t { nvmlReturn: Code::NOT_SUPPORTED.0, ..wanted },
            })?;
        }
        Ok(())
    }
}
