//! The activity of a device by the best source that the hardware has.
//!
//! GPM measures a GPU or an instance from Hopper on, in MIG mode as well, as an average since the reading before. Boards before Hopper have the same counters for DCGM
//! alone: where a dcgm-exporter is configured, its values fill what is missing. A GPU without GPM has NVML's utilization rate, which is a sample of a second at most, and an
//! instance without both has nothing: nvml.h says of both calls that they are not supported on GPUs in MIG mode.

use std::collections::BTreeMap;

use super::reading::{Performance, Reading};
use crate::gpu::ObservedGpu;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// NVML's performance monitoring.
    Gpm,
    /// NVIDIA's dcgm-exporter.
    Dcgm,
    /// NVML's utilization rates.
    Nvml,
    /// NVML's utilization of processes.
    Process,
}

impl Source {
    /// Value of the label `source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpm => "gpm",
            Self::Dcgm => "dcgm",
            Self::Nvml => "nvml",
            Self::Process => "process",
        }
    }
}

/// A part from 0 to 1, with its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The part.
    pub value: f64,
    /// Where it comes from.
    pub source: Source,
}

/// What a device does; `None` where no source shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Part of the time in which a kernel ran.
    pub utilization: Option<Figure>,
    /// Part of the multiprocessors with work.
    pub sm: Option<Figure>,
    /// Resident warps.
    pub occupancy: Option<Figure>,
    /// Tensor cores.
    pub tensor: Option<Figure>,
    /// Memory bandwidth.
    pub dram: Option<Figure>,
}

impl Activity {
    fn of(performance: Performance, source: Source) -> Self {
        let Performance { graphics, sm, occupancy, tensor, dram } = performance;
        let figure = |value: Option<f64>| Some(Figure { value: value?, source });
        Self {
            utilization: figure(graphics),
            sm: figure(sm),
            occupancy: figure(occupancy),
            tensor: figure(tensor),
            dram: figure(dram),
        }
    }

    /// Each figure by the first source that has it.
    fn or(self, next: Self) -> Self {
        Self {
            utilization: self.utilization.or(next.utilization),
            sm: self.sm.or(next.sm),
            occupancy: self.occupancy.or(next.occupancy),
            tensor: self.tensor.or(next.tensor),
            dram: self.dram.or(next.dram),
        }
    }

    /// A kernel runs nearly all the time, and nearly all multiprocessors are idle: the device looks busy and is not. Utilization is above 85 percent, and
    /// SM activity at most 2 percent, which is less than 3 of the 132 multiprocessors of an H100.
    pub fn is_busy_but_idle(&self) -> bool {
        let above = |figure: Option<Figure>, limit: f64| figure.is_some_and(|figure| figure.value > limit);
        above(self.utilization, 0.85) && self.sm.is_some() && !above(self.sm, 0.02)
    }
}

/// The devices of a GPU by GPU instance id, `None` for the GPU as a whole without MIG. Instances without a source are in it with nothing known.
pub fn devices(gpu: &ObservedGpu, reading: &Reading) -> BTreeMap<Option<u32>, Activity> {
    let by = |found: &BTreeMap<Option<u32>, Performance>, gi, source| {
        found.get(&gi).map(|performance| Activity::of(*performance, source)).unwrap_or_default()
    };
    if gpu.mig_enabled() {
        let measured =
            |gi: Option<u32>| by(&reading.performance, gi, Source::Gpm).or(by(&reading.dcgm, gi, Source::Dcgm));
        return gpu.instances.iter().map(|instance| (Some(instance.gi), measured(Some(instance.gi)))).collect();
    }
    let rate = reading.rates.map(|rates| Figure { value: rates.gpu, source: Source::Nvml });
    let nvml = Activity { utilization: rate, ..Activity::default() };
    // the rate is of the moment, as that of processes by which it is divided; DCGM's value may be half a minute old
    let whole = by(&reading.performance, None, Source::Gpm).or(nvml).or(by(&reading.dcgm, None, Source::Dcgm));
    [(None, whole)].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gpu::ObservedInstance, nvml::MigMode, usage::reading::Rates};

    fn gpu(instances: &[u32]) -> ObservedGpu {
        let mig = !instances.is_empty();
        let instance = |gi: &u32| ObservedInstance { gi: *gi, ..ObservedInstance::default() };
        let mode = Some(MigMode { current: mig, pending: mig });
        ObservedGpu { mode, instances: instances.iter().map(instance).collect(), ..ObservedGpu::default() }
    }

    fn gpm(graphics: f64, sm: f64) -> Performance {
        Performance { graphics: Some(graphics), sm: Some(sm), ..Performance::default() }
    }

    fn rates(gpu: f64) -> Rates {
        Rates { gpu, memory: 0.0 }
    }

    #[test]
    fn performance_monitoring_comes_before_the_utilization_rate() {
        let figure = |value, source| Some(Figure { value, source });
        let both =
            Reading { rates: Some(rates(1.0)), performance: [(None, gpm(0.9, 0.3))].into(), ..Reading::default() };
        let found = devices(&gpu(&[]), &both)[&None];
        assert_eq!((found.utilization, found.sm), (figure(0.9, Source::Gpm), figure(0.3, Source::Gpm)));
        let one = Reading { rates: Some(rates(1.0)), ..Reading::default() };
        let found = devices(&gpu(&[]), &one)[&None];
        assert_eq!((found.utilization, found.sm), (figure(1.0, Source::Nvml), None));
    }

    #[test]
    fn instance_without_performance_monitoring_has_no_activity_and_not_zero() {
        let found = devices(&gpu(&[1, 2]), &Reading { rates: Some(rates(0.0)), ..Reading::default() });
        assert_eq!(found, [(Some(1), Activity::default()), (Some(2), Activity::default())].into());
        let measured = Reading { performance: [(Some(2), gpm(0.5, 0.5))].into(), ..Reading::default() };
        let found = devices(&gpu(&[1, 2]), &measured);
        assert_eq!((found[&Some(1)].utilization, found[&Some(2)].utilization.unwrap().value), (None, 0.5));
    }

    #[test]
    fn dcgm_fills_what_gpm_and_the_utilization_rate_lack() {
        let dcgm = Performance { graphics: Some(0.4), dram: Some(0.2), ..Performance::default() };
        let reading =
            Reading { dcgm: [(Some(1), dcgm), (None, dcgm)].into(), rates: Some(rates(1.0)), ..Reading::default() };
        let instance = devices(&gpu(&[1, 2]), &reading);
        let figure = |value, source| Some(Figure { value, source });
        assert_eq!(instance[&Some(1)].utilization, figure(0.4, Source::Dcgm));
        assert_eq!(instance[&Some(2)], Activity::default(), "absent, not 0");
        let whole = devices(&gpu(&[]), &reading)[&None];
        assert_eq!((whole.utilization, whole.dram), (figure(1.0, Source::Nvml), figure(0.2, Source::Dcgm)));
        let both = Reading { performance: [(None, gpm(0.9, 0.3))].into(), ..reading };
        let whole = devices(&gpu(&[]), &both)[&None];
        assert_eq!((whole.utilization, whole.dram), (figure(0.9, Source::Gpm), figure(0.2, Source::Dcgm)));
    }

    #[test]
    fn small_kernel_is_busy_but_idle_and_work_or_an_unknown_source_is_not() {
        let verdict = |graphics, sm| Activity::of(gpm(graphics, sm), Source::Gpm).is_busy_but_idle();
        assert!(verdict(0.99, 0.008) && verdict(0.86, 0.02));
        assert!(!verdict(0.85, 0.008) && !verdict(0.99, 0.021) && !verdict(0.0, 0.0));
        let unknown = Activity { sm: None, ..Activity::of(gpm(1.0, 0.0), Source::Gpm) };
        assert!(!unknown.is_busy_but_idle());
    }
}
