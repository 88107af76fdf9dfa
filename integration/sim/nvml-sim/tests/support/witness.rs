//! Runs NVIDIA's unmodified programs on a simulated driver, for an independent view of its devices.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use silicon::{
    Machine,
    board::{Board, Profile},
    ids,
    install::Options,
    materialize, paths,
};

use super::built::checkout;

/// Labels of a node.
pub type Labels = BTreeMap<String, String>;
/// Device nodes of each device, sorted, by UUID.
pub type Devices = BTreeMap<String, Vec<String>>;

/// A simulated driver with device nodes, and the trees around it that NVIDIA's programs read.
pub struct Witness {
    options: Options,
    trees: PathBuf,
}

/// A program that was started.
pub struct Running(&'static str, Child);

impl Witness {
    /// Writes the files that the programs read besides NVML.
    pub fn of(options: &Options, machine: &Machine) -> Self {
        let trees = options.root.join("trees");
        fs::create_dir_all(trees.join("mnt")).unwrap();
        materialize::trees(&trees, machine).unwrap();
        materialize::driver_files(&options.driver()).unwrap();
        Self { options: options.clone(), trees }
    }

    /// Starts gpu-feature-discovery, which prints labels and ends.
    pub fn feature_discovery(&self) -> Running {
        let arguments = [
            "--oneshot",
            "--no-timestamp",
            "--mig-strategy=mixed",
            "--use-node-feature-api=false",
            "--device-discovery-strategy=nvml",
            "--output-file=",
        ];
        self.start("gpu-feature-discovery", &arguments)
    }

    /// Starts nvidia-ctk, which prints a CDI specification with UUIDs for names.
    pub fn toolkit(&self) -> Running {
        let (driver, root) = (self.options.driver(), &self.options.root);
        let arguments = [
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
        ];
        self.start("nvidia-ctk", &arguments)
    }

    /// Starts a program of NVIDIA's where it finds the driver.
    fn start(&self, name: &'static str, arguments: &[&str]) -> Running {
        let program = checkout().join("target/toolset/bin").join(name);
        assert!(program.exists(), "{} is not there: run `make tools` first", program.display());
        let child = Command::new(checkout().join("integration/sim/nvml-sim/tests/with-driver"))
            .arg(&self.trees)
            .arg(program)
            .args(arguments)
            .env("NVSIM_DEV", self.options.dev())
            .env("LD_LIBRARY_PATH", self.options.driver().join(paths::LIBRARY_FOLDER))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Running(name, child.unwrap())
    }
}

impl Running {
    /// Waits for the program, and returns what it printed.
    pub fn text(self) -> String {
        let (name, output) = self.end();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits for nvidia-ctk, and returns the devices it found. It writes no specification where there is no device at all.
    pub fn devices(self) -> Devices {
        let (name, output) = self.end();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("invalid device, empty device edits") {
            return Devices::new();
        }
        assert!(output.status.success(), "{name}: {said}");
        devices_of(&serde_json::from_slice(&output.stdout).unwrap())
    }

    fn end(self) -> (&'static str, Output) {
        (self.0, self.1.wait_with_output().unwrap())
    }
}

/// Device nodes of a CDI specification's devices by their names, without the one for all devices.
pub fn devices_of(spec: &Value) -> Devices {
    let devices = spec["devices"].as_array().unwrap().iter();
    let nodes = |device: &Value| {
        let nodes = device["containerEdits"]["deviceNodes"].as_array().unwrap().iter();
        let mut paths: Vec<String> = nodes.map(|n| n["path"].as_str().unwrap().to_owned()).collect();
        paths.sort();
        paths
    };
    let named = devices.map(|device| (device["name"].as_str().unwrap().to_owned(), nodes(device)));
    named.filter(|(name, _)| name != "all").collect()
}

/// The nodes that a MIG device needs: its GPU's and both its capabilities'.
pub fn nodes_of(gpu: u32, gi: u32, ci: u32) -> Vec<String> {
    let cap = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
    let mut paths = vec![format!("/dev/nvidia{gpu}"), cap(ids::gi_minor(gpu, gi)), cap(ids::ci_minor(gpu, gi, ci))];
    paths.sort();
    paths
}

/// The expected labels for MIG devices, by profile.
pub fn mig_labels<'a>(board: &Board, devices: impl IntoIterator<Item = &'a str>) -> Labels {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    devices.into_iter().for_each(|profile| *counts.entry(profile).or_default() += 1);
    let mut labels = Labels::new();
    for (name, count) in counts {
        let profile: &Profile = board.profiles.iter().find(|profile| profile.name == name).unwrap();
        let (name, engines) = (name.replace('+', "."), profile.engines);
        for (what, value) in [
            ("count", count.to_string()),
            ("memory", profile.memory_mib.to_string()),
            ("multiprocessors", engines.sm.to_string()),
            ("slices.gi", profile.slices.to_string()),
            ("slices.ci", profile.slices.to_string()),
            ("engines.copy", engines.copy_engines.to_string()),
            ("engines.decoder", engines.decoders.to_string()),
            ("engines.encoder", engines.encoders.to_string()),
            ("engines.jpeg", engines.jpeg.to_string()),
            ("engines.ofa", engines.ofa.to_string()),
        ] {
            labels.insert(format!("nvidia.com/mig-{name}.{what}"), value);
        }
    }
    labels
}

/// All labels that gpu-feature-discovery printed.
pub fn labels_of(output: &str) -> Labels {
    output.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
}

/// The labels among them that describe MIG devices, without what is the same for all.
pub fn of_mig(labels: &Labels) -> Labels {
    let dull = [".product", ".replicas", ".sharing-strategy"];
    let kept = |key: &str| key.starts_with("nvidia.com/mig-") && !dull.iter().any(|end| key.ends_with(end));
    labels.iter().filter(|(key, _)| kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}
