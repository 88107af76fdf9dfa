//! The checks for a GPU, on a simulated one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends there")]

#[path = "../../../sim/nvml-sim/tests/support/built.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod built;

use std::process::Command;

use silicon::{
    Store,
    board::Variant,
    boards,
    install::{Options, install},
};

/// Runs checks, and returns the table.
fn gpu_test(checks: &[&str]) -> String {
    let root = tempfile::tempdir().unwrap();
    let store: Store = install(&Options {
        root: root.path().into(),
        driver_root: "/drv".into(),
        persistent: "/var/lib/nvsim".into(),
        library: built::shared("libnvml_sim.so"),
        cuda: None,
        tool: None,
        node: "node".into(),
        boards: vec![boards::load("h100-80gb").unwrap()],
        variant: Variant::Normal,
        gpus: 1,
        latency_permille: 0,
        devices: false,
    })
    .unwrap();
    let [shim, driver, nvml] = ["libgputenancy_cuda.so", "libcuda_sim.so", "libnvml_sim.so"].map(built::shared);
    let view = built::shared("libgputenancy_nvml_view.so");
    let libraries = root.path().join("usr/lib64");
    std::fs::create_dir_all(&libraries).unwrap();
    std::os::unix::fs::symlink(&nvml, libraries.join("libnvidia-ml.so.1")).unwrap();
    let programs = root.path().join("usr/bin");
    std::fs::create_dir_all(&programs).unwrap();
    for program in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        std::fs::copy(built::binary("nvsim"), programs.join(program)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-test"));
    command.arg("--driver-root").arg(root.path());
    command.arg("--shim").arg(shim).arg("--driver").arg(driver).arg("--nvml").arg(nvml);
    // the simulated nvidia-smi is the program of the simulator under another name
    let smi = root.path().join("nvidia-smi");
    std::fs::copy(built::binary("nvsim"), &smi).unwrap();
    command.arg("--view").arg(view).arg("--smi").arg(smi);
    command.arg("--work").arg(built::binary("cuda-work")).args(["--millis", "200"]).args(checks);
    let output = command.env("NVSIM_STATE", store.dir()).env("NVSIM_DEV", "all").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}\n{errors}");
    table
}

#[test]
fn limits_of_memory_hold_on_the_simulated_gpu() {
    let table = gpu_test(&["driver", "routing", "memory", "processes", "view"]);
    assert!(table.contains("| memory | plain:") && table.contains("| processes |"), "{table}");
    assert!(!table.contains("| NO |"), "{table}");
}

#[test]
fn shares_of_time_and_calls_are_measured_on_the_simulated_gpu() {
    let table = gpu_test(&["pace", "timing"]);
    for line in ["| pace | 10 percent, alone |", "| pace | 30 and 70 percent at a time |", "| timing | launch"] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(!table.contains("| NO |"), "{table}");
}

#[test]
fn agent_reads_the_simulated_gpu_as_it_is() {
    let table = gpu_test(&["agent", "residue"]);
    for line in ["boards/h100-80gb.yaml` |", "50 full scans", "events: Xid 31 | yes |", "found=0 | yes |"] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(!table.contains("| NO |"), "{table}");
}

#[test]
fn clients_of_mps_are_limited_on_the_simulated_gpu() {
    let table = gpu_test(&["mps"]);
    assert!(table.contains("and as another user") && table.contains("1 servers, 1 clients"), "{table}");
    assert!(!table.contains("| NO |"), "{table}");
}
