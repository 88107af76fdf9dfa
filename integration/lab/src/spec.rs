//! Specification of a lab, and the plan derived from it.

use crate::address::{MOST_NODES, Place};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The label of nodes with simulated GPUs.
pub const GPU_LABEL: &str = "gputenancy.io/lab-gpu";

/// Options of a lab; every field has a default.
#[derive(Debug, Clone)]
pub struct LabSpec {
    /// The lab's name: state folder, cgroups, host name. Lower-case letters, digits and dashes.
    pub name: String,
    /// Nodes `gpu-1…`, labelled `gputenancy.io/lab-gpu=true`.
    pub gpu_nodes: u8,
    /// Nodes `cpu-1…`.
    pub cpu_nodes: u8,
    /// The memory that each node reports, in MiB.
    pub node_memory_mib: u64,
    /// Build profile of the project's programs.
    pub profile: Profile,
    /// Refuse to start when one of the project's own images cannot be built.
    pub require_images: bool,
    /// Flags added to kube-apiserver's.
    pub apiserver_flags: Vec<String>,
    /// Flags added to every kubelet's.
    pub kubelet_flags: Vec<String>,
    /// Print progress on standard error.
    pub verbose: bool,
}

impl Default for LabSpec {
    fn default() -> Self {
        Self {
            name: "lab".to_owned(),
            gpu_nodes: 2,
            cpu_nodes: 1,
            node_memory_mib: 64 * 1024,
            profile: Profile::Debug,
            require_images: false,
            apiserver_flags: Vec::new(),
            kubelet_flags: Vec::new(),
            verbose: true,
        }
    }
}

impl LabSpec {
    /// A lab of the default size with this name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The nodes, GPU nodes first; an error for an invalid specification.
    pub fn nodes(&self) -> Result<Vec<NodePlan>> {
        let invalid = |why: &str| Error::Invalid { what: format!("lab {:?}", self.name), why: why.to_owned() };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 40 || !self.name.chars().all(plain) || self.name.starts_with('-') {
            return Err(invalid("a name is 1 to 40 lower-case letters, digits and dashes"));
        }
        if self.gpu_nodes.checked_add(self.cpu_nodes).is_none_or(|sum| sum > MOST_NODES) {
            return Err(invalid(&format!("at most {MOST_NODES} nodes have an address")));
        }
        let gpu = (1..=self.gpu_nodes).map(|i| (format!("gpu-{i}"), true));
        let cpu = (1..=self.cpu_nodes).map(|i| (format!("cpu-{i}"), false));
        let place = |((name, gpu), i)| NodePlan { name, gpu, place: Place(i) };
        Ok(gpu.chain(cpu).zip(1..).map(place).collect())
    }
}

/// The cargo profile whose programs go into the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// `target/debug`
    Debug,
    /// `target/release`
    Release,
}

impl Profile {
    /// The folder's name under `target/`.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// One node of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    /// Its name in Kubernetes.
    pub name: String,
    /// Whether it gets simulated GPUs.
    pub gpu: bool,
    /// Its addresses.
    pub place: Place,
}

/// Input of the lab's processes: written by the host side, read by `lab init` and `lab node-init`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The lab's name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<NodePlan>,
    /// The host's loopback port of the API server.
    pub port: u16,
    /// The folder with `bin` and `cni`.
    pub toolset: PathBuf,
    /// Folders that nodes have read-only at the same path: programs, targets of the toolset's links, images.
    pub shown: Vec<PathBuf>,
    /// Image tars, in the order of import.
    pub images: Vec<PathBuf>,
    /// The memory that each node reports, in MiB.
    pub node_memory_mib: u64,
    /// Flags added to kube-apiserver's.
    pub apiserver_flags: Vec<String>,
    /// Flags added to every kubelet's.
    pub kubelet_flags: Vec<String>,
}

impl Plan {
    /// A program of the toolset.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.toolset.join("bin").join(name)
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodePlan> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_lists_gpu_nodes_first_with_unique_addresses() {
        let nodes = LabSpec::default().nodes().unwrap();
        let names: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.gpu, node.place.0)).collect();
        assert_eq!(names, [("gpu-1", true, 1), ("gpu-2", true, 2), ("cpu-1", false, 3)]);
    }

    #[test]
    fn spec_rejects_invalid_names() {
        for name in ["", "../x", "Lab", "-x", "a b"] {
            assert!(LabSpec::named(name).nodes().is_err(), "{name:?}");
        }
    }

    #[test]
    fn spec_rejects_too_many_nodes() {
        assert!(LabSpec { gpu_nodes: 150, cpu_nodes: 150, ..LabSpec::default() }.nodes().is_err());
    }
}
