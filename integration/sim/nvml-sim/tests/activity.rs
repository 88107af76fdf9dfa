//! Utilisation, power, energy, performance metrics and accounting of real programs that launch kernels, as NVML shows them.
//!
//! A busy machine delays programs, so nothing here expects a duration: what NVML shows is compared with the kernels that a program counted itself.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::built;
use crate::common::load::{Interval, Launched, kill, near, until};
use crate::common::{self, Sim};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{GpmSample, Nvml};
use nvml_wrapper_sys::bindings::{nvmlProcessUtilizationInfo_v1_t, nvmlProcessesUtilizationInfo_t};

/// Milliwatts of an idle board, and what it draws more while all of it works.
const IDLE: u32 = 62_000;
const WORK: u32 = 250_000;

#[test]
fn share_of_kernels_shows_in_energy_performance_metrics_and_accounting() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let (mut gpu, idle) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert!(matches!(gpu.accounting_pids(), Err(NvmlError::NotSupported)), "accounting mode is off");
    gpu.set_accounting(true).unwrap();
    let energy = || [&gpu, &idle].map(|gpu| gpu.total_energy_consumption().unwrap());
    let (before, interval) = (energy(), Interval::begin(&nvml, gpu.gpm_sample().unwrap()));
    // 10 ms of 25 ms, on a tenth of the multiprocessors
    let arguments = "--micros 10000 --idle 15000 --millis 2000 --blocks 13";
    let child = sim.launch(&gpu.uuid().unwrap(), arguments).spawn().unwrap();
    let pid = child.id();
    let running = until(|| gpu.accounting_stats_for(pid).ok());
    let launched = Launched::of(child);
    let [active, multiprocessors, warps] = interval.end(|| gpu.gpm_sample());
    let worked = launched.kernels * 10.0;
    assert!(near(active, worked, 0.05), "{active} of {worked} ms");
    assert!(near(multiprocessors, worked * 13.0 / 132.0, 0.05), "{multiprocessors} of {worked} ms");
    // a block of 1024 threads is half of the 64 warps of a multiprocessor
    assert!(near(warps, worked * 13.0 / 132.0 / 2.0, 0.05), "{warps} of {worked} ms");
    let after = energy();
    let more: Vec<u64> = after.iter().zip(before).map(|(after, before)| after.checked_sub(before).unwrap()).collect();
    let joules = f64::from(u32::try_from(more[0] - more[1]).unwrap()) / 1000.0;
    let expected = worked * f64::from(WORK) / 1e6;
    assert!(near(joules, expected, 0.02), "{joules} of {expected} J more than the idle GPU");
    assert!(running.is_running && running.time == 0);
    let ended = gpu.accounting_stats_for(pid).unwrap();
    assert!(!ended.is_running && ended.start_time == running.start_time && ended.time > 0);
    assert!(ended.max_memory_usage.unwrap() >= 300 << 20);
    let utilization = f64::from(ended.gpu_utilization.unwrap());
    assert!((utilization - launched.percent).abs() <= 5.0, "{utilization} of {}", launched.percent);
    assert_eq!(gpu.accounting_pids().unwrap(), [pid]);
    gpu.clear_accounting_pids().unwrap();
    assert!(gpu.accounting_pids().unwrap().is_empty());
    assert!(matches!(gpu.accounting_stats_for(pid), Err(NvmlError::NotFound)));
    gpu.set_accounting(false).unwrap();
    assert!(!gpu.is_accounting_enabled().unwrap());
}

/// Processes with utilisation on GPU 0 by the newer of both structs, sorted.
fn newer_struct(sim: &Sim) -> [u32; 2] {
    let lib = sim.raw();
    // SAFETY: plain data, for which zeroes are valid.
    let mut entries: [nvmlProcessUtilizationInfo_v1_t; 4] = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<nvmlProcessesUtilizationInfo_t>()).unwrap();
    let device = common::gpu(&lib, 0);
    let mut call = |version: u32, place: u32| {
        let mut info = nvmlProcessesUtilizationInfo_t {
            version,
            processSamplesCount: place,
            lastSeenTimeStamp: 0,
            procUtilArray: entries.as_mut_ptr(),
        };
        // SAFETY: NVML's signature, pointers to a valid struct and an array of at least that many entries.
        let code = unsafe { lib.nvmlDeviceGetProcessesUtilizationInfo(device, &raw mut info) };
        (code, info.processSamplesCount)
    };
    assert_eq!(call(size | 2 << 24, 4).0, 25, "another version");
    until(|| (call(size | 1 << 24, 1) == (7, 2)).then_some(()));
    until(|| (call(size | 1 << 24, 4) == (0, 2)).then_some(()));
    let mut pids = [entries[0].pid, entries[1].pid];
    pids.sort_unstable();
    pids
}

#[test]
fn busy_gpu_shows_utilization_of_each_process_and_power_and_the_other_none() {
    let sim = Sim::with("a100-80gb", |options| options.tool = Some(built::binary("nvsim")));
    let nvml = sim.nvml();
    let (gpu, other) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    assert!(matches!(gpu.process_utilization_stats(0_u64), Err(NvmlError::NotFound)));
    let run = || sim.launch(&gpu.uuid().unwrap(), "--micros 2000 --mode each --millis 600000").spawn().unwrap();
    let programs = [run(), run()];
    let samples = until(|| {
        let samples = gpu.process_utilization_stats(0_u64).ok()?;
        (samples.len() == 2 && gpu.utilization_rates().unwrap().gpu >= 90).then_some(samples)
    });
    let sum: u32 = samples.iter().map(|sample| sample.sm_util).sum();
    assert!((60..=110).contains(&sum) && samples.iter().all(|sample| sample.sm_util >= 15), "{samples:?}");
    let mut pids = samples.iter().map(|sample| sample.pid).collect::<Vec<_>>();
    pids.sort_unstable();
    let mut expected = programs.each_ref().map(std::process::Child::id);
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(matches!(gpu.process_utilization_stats(samples[0].timestamp + 3_600_000_000), Err(NvmlError::NotFound)));
    assert_eq!(newer_struct(&sim), expected);
    assert!(until(|| gpu.power_usage().ok().filter(|power| *power > IDLE + WORK / 2)) <= IDLE + WORK);
    assert_eq!((other.utilization_rates().unwrap().gpu, other.power_usage().unwrap()), (0, IDLE));
    let smi = |query: &str, gpu: &str| {
        let tool = sim.options.driver().join("usr/bin/nvidia-smi");
        let output = Command::new(tool).args([query, "--format=csv,noheader", "-i", gpu]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut listed: Vec<String> = smi("--query-compute-apps=pid", "0").lines().map(str::to_owned).collect();
    listed.sort_by_key(|pid| pid.parse::<u32>().unwrap());
    assert_eq!(listed, expected.map(|pid| pid.to_string()));
    until(|| {
        let shown = smi("--query-gpu=utilization.gpu,power.draw", "0");
        let (percent, watts) = shown.trim().split_once(" %, ").unwrap();
        let watts: f64 = watts.strip_suffix(" W").unwrap().parse().unwrap();
        (percent.parse::<u32>().unwrap() >= 90 && watts > 187.0).then_some(())
    });
    assert_eq!(smi("--query-gpu=utilization.gpu,power.draw", "1"), "0 %, 62.00 W\n");
    programs.into_iter().for_each(kill);
    until(|| (gpu.utilization_rates().unwrap().gpu == 0).then_some(()));
    assert!(matches!(gpu.process_utilization_stats(0_u64), Err(NvmlError::NotFound)));
}

#[test]
fn mig_mode_of_an_a100_has_no_activity_but_power_and_energy_of_the_gpu() {
    let sim = Sim::with("a100-80gb", |options| options.tool = Some(built::binary("nvsim")));
    let nvml = sim.nvml();
    sim.mig(0);
    let gi = sim.partition(0, 9);
    let gpu = nvml.device_by_index(0).unwrap();
    let mig = gpu.mig_device_by_index(0).unwrap();
    let before = gpu.total_energy_consumption().unwrap();
    let program = sim.launch(&mig.uuid().unwrap(), "--micros 5000 --millis 600000").spawn().unwrap();
    // 42 of 98 multiprocessors
    until(|| gpu.power_usage().ok().filter(|power| *power > IDLE + WORK / 4));
    assert!(gpu.power_usage().unwrap() < IDLE + WORK / 2);
    assert!(gpu.total_energy_consumption().unwrap() > before);
    for device in [&gpu, &mig] {
        assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
    }
    assert!(matches!(mig.power_usage(), Err(NvmlError::NotSupported)));
    assert!(matches!(mig.total_energy_consumption(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.process_utilization_stats(0_u64), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.is_accounting_enabled(), Err(NvmlError::NotSupported)));
    assert!(!gpu.gpm_support().unwrap());
    assert!(matches!(gpu.gpm_sample(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.gpm_mig_sample(gi), Err(NvmlError::NotSupported)));
    let tool = sim.options.driver().join("usr/bin/nvidia-smi");
    let fields = "--query-gpu=utilization.gpu,utilization.memory,accounting.mode,mig.mode.current";
    let shown = Command::new(tool).args([fields, "--format=csv,noheader", "-i", "0"]).output().unwrap();
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), "[N/A], [N/A], [N/A], Enabled\n");
    kill(program);
}

#[test]
fn mig_instance_of_an_h100_has_performance_metrics_of_its_own() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(gpu.gpm_support().unwrap());
    assert!(matches!(gpu.gpm_mig_sample(0), Err(NvmlError::NotSupported)), "MIG mode is off");
    sim.mig(0);
    let (busy, idle) = (sim.partition(0, 9), sim.partition(0, 9));
    let uuid = gpu.mig_device_by_index(0).unwrap().uuid().unwrap();
    let begin = |gi: u32| Interval::begin(&nvml, gpu.gpm_mig_sample(gi).unwrap());
    let (of_busy, of_idle, of_gpu) = (begin(busy), begin(idle), Interval::begin(&nvml, gpu.gpm_sample().unwrap()));
    let launched = Launched::of(sim.launch(&uuid, "--micros 1000 --millis 1500").spawn().unwrap());
    // a kernel that fills the instance
    let worked = launched.kernels;
    let [active, multiprocessors, _] = of_busy.end(|| gpu.gpm_mig_sample(busy));
    assert!(near(active, worked, 0.05) && near(multiprocessors, worked, 0.05), "{active} of {worked} ms");
    assert!(of_idle.end(|| gpu.gpm_mig_sample(idle)).iter().all(|milliseconds| *milliseconds == 0.0));
    // 60 of the GPU's 132 multiprocessors
    let [active, ..] = of_gpu.end(|| gpu.gpm_sample());
    assert!(near(active, worked * 60.0 / 132.0, 0.05), "{active} of {worked} ms");
    assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.gpm_mig_sample(99), Err(NvmlError::NotFound)));
}

/// The metrics between two samples are refused.
fn invalid<'n>(nvml: &'n Nvml, first: &GpmSample<'n>, second: &GpmSample<'n>) -> bool {
    let metrics = gpm_metrics_get(nvml, first, second, &[GpmMetricId::SmUtil]);
    metrics.is_err_and(|error| matches!(error, NvmlError::InvalidArg))
}

#[test]
fn metrics_of_instructions_are_not_supported_and_samples_must_fit_together() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let (gpu, other) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    let [first, second] = [(), ()].map(|()| gpu.gpm_sample().unwrap());
    let wanted = [GpmMetricId::DramBwUtil, GpmMetricId::AnyTensorUtil];
    let values = gpm_metrics_get(&nvml, &first, &second, &wanted).unwrap();
    assert!(values[0].as_ref().is_ok_and(|metric| metric.value == 0.0 && metric.metric_info.unit == "%"), "{values:?}");
    assert!(matches!(values[1], Err(NvmlError::NotSupported)));
    assert!(invalid(&nvml, &second, &first), "the second is older");
    assert!(invalid(&nvml, &first, &other.gpm_sample().unwrap()), "another GPU");
    let handle = first.into_handle();
    // SAFETY: the handle is of this library; each is freed once, and a freed one is refused.
    let (freed, stale) = unsafe {
        let freed = GpmSample::from_handle(&nvml, handle).free();
        (freed, GpmSample::from_handle(&nvml, handle))
    };
    freed.unwrap();
    assert!(invalid(&nvml, &stale, &second), "freed");
}

#[test]
fn mps_clients_run_at_the_same_time_with_their_percentage_of_the_gpu() {
    let sim = Sim::with("h100-80gb", |options| options.tool = Some(built::binary("nvsim")));
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    let pipes = sim.root.path().join("pipes");
    let control = |arguments: &[&str], lines: &str| {
        let mut command = Command::new(sim.options.driver().join("usr/bin/nvidia-cuda-mps-control"));
        command.args(arguments).env("CUDA_MPS_PIPE_DIRECTORY", &pipes);
        command.env("CUDA_MPS_LOG_DIRECTORY", sim.root.path().join("log"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{arguments:?} {lines}");
    };
    control(&["-d"], "");
    control(&[], "set_default_active_thread_percentage 50\n");
    let interval = Interval::begin(&nvml, gpu.gpm_sample().unwrap());
    let run = |percentage: &str| {
        let mut program = sim.launch(&gpu.uuid().unwrap(), "--micros 100 --millis 1500");
        program.env("CUDA_MPS_PIPE_DIRECTORY", &pipes).env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage);
        program.spawn().unwrap()
    };
    // one asks for more than the default of its daemon
    let launched = [run("25"), run("80")].map(Launched::of);
    let [active, multiprocessors, _] = interval.end(|| gpu.gpm_sample());
    let [slow, fast] = launched.each_ref().map(|of| of.percent);
    // time-sliced, two programs get one half each and one alone gets all; a wait for the program's turn on the processor makes the part smaller
    assert!((12.0..=25.5).contains(&slow) && (25.0..=50.5).contains(&fast), "{launched:?}");
    let worked: f64 = launched.iter().map(|of| of.kernels / 10.0).sum();
    assert!(near(multiprocessors, worked, 0.05), "{multiprocessors} of {worked} ms");
    assert!(active > multiprocessors, "a kernel on a part of the GPU takes all of its time: {active} ms");
    control(&[], "quit\n");
}
