//! The CDI specification, compared with that of NVIDIA's unmodified nvidia-ctk for the same driver.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use crate::witness::{Devices, Witness, devices_of};
use crate::{
    built,
    common::{Agent, Sim, myself},
};
use gputenancy_agent::kubelet::{
    cdi::{Driver, render},
    config::Config,
};
use serde_json::Value;
use silicon::{nodes, paths};

/// Libraries of a driver for compute and video that have a version in their name.
const LIBRARIES: [&str; 9] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvcuvid.so",
    "libnvidia-cfg.so",
    "libnvidia-encode.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-opticalflow.so",
    "libnvidia-ptxjitcompiler.so",
];

/// What a driver's package installs besides NVML.
fn driver_package(driver: &Path, version: &str) {
    let folder = driver.join(paths::LIBRARY_FOLDER);
    for library in LIBRARIES {
        fs::write(folder.join(format!("{library}.{version}")), "a library").unwrap();
        let _ = symlink(format!("{library}.{version}"), folder.join(format!("{library}.1")));
    }
    symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
    fs::create_dir_all(driver.join("usr/bin")).unwrap();
    for program in ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let program = driver.join("usr/bin").join(program);
        fs::write(&program, "a program").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
}

/// The files that containers get: path in the container, file on the host, options.
fn mounts(spec: &Value, root: &Path) -> BTreeMap<String, (String, Value)> {
    let mounts = spec["containerEdits"]["mounts"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let host = |value: &Value| text(value).replace(root.to_str().unwrap(), "");
    mounts.map(|m| (text(&m["containerPath"]), (host(&m["hostPath"]), m["options"].clone()))).collect()
}

/// Device nodes of all containers: path, major, minor. A number of zero may be left out.
fn common_nodes(spec: &Value) -> BTreeSet<(String, u64, u64)> {
    let nodes = spec["containerEdits"]["deviceNodes"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    nodes.map(|n| (n["path"].as_str().unwrap().to_owned(), number(&n["major"]), number(&n["minor"]))).collect()
}

/// Program, stage and arguments of the hooks, without commands in `left_out`.
fn hooks(spec: &Value, left_out: &[&str]) -> Vec<(Value, Value, Value)> {
    let hooks = spec["containerEdits"]["hooks"].as_array().unwrap().iter();
    let kept = hooks.filter(|hook| !left_out.contains(&hook["args"][1].as_str().unwrap()));
    kept.map(|hook| (hook["path"].clone(), hook["hookName"].clone(), hook["args"].clone())).collect()
}

/// This process has the simulator's folder of device nodes: the simulated driver finds it by a variable. Else runs the test in one that has.
fn with_devices(test: &str) -> Option<PathBuf> {
    if let Some(root) = std::env::var_os("CDI_ROOT") {
        return Some(root.into());
    }
    let root = tempfile::tempdir().unwrap();
    let dev = root.path().join("dev");
    fs::create_dir_all(&dev).unwrap();
    let status = myself(test).env("CDI_ROOT", root.path()).env("NVSIM_DEV", dev).status().unwrap();
    assert!(status.success(), "{status}");
    None
}

#[tokio::test]
async fn containers_get_what_nvidia_ctk_gives_them() {
    let Some(root) = with_devices("cdi::containers_get_what_nvidia_ctk_gives_them") else { return };
    let sim = Sim::with("h100-80gb", 2, |options| {
        options.root = root.clone();
        options.devices = true;
    });
    let witness = Witness::of(&sim.options, &sim.store.read().unwrap());
    driver_package(&sim.options.driver(), silicon::machine::DRIVER_VERSION);
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::copy(built::checkout().join("target/toolset/bin/nvidia-cdi-hook"), root.join("usr/bin/nvidia-cdi-hook"))
        .unwrap();
    let mut agent = Agent::on(&root);
    agent.uuid().await;
    let uuids: Vec<String> =
        agent.state.borrow().inventory.as_ref().unwrap().gpus.iter().map(|g| g.uuid.clone()).collect();
    agent.want_all(vec![
        Agent::spec(&uuids[0], true, &[(0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb")]),
        Agent::spec(&uuids[1], false, &[]),
    ]);
    agent.converge().await;
    nodes::sync_caps(&sim.options.dev(), &sim.store.read().unwrap()).unwrap();

    let theirs: Value = serde_json::from_str(&witness.toolkit().text()).unwrap();
    let config = Config { host_root: root.clone(), dev_root: sim.options.dev(), ..Config::default() };
    let driver = Driver::find(&config, &sim.options.driver_root);
    let ours = render(&agent.view.borrow().devices, &driver).unwrap();

    assert_eq!(ours["containerEdits"]["env"], theirs["containerEdits"]["env"]);
    assert_eq!(common_nodes(&ours), common_nodes(&theirs));
    let (all, own): (Devices, Devices) = (devices_of(&theirs), devices_of(&ours));
    assert_eq!(own.len(), 4 + 3, "three instances, also under the ids of earlier releases, and a whole GPU: {own:?}");
    for (id, nodes) in own.iter().filter(|(id, _)| !id.contains("::")) {
        assert_eq!(Some(nodes), all.get(id), "device nodes of {id}");
    }
    // links are mounted as files, for runtimes without hooks
    let links = "create-symlinks";
    // restricts EGL and Vulkan, whose libraries containers do not get
    let graphics = "update-application-profile";
    assert_eq!(hooks(&ours, &[]), hooks(&theirs, &[links, graphics]));
    let (mut ours, theirs) = (mounts(&ours, &root), mounts(&theirs, &root));
    for (path, mount) in &theirs {
        assert_eq!(ours.remove(path).as_ref(), Some(mount), "{path}");
    }
    let files: BTreeSet<&String> = theirs.values().map(|(host, _)| host).collect();
    for (path, (host, _)) in &ours {
        assert!(files.contains(host), "{path} leads to {host}, which nvidia-ctk does not mount");
    }
}
