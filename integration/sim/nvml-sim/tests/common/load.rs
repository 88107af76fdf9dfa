//! Programs that launch kernels through the simulated CUDA.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{GpmSample, Nvml};

use crate::built;
use crate::common::Sim;

/// Performance metrics that the simulator has: activity, multiprocessors, warps.
pub const METRICS: [GpmMetricId; 3] = [GpmMetricId::GraphicsUtil, GpmMetricId::SmUtil, GpmMetricId::SmOccupancy];

/// What `cuda-work launch` printed.
#[derive(Debug)]
pub struct Launched {
    /// Part of its time with a kernel.
    pub percent: f64,
    /// Number of kernels.
    pub kernels: f64,
}

impl Launched {
    /// Waits for the program.
    pub fn of(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let value = |name: &str| {
            let word = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            word.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
        };
        Self { percent: value("percent"), kernels: value("kernels") }
    }
}

impl Sim {
    /// `cuda-work launch` on a device, with one nanosecond for an iteration, which is not measured.
    pub fn launch(&self, device: &str, arguments: &str) -> Command {
        let mut program = Command::new(built::binary("cuda-work"));
        program.arg("--library").arg(built::shared("libcuda_sim.so")).args(["launch", "--iteration", "1"]);
        program.args(arguments.split(' ')).env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all");
        program.env("CUDA_VISIBLE_DEVICES", device).stdout(Stdio::piped());
        program
    }
}

/// Kills a program that launches kernels.
pub fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns once a reading is as wanted.
pub fn until<T>(mut read: impl FnMut() -> Option<T>) -> T {
    loop {
        match read() {
            Some(value) => return value,
            None => sleep(Duration::from_millis(20)),
        }
    }
}

/// A first sample, and when it was taken.
pub struct Interval<'n>(&'n Nvml, GpmSample<'n>, Instant);

impl<'n> Interval<'n> {
    pub fn begin(nvml: &'n Nvml, sample: GpmSample<'n>) -> Self {
        Self(nvml, sample, Instant::now())
    }

    /// Milliseconds of each of [`METRICS`] between the samples.
    pub fn end(self, sample: impl FnOnce() -> Result<GpmSample<'n>, NvmlError>) -> [f64; 3] {
        // what is launched is counted when its span of time is over
        sleep(Duration::from_millis(100));
        let Self(nvml, first, begin) = self;
        let second = sample().unwrap();
        let milliseconds = begin.elapsed().as_secs_f64() * 1000.0;
        let values = gpm_metrics_get(nvml, &first, &second, &METRICS).unwrap();
        let values: Vec<f64> = values.into_iter().map(|value| value.unwrap().value / 100.0 * milliseconds).collect();
        values.try_into().unwrap()
    }
}

/// Two readings differ by no more than a part of the second.
pub fn near(found: f64, expected: f64, part: f64) -> bool {
    (found - expected).abs() <= expected * part
}
