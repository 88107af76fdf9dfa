//! Where things lie on the host and in the agent's container, and how devices are handed out.

use std::path::{Path, PathBuf};

/// How a container gets its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Allocation {
    /// By CDI device names; the container runtime applies our CDI specification.
    #[default]
    Cdi,
    /// By `NVIDIA_VISIBLE_DEVICES` alone, for runtimes without CDI that have NVIDIA's hook.
    Envvar,
}

/// What the kubelet side of the agent needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this node's `Node` object.
    pub node_name: String,
    /// kubelet's folder, `/var/lib/kubelet`, at the same path on the host and here.
    pub kubelet_dir: PathBuf,
    /// Folder of CDI specifications, `/var/run/cdi`, at the same path on the host and here.
    pub cdi_dir: PathBuf,
    /// Root of the driver's files as the host sees it: `/`, or `/run/nvidia/driver` under the GPU Operator.
    pub driver_root: PathBuf,
    /// Where the host's root folder is mounted here; `/` outside a container.
    pub host_root: PathBuf,
    /// Folder with the device nodes as seen here, `/dev`.
    pub dev: PathBuf,
    /// CDI devices that every container with a GPU gets besides its own.
    pub extra_cdi_devices: Vec<String>,
    /// How a container gets its device.
    pub allocation: Allocation,
}

impl Config {
    /// The folder of device plugin sockets.
    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// The socket of kubelet's pod resources API.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.kubelet_dir.join("pod-resources/kubelet.sock")
    }

    /// A path of the host, as seen here.
    pub fn seen(&self, host_path: &Path) -> PathBuf {
        below(&self.host_root, host_path)
    }
}

/// A path that is absolute in another root, as a path below that root's mount point.
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
