//! NVIDIA's own programs, unmodified, on every MIG board and many layouts: what they see is what was carved.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{Sim, checkout, widest};
use serde_json::Value;
use silicon::board::Profile;
use silicon::{Machine, boards, ids, materialize};

/// A program of the toolset, which other parts of the project build.
fn tool(name: &str) -> PathBuf {
    let path = checkout().join("target/toolset/bin").join(name);
    assert!(path.exists(), "{} is not there: run `make tools` first", path.display());
    path
}

/// A driver with device nodes, and the trees around it.
struct Node {
    sim: Sim,
    trees: PathBuf,
}

impl Node {
    fn new(board: &str) -> Self {
        assert!(nix_is_root(), "these tests make device nodes and mount: run them as root");
        let sim = Sim::with(board, |options| {
            fs::create_dir_all(options.root.join("dev")).unwrap();
            options.devices = true;
        });
        let trees = sim.root.path().join("trees");
        fs::create_dir_all(trees.join("mnt")).unwrap();
        materialize::trees(&trees, &sim.store.read().unwrap()).unwrap();
        materialize::driver_files(&sim.options.driver()).unwrap();
        (0..2).for_each(|gpu| sim.mig(gpu));
        Self { sim, trees }
    }

    /// Runs a program of NVIDIA's where it finds the driver.
    fn run(&self, name: &str, arguments: &[&str]) -> String {
        let dev = self.sim.options.dev();
        let script = checkout().join("integration/nvml-sim/tests/with-driver");
        let output = Command::new(script)
            .arg(&self.trees)
            .arg(tool(name))
            .args(arguments)
            .env("NVSIM_DEV", dev)
            .env("LD_LIBRARY_PATH", self.sim.library_folder())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Empties both GPUs and fills them greedily, each beginning with another profile.
    fn carve(&self, first: usize) -> Machine {
        self.sim
            .store
            .change(|machine, _| {
                for gpu in 0..2 {
                    machine.gpus[gpu].instances.clear();
                    fill(machine, gpu, first + gpu);
                }
                Ok(())
            })
            .unwrap();
        let machine = self.sim.store.read().unwrap();
        silicon::nodes::sync_caps(&self.sim.options.dev(), &machine).unwrap();
        (*machine).clone()
    }
}

fn nix_is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n")
}

/// One instance of each profile in turn, until nothing more fits.
fn fill(machine: &mut Machine, gpu: usize, first: usize) {
    let profiles: Vec<Profile> = machine.board.profiles.clone();
    let index = u32::try_from(gpu).unwrap();
    let mut refused = 0;
    for profile in profiles.iter().cycle().skip(first % profiles.len()) {
        match machine.create_gi(index, profile.id, None) {
            Ok(gi) => {
                let ci = widest(machine, profile.id);
                machine.create_ci(index, gi.id, ci, None).unwrap();
                refused = 0;
            }
            Err(_) => refused += 1,
        }
        if refused == profiles.len() {
            return;
        }
    }
}

/// The labels that gpu-feature-discovery owes for a machine's MIG devices.
fn expected_labels(machine: &Machine) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    machine.mig_devices().iter().for_each(|d| *counts.entry(d.gi.profile).or_default() += 1);
    let mut labels = BTreeMap::new();
    for (id, count) in counts {
        let p = machine.board.profile(id).unwrap();
        let name = p.name.replace('+', ".");
        let e = p.engines;
        for (what, value) in [
            ("count", count.to_string()),
            ("memory", p.memory_mib.to_string()),
            ("multiprocessors", e.sm.to_string()),
            ("slices.gi", p.slices.to_string()),
            ("slices.ci", p.slices.to_string()),
            ("engines.copy", e.copy_engines.to_string()),
            ("engines.decoder", e.decoders.to_string()),
            ("engines.encoder", e.encoders.to_string()),
            ("engines.jpeg", e.jpeg.to_string()),
            ("engines.ofa", e.ofa.to_string()),
        ] {
            labels.insert(format!("nvidia.com/mig-{name}.{what}"), value);
        }
    }
    labels
}

fn labels_of(output: &str) -> BTreeMap<String, String> {
    let kept = |key: &str| key.starts_with("nvidia.com/mig-") && !key.ends_with(".product");
    let pairs = output.lines().filter_map(|line| line.split_once('='));
    pairs
        .filter(|(key, _)| kept(key) && !key.ends_with(".replicas") && !key.ends_with(".sharing-strategy"))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The nodes that each MIG device needs: its GPU's and both its capabilities'.
fn expected_devices(machine: &Machine) -> BTreeMap<String, Vec<String>> {
    let nodes = |d: &silicon::machine::MigDevice<'_>| {
        let (gpu, gi, ci) = (d.gpu.index, d.gi.id, d.ci.id);
        let cap = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
        let mut paths = vec![format!("/dev/nvidia{gpu}"), cap(ids::gi_minor(gpu, gi)), cap(ids::ci_minor(gpu, gi, ci))];
        paths.sort();
        paths
    };
    machine.mig_devices().iter().map(|d| (d.uuid(), nodes(d))).collect()
}

fn devices_of(spec: &Value) -> BTreeMap<String, Vec<String>> {
    let devices = spec["devices"].as_array().unwrap().iter();
    let by_uuid = devices.filter(|d| d["name"].as_str().unwrap().starts_with("MIG-"));
    by_uuid
        .map(|device| {
            let nodes = device["containerEdits"]["deviceNodes"].as_array().unwrap().iter();
            let mut paths: Vec<String> = nodes.map(|n| n["path"].as_str().unwrap().to_owned()).collect();
            paths.sort();
            (device["name"].as_str().unwrap().to_owned(), paths)
        })
        .collect()
}

/// As many layouts as the board has profiles.
fn each_layout(board: &str, mut check: impl FnMut(&Node, &Machine)) {
    let node = Node::new(board);
    for first in 0..boards::load(board).unwrap().profiles.len() {
        let machine = node.carve(first);
        assert!(!machine.mig_devices().is_empty());
        check(&node, &machine);
    }
}

#[test]
fn gpu_feature_discovery_labels_every_layout_of_every_board() {
    for board in boards::mig_keys() {
        each_layout(board, |node, machine| {
            let output = node.run(
                "gpu-feature-discovery",
                &[
                    "--oneshot",
                    "--no-timestamp",
                    "--mig-strategy=mixed",
                    "--use-node-feature-api=false",
                    "--device-discovery-strategy=nvml",
                    "--output-file=",
                ],
            );
            assert_eq!(labels_of(&output), expected_labels(machine), "{board}");
            assert!(output.contains("nvidia.com/gpu.mode=compute"), "the PCI class is read: {output}");
        });
    }
}

#[test]
fn container_toolkit_generates_every_device_of_every_layout_of_every_board() {
    for board in boards::mig_keys() {
        each_layout(board, |node, machine| {
            let driver = node.sim.options.driver();
            let root = node.sim.options.root.clone();
            let output = node.run(
                "nvidia-ctk",
                &[
                    "--quiet",
                    "cdi",
                    "generate",
                    "--mode=nvml",
                    "--format=json",
                    "--device-name-strategy=uuid",
                    "--driver-root",
                    driver.to_str().unwrap(),
                    "--dev-root",
                    root.to_str().unwrap(),
                ],
            );
            let spec: Value = serde_json::from_str(&output).unwrap();
            assert_eq!(devices_of(&spec), expected_devices(machine), "{board}");
        });
    }
}
