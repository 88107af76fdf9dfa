//! Real processes that use simulated GPUs, as NVML lists them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::built;
use crate::common::Sim;
use nvml_wrapper::enums::device::UsedGpuMemory;
use silicon::Code;
use silicon::history::{self, Event};

/// A running `gpu-work hold` and the lines it printed, one for each device.
struct Work {
    child: Child,
    lines: Vec<String>,
}

impl Work {
    fn hold(sim: &Sim, owner: &str, devices: usize) -> Self {
        let mut command = sim.command("gpu-work");
        command.args(["hold", "--memory", "1Gi", "--pod-name", owner]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = (0..devices).map(|_| output.next().expect("a line for each device").unwrap()).collect();
        Self { child, lines }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Both GPUs in MIG mode; one instance on the first.
fn partitioned() -> (Sim, u32) {
    let sim = Sim::new("h100-80gb");
    sim.mig(0);
    sim.mig(1);
    let gi = sim.partition(0, 19);
    (sim, gi)
}

#[test]
fn process_is_listed_with_pid_memory_and_instance() {
    let (sim, gi) = partitioned();
    let work = Work::hold(&sim, "ns/pod", 1);
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    for device in [nvml.device_by_index(0).unwrap(), gpu.mig_device_by_index(0).unwrap()] {
        let processes = device.running_compute_processes().unwrap();
        assert_eq!(processes.len(), 1);
        let process = &processes[0];
        assert_eq!(process.pid, work.child.id());
        assert_eq!((process.gpu_instance_id, process.compute_instance_id), (Some(gi), Some(0)));
        assert!(matches!(process.used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes == 1 << 30));
    }
    assert_eq!(gpu.mig_device_by_index(0).unwrap().memory_info().unwrap().used, 1 << 30);
    assert!(nvml.device_by_index(1).unwrap().running_compute_processes().unwrap().is_empty());
    work.kill();
}

#[test]
fn killed_process_is_no_longer_listed() {
    let (sim, gi) = partitioned();
    let work = Work::hold(&sim, "ns/pod", 1);
    let destroy = || sim.store.change(|m, clients| m.destroy_ci(0, gi, 0, clients));
    assert_eq!(destroy().unwrap_err().code(), Code::IN_USE);
    work.kill();
    destroy().unwrap();
    let nvml = sim.nvml();
    assert!(nvml.device_by_index(0).unwrap().running_compute_processes().unwrap().is_empty());
}

#[test]
fn processes_share_a_device_within_its_memory() {
    let (sim, _) = partitioned();
    let works: Vec<Work> = (0..9).map(|n| Work::hold(&sim, &format!("ns/pod-{n}"), 1)).collect();
    let more = sim.command("gpu-work").args(["hold", "--memory", "1Gi"]).output().unwrap();
    assert!(!more.status.success());
    assert!(String::from_utf8_lossy(&more.stderr).contains("out of memory"));
    let processes = sim.nvml().device_by_index(0).unwrap().running_compute_processes().unwrap();
    assert_eq!(processes.len(), 9);
    works.into_iter().for_each(Work::kill);
}

#[test]
fn gpu_work_prints_its_devices() {
    let (sim, gi) = partitioned();
    let uuid = sim.store.read().unwrap().mig_devices()[0].uuid();
    let work = Work::hold(&sim, "ns/pod", 1);
    let expected = format!("mig={uuid} profile=1g.10gb gi={gi} ci=0 memory=9984MiB held=1024MiB");
    assert!(work.lines[0].ends_with(&expected), "{}", work.lines[0]);
    work.kill();
    let show = sim.command("gpu-work").arg("show").output().unwrap();
    assert_eq!(String::from_utf8(show.stdout).unwrap().lines().count(), 1);
}

#[test]
fn gpu_work_fails_without_devices() {
    let sim = Sim::with("h100-80gb", |options| options.gpus = 1);
    sim.mig(0);
    let show = sim.command("gpu-work").arg("show").output().unwrap();
    assert!(!show.status.success());
    assert!(String::from_utf8_lossy(&show.stderr).contains("no GPU is visible"));
}

#[test]
fn nvidia_smi_does_not_reset_a_gpu_in_use() {
    let sim = Sim::with("a100-80gb", |options| options.tool = Some(built::binary("nvsim")));
    let work = Work::hold(&sim, "ns/pod", 2);
    let smi = || {
        let tool = sim.options.driver().join("usr/bin/nvidia-smi");
        std::process::Command::new(tool).args(["--gpu-reset", "-i", "0"]).output().unwrap()
    };
    assert_eq!(smi().status.code(), Some(255));
    work.kill();
    assert!(smi().status.success());
}

#[test]
fn history_names_other_owners_of_a_device() {
    let (sim, _) = partitioned();
    let (first, second) = (Work::hold(&sim, "ns/first", 1), Work::hold(&sim, "ns/second", 1));
    first.kill();
    let third = Work::hold(&sim, "ns/third", 1);
    let others: Vec<Vec<String>> = history::read(sim.store.dir())
        .unwrap()
        .into_iter()
        .filter_map(|line| match line.event {
            Event::Attach { others, .. } => Some(others),
            _ => None,
        })
        .collect();
    assert_eq!(others, [vec![], vec!["ns/first".to_owned()], vec!["ns/second".to_owned()]]);
    second.kill();
    third.kill();
}

#[test]
fn process_without_device_node_sees_no_gpu() {
    let sim = Sim::with("h100-80gb", |options| options.gpus = 1);
    // plain files instead of device nodes: visibility depends on whether they can be opened
    let dev = sim.root.path().join("dev");
    std::fs::create_dir_all(dev.join("nvidia-caps")).unwrap();
    std::fs::write(dev.join("nvidia0"), "").unwrap();
    sim.mig(0);
    let (mine, other) = (sim.partition(0, 9), sim.partition(0, 9));
    sim.with_nodes();
    for minor in [silicon::ids::gi_minor(0, mine), silicon::ids::ci_minor(0, mine, 0), silicon::ids::gi_minor(0, other)]
    {
        std::fs::write(dev.join(format!("nvidia-caps/nvidia-cap{minor}")), "").unwrap();
    }
    let show = |dev: &std::path::Path| sim.command("gpu-work").arg("show").env("NVSIM_DEV", dev).output().unwrap();
    let seen = String::from_utf8(show(&dev).stdout).unwrap();
    assert_eq!(seen.lines().count(), 1, "{seen}");
    assert!(seen.contains(&format!("gi={mine} ")), "{seen}");
    std::fs::remove_file(dev.join("nvidia0")).unwrap();
    assert!(!show(&dev).status.success());
}
