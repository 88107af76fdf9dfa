//! Injected faults and rights of a process that calls NVML.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use crate::common::Sim;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Names the library that a child of this test program uses.
const LIBRARY: &str = "CALLERS_LIBRARY";

/// Runs the test `child` of this program in a process of its own, on the simulated driver.
fn run_child(sim: &Sim, dev: Option<&Path>) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "callers::child"]).env(LIBRARY, sim.library());
    if let Some(dev) = dev {
        command.env("NVSIM_DEV", dev);
    }
    command.output().unwrap().status
}

/// Not a test of its own: turns MIG mode on as a child of the others.
#[test]
fn child() {
    let Some(library) = std::env::var_os(LIBRARY) else { return };
    let nvml = Nvml::builder().lib_path(&library).init().unwrap();
    match nvml.device_by_index(0).unwrap().set_mig_mode(true) {
        Ok(_) => {}
        Err(NvmlError::NoPermission) => std::process::exit(77),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn kill_before_call_changes_nothing_and_after_call_completes_it() {
    for (moment, done) in [("before", false), ("after", true)] {
        let sim = Sim::new("h100-80gb");
        sim.nvsim(&["inject", "--call", "change", "--kill", moment, "--process", "nvml_sim-"]);
        assert_eq!(run_child(&sim, None).signal(), Some(9));
        assert_eq!(sim.store.read().unwrap().gpus[0].mig, done, "{moment}");
        // the kernel released the lock, and the fault hits once
        assert!(run_child(&sim, None).success());
        assert!(sim.store.read().unwrap().gpus[0].mig);
    }
}

#[test]
fn hanging_call_completes() {
    let sim = Sim::new("h100-80gb");
    sim.nvsim(&["inject", "--call", "nvmlDeviceSetMigMode", "--hang", "0.2"]);
    assert!(run_child(&sim, None).success());
    assert!(sim.store.read().unwrap().gpus[0].mig);
}

#[test]
fn mig_changes_require_the_config_capability() {
    let sim = Sim::new("h100-80gb");
    sim.with_nodes();
    // plain files instead of device nodes: visibility depends on whether they can be opened
    let dev = sim.root.path().join("dev");
    std::fs::create_dir_all(dev.join("nvidia-caps")).unwrap();
    std::fs::write(dev.join("nvidia0"), "").unwrap();
    assert_eq!(run_child(&sim, Some(&dev)).code(), Some(77));
    assert!(!sim.store.read().unwrap().gpus[0].mig);
    std::fs::write(dev.join("nvidia-caps/nvidia-cap1"), "").unwrap();
    assert!(run_child(&sim, Some(&dev)).success());
    assert!(sim.store.read().unwrap().gpus[0].mig);
}
