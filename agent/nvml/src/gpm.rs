//! Performance monitoring (GPM): what a GPU or a GPU instance did between two samples. From Hopper on.

use std::{mem::zeroed, ptr::null_mut};

use gputenancy_agent_core::usage::reading::Performance;
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL, nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY, nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t,
};

use crate::{
    Gpu, Nvml, NvmlFailure, code,
    library::{call, output},
};

/// The metrics that are read, in the order of [`Performance`].
const METRICS: [u32; 5] = [
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL,
];

/// A sample, freed when dropped.
pub struct GpmSample<'n> {
    nvml: &'n Nvml,
    handle: nvmlGpmSample_t,
}

impl<'n> Gpu<'n> {
    /// Whether the board has performance monitoring.
    ///
    /// # Errors
    /// When NVML does not answer.
    pub fn has_gpm(&self) -> Result<bool, NvmlFailure> {
        let empty = nvmlGpmSupport_t { version: NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
        let support = output(empty, |support| call!(self.nvml, nvmlGpmQueryDeviceSupport(self.handle, support)));
        Ok(NvmlFailure::optional(support)?.is_some_and(|support| support.isSupportedDevice != 0))
    }

    /// A sample of the GPU, or of one of its GPU instances.
    ///
    /// # Errors
    /// When NVML cannot take one, such as of an instance that was just destroyed.
    pub fn gpm_sample(&self, gi: Option<u32>) -> Result<GpmSample<'n>, NvmlFailure> {
        let nvml = self.nvml;
        let handle = output(null_mut(), |sample| call!(nvml, nvmlGpmSampleAlloc(sample)))?;
        let sample = GpmSample { nvml, handle };
        match gi {
            None => call!(nvml, nvmlGpmSampleGet(self.handle, handle))?,
            Some(gi) => call!(nvml, nvmlGpmMigSampleGet(self.handle, gi, handle))?,
        }
        Ok(sample)
    }
}

impl GpmSample<'_> {
    /// What the device did since an earlier sample of it. The two must be at least 100 ms apart (nvml.h).
    ///
    /// # Errors
    /// When the samples are of different devices, or NVML does not answer.
    pub fn since(&self, earlier: &Self) -> Result<Performance, NvmlFailure> {
        // SAFETY: a struct of numbers and pointers; zero is a value of each.
        let mut request: nvmlGpmMetricsGet_t = unsafe { zeroed() };
        request.version = NVML_GPM_METRICS_GET_VERSION;
        request.numMetrics = u32::try_from(METRICS.len()).unwrap_or(0);
        (request.sample1, request.sample2) = (earlier.handle, self.handle);
        for (metric, id) in request.metrics.iter_mut().zip(METRICS) {
            metric.metricId = id;
        }
        call!(self.nvml, nvmlGpmMetricsGet(&raw mut request))?;
        let mut values = request.metrics.iter().map(|metric| {
            let known = metric.nvmlReturn == code::SUCCESS && metric.value.is_finite();
            known.then(|| (metric.value / 100.0).clamp(0.0, 1.0))
        });
        let mut next = || values.next().flatten();
        let (graphics, sm, occupancy, tensor, dram) = (next(), next(), next(), next(), next());
        Ok(Performance { graphics, sm, occupancy, tensor, dram })
    }
}

impl Drop for GpmSample<'_> {
    fn drop(&mut self) {
        // fails only if the driver is gone
        let _ = call!(self.nvml, nvmlGpmSampleFree(self.handle));
    }
}
