//! Flags of the device plugin, and paths of the host.

use std::path::{Path, PathBuf};

/// How a container gets its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Allocation {
    /// By CDI device names; the container runtime applies the agent's CDI specification.
    #[default]
    Cdi,
    /// By `NVIDIA_VISIBLE_DEVICES` alone, for runtimes without CDI that have NVIDIA's hook.
    Envvar,
}

/// How the memory of time-slices and fractions is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum MemoryLimits {
    /// The library that containers get in place of `libcuda.so.1`.
    #[default]
    Shim,
    /// Not at all.
    None,
}

/// Flags of the device plugin.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Config {
    /// Name of this node's Node object.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Mount path of the host's root.
    #[arg(long, env = "HOST_ROOT", default_value = "/")]
    pub host_root: PathBuf,
    /// Folder of the device nodes.
    #[arg(long, env = "DEV_ROOT", default_value = "/dev")]
    pub dev_root: PathBuf,
    /// Kubelet's folder, at the same path on the host and in the container.
    #[arg(long, env = "KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Folder of CDI specifications, at the same path on the host and in the container.
    #[arg(long, env = "CDI_DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Folder of MPS daemons, at the same path on the host and in the container.
    #[arg(long, env = "MPS_DIR", default_value = "/run/gputenancy/mps")]
    pub mps_dir: PathBuf,
    /// How the memory of time-slices and fractions is limited: by libraries in their containers, or not at all.
    #[arg(long, env = "MEMORY_LIMITS", value_enum, ignore_case = true, default_value_t)]
    pub memory_limits: MemoryLimits,
    /// Path in the agent's image of the library that limits memory (the shim).
    #[arg(long, env = "SHIM", default_value = "/usr/lib/gputenancy/libgputenancy_cuda.so")]
    pub shim: PathBuf,
    /// Path in the agent's image of the library through which NVML shows the share as the GPU.
    #[arg(long, env = "NVML_VIEW", default_value = "/usr/lib/gputenancy/libgputenancy_nvml_view.so")]
    pub nvml_view: PathBuf,
    /// Folder of the libraries and of the shares' ledgers, at the same path on the host and in the container.
    #[arg(long, env = "ENFORCEMENT_DIR", default_value = "/run/gputenancy/enforcement")]
    pub enforcement_dir: PathBuf,
    /// CDI devices added to every container with a GPU.
    #[arg(long, env = "EXTRA_CDI_DEVICES", value_delimiter = ',')]
    pub extra_cdi_devices: Vec<String>,
    /// Handlers of `RuntimeClasses` that are sandboxes, whose containers do not get the libraries that limit memory; `*` at the end stands for any
    /// rest.
    #[arg(long, env = "SANDBOXED_HANDLERS", value_delimiter = ',', default_value = "runsc*,gvisor*,kata*")]
    pub sandboxed_handlers: Vec<String>,
    /// How containers get their devices: by CDI, or by the variable of NVIDIA's runtime hook.
    #[arg(long, env = "ALLOCATE", value_enum, default_value_t)]
    pub allocate: Allocation,
}

impl Config {
    /// The folder of device plugin sockets.
    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// The socket at which kubelet registers device plugins; it creates it when it starts.
    pub fn kubelet_socket(&self) -> PathBuf {
        self.plugin_dir().join("kubelet.sock")
    }

    /// The socket of kubelet's pod resources API.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.kubelet_dir.join("pod-resources/kubelet.sock")
    }

    /// Folders of the host that this container has mounted at the same path, and that other programs may replace.
    pub fn host_folders(&self) -> Vec<PathBuf> {
        let Self { kubelet_dir, cdi_dir, mps_dir, enforcement_dir, .. } = self;
        let pod_resources = kubelet_dir.join("pod-resources");
        vec![self.plugin_dir(), pod_resources, cdi_dir.clone(), mps_dir.clone(), enforcement_dir.clone()]
    }

    /// A path of the host in this container.
    pub fn mounted(&self, host_path: &Path) -> PathBuf {
        below(&self.host_root, host_path)
    }
}

/// A path that is absolute in another root, as a path below that root's mount point.
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
