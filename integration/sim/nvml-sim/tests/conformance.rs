//! NVIDIA's unmodified programs on every MIG board and many layouts list exactly the existing instances.

use std::fs;
use std::process::Command;

use crate::common::{Sim, widest};
use crate::witness::{Devices, Labels, Witness, labels_of, mig_labels, nodes_of, of_mig};
use silicon::board::Profile;
use silicon::{Machine, boards};

/// A driver with device nodes, and NVIDIA's programs on it.
struct Node {
    sim: Sim,
    witness: Witness,
}

impl Node {
    fn new(board: &str) -> Self {
        assert!(nix_is_root(), "these tests make device nodes and mount: run them as root");
        let sim = Sim::with(board, |options| {
            fs::create_dir_all(options.root.join("dev")).unwrap();
            options.devices = true;
        });
        let witness = Witness::of(&sim.options, &sim.store.read().unwrap());
        (0..2).for_each(|gpu| sim.mig(gpu));
        Self { sim, witness }
    }

    /// Empties both GPUs and fills them greedily, each beginning with another profile.
    fn partition(&self, first: usize) -> Machine {
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
    let profiles: Vec<Profile> = machine.gpus[gpu].board.profiles.clone();
    let index = u32::try_from(gpu).unwrap();
    let mut refused = 0;
    for profile in profiles.iter().cycle().skip(first % profiles.len()) {
        match machine.create_gi(index, profile.id, None) {
            Ok(gi) => {
                let ci = widest(&machine.gpus[gpu].board, profile.id);
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

/// The expected labels for a machine's MIG devices.
fn expected_labels(machine: &Machine) -> Labels {
    let board = &machine.gpus[0].board;
    let profile = |id: u32| board.profile(id).unwrap().name.as_str();
    mig_labels(board, machine.mig_devices().iter().map(|device| profile(device.gi.profile)))
}

fn expected_devices(machine: &Machine) -> Devices {
    let devices = machine.mig_devices();
    devices.iter().map(|d| (d.uuid(), nodes_of(d.gpu.index, d.gi.id, d.ci.id))).collect()
}

/// Layouts of which each begins with two profiles, one on each GPU: together with all profiles of the board.
fn each_layout(board: &str, mut check: impl FnMut(&Node, &Machine)) {
    let node = Node::new(board);
    for first in (0..boards::load(board).unwrap().profiles.len()).step_by(2) {
        let machine = node.partition(first);
        assert!(!machine.mig_devices().is_empty());
        check(&node, &machine);
    }
}

#[test]
fn gpu_feature_discovery_labels_every_layout_of_every_board() {
    for board in boards::mig_keys() {
        each_layout(board, |node, machine| {
            let labels = labels_of(&node.witness.feature_discovery().text());
            assert_eq!(of_mig(&labels), expected_labels(machine), "{board}");
            assert_eq!(labels["nvidia.com/gpu.mode"], "compute", "the PCI class is read");
        });
    }
}

#[test]
fn container_toolkit_generates_every_device_of_every_layout_of_every_board() {
    for board in boards::mig_keys() {
        each_layout(board, |node, machine| {
            assert_eq!(node.witness.toolkit().devices(), expected_devices(machine), "{board}");
        });
    }
}
