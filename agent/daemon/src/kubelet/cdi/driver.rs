//! Device nodes, libraries, programs and sockets of the host's NVIDIA driver that containers get.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use gputenancy_nvml::find_library;
use serde::Serialize;

use super::hooks::HookProgram;
use crate::{
    enforcement::Library,
    gpu::{
        CapMinors,
        processes::cap_minors::{self, GPU_MAJOR},
    },
    kubelet::config::{Config, below},
};

/// Device nodes that every GPU container needs, where the driver has them.
const COMMON_NODES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// The driver's libraries for compute and video, by prefix of their file names.
const LIBRARIES: [&str; 15] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvcuvid.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-encode.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so",
    "libnvidia-nscq.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-opticalflow.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-sandboxutils.so",
    "libnvoptix.so",
];
/// The driver's programs for containers.
const PROGRAMS: [&str; 4] = [
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "usr/bin/nvidia-cuda-mps-control",
    "usr/bin/nvidia-cuda-mps-server",
];
/// Sockets of the driver's services.
const SOCKETS: [&str; 2] = ["run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket"];
/// Folder of the firmware, with one folder for each version.
const FIRMWARE: &str = "lib/firmware/nvidia";
/// Start of the names of CUDA's library.
const CUDA: &str = "libcuda.so";
/// Start of the names of NVML.
const NVML: &str = "libnvidia-ml.so";
/// Longest chain of links that is followed.
const MAX_LINKS: usize = 8;

/// Options of a mounted file.
const FILE_OPTIONS: &[&str] = &["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Options of a file that programs in the container write.
const WRITABLE_OPTIONS: &[&str] = &["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"];
/// Options of a mounted socket, which programs in the container connect to.
const SOCKET_OPTIONS: &[&str] = &["nosuid", "nodev", "noexec", "rbind", "rprivate"];

/// A character device. With type and numbers, the runtime does not look for the node on the host.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub struct DeviceNode {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    major: u32,
    minor: u32,
    permissions: &'static str,
}

impl DeviceNode {
    /// The device with this name below `/dev`.
    pub fn new(name: &str, major: u32, minor: u32) -> Self {
        Self { path: format!("/dev/{name}"), kind: "c", major, minor, permissions: "rw" }
    }
}

/// A file of the driver in a container.
#[derive(Debug, Clone, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    container_path: PathBuf,
    host_path: PathBuf,
    options: &'static [&'static str],
}

/// The driver of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// Nodes for every container.
    pub common: Vec<DeviceNode>,
    /// Major number of GPU nodes.
    pub gpu_major: u32,
    /// Major number of capability nodes; none while the driver has no MIG.
    pub caps_major: Option<u32>,
    /// Minor numbers of capability nodes.
    pub caps: CapMinors,
    /// Files for every container.
    pub mounts: BTreeSet<Mount>,
    /// Folder of the libraries in the container.
    pub libraries: Option<PathBuf>,
    /// Version of the driver, from the name of its library.
    pub version: Option<String>,
    /// NVIDIA's hook program.
    pub hook: Option<HookProgram>,
    /// Folder of MPS daemons on the host.
    pub mps: PathBuf,
    /// The libraries that limit memory.
    pub shim: Option<Library>,
}

impl Driver {
    /// Searches the host. `driver_root` is the root of the driver's files on the host.
    pub fn find(config: &Config, driver_root: &Path) -> Self {
        let root = config.mounted(driver_root);
        let node = |name: &str| node(&config.dev_root, name);
        let library = find_library(&root);
        let folder = library.as_ref().and_then(|library| library.parent()?.strip_prefix(&root).ok());
        let version = folder.and_then(|folder| version(&root, folder));
        let files = PROGRAMS.map(PathBuf::from).into_iter().chain(folder.into_iter().flat_map(|f| libraries(&root, f)));
        let files = files.chain(version.iter().flat_map(|version| firmware(&root, version)));
        let files = files.map(|file| (file, FILE_OPTIONS));
        let files = files.chain(SOCKETS.map(|file| (file.into(), SOCKET_OPTIONS)));
        let mount = |(file, options): (PathBuf, _)| {
            let host_path = below(driver_root, &resolve(&root, &file)?);
            // the specification is JSON
            if host_path.to_str().is_none() {
                tracing::warn!(path = %host_path.display(), "file of the driver left out, its path is not UTF-8");
                return None;
            }
            Some(Mount { container_path: Path::new("/").join(file), host_path, options })
        };
        Self {
            common: COMMON_NODES.iter().filter_map(|name| node(name)).collect(),
            gpu_major: node("nvidia0").map_or(GPU_MAJOR, |node| node.major),
            caps_major: node("nvidia-caps/nvidia-cap1").map(|node| node.major).or_else(|| caps_major(&root)),
            caps: CapMinors::read(Path::new("/proc"), &root),
            mounts: files.filter_map(mount).collect(),
            libraries: folder.map(|folder| Path::new("/").join(folder)),
            mps: config.mps_dir.clone(),
            hook: HookProgram::find(config),
            version,
            shim: None,
        }
    }

    /// With these libraries for shares that have a limit.
    #[must_use]
    pub fn with_shim(self, shim: Option<Library>) -> Self {
        Self { shim, ..self }
    }

    /// CUDA's library under its names.
    pub fn cuda(&self) -> impl Iterator<Item = &Mount> {
        self.named(CUDA)
    }

    /// NVML under its names.
    pub fn nvml(&self) -> impl Iterator<Item = &Mount> {
        self.named(NVML)
    }

    /// The files whose names start with this one.
    fn named(&self, start: &'static str) -> impl Iterator<Item = &Mount> {
        let matches = move |mount: &&Mount| {
            let name = mount.container_path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(start))
        };
        self.mounts.iter().filter(matches)
    }
}

impl Mount {
    /// A file of the host in the container, which cannot write to it.
    pub fn file(host_path: &Path, container_path: &Path) -> Self {
        Self { container_path: container_path.to_owned(), host_path: host_path.to_owned(), options: FILE_OPTIONS }
    }

    /// A file of the host that the container may write.
    pub fn writable(host_path: &Path, container_path: &Path) -> Self {
        Self { options: WRITABLE_OPTIONS, ..Self::file(host_path, container_path) }
    }

    /// The same place in the container, with another file of the host.
    #[must_use]
    pub fn replaced_by(&self, host_path: &Path) -> Self {
        Self { host_path: host_path.to_owned(), ..self.clone() }
    }

    /// The file of the host.
    pub fn host_path(&self) -> &Path {
        &self.host_path
    }
}

/// From `/proc/devices` of a simulated driver's root, or of this container: the driver's entries are the same in every container.
fn caps_major(root: &Path) -> Option<u32> {
    let read = |root: &Path| fs::read_to_string(root.join("proc/devices"));
    let devices = read(root).or_else(|_| read(Path::new("/"))).ok()?;
    cap_minors::caps_major(&devices)
}

fn node(dev: &Path, name: &str) -> Option<DeviceNode> {
    let meta = fs::metadata(dev.join(name)).ok()?;
    let number = |n: u64| u32::try_from(n).ok();
    let device = meta.rdev();
    let (major, minor) = (number(nix::sys::stat::major(device))?, number(nix::sys::stat::minor(device))?);
    meta.file_type().is_char_device().then(|| DeviceNode::new(name, major, minor))
}

/// Libraries below the root, under their real names and the names that link to them.
fn libraries(root: &Path, folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join(folder)).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_version = |rest: &str| rest.is_empty() || rest.starts_with('.');
    let of_driver = |name: &String| LIBRARIES.iter().any(|library| name.strip_prefix(library).is_some_and(is_version));
    names.filter(of_driver).map(|name| folder.join(name)).collect()
}

/// The driver's version: NVML's link leads to a file that has it in its name.
fn version(root: &Path, folder: &Path) -> Option<String> {
    let library = resolve(root, &folder.join(format!("{NVML}.1")))?;
    let version = library.file_name()?.to_str()?.strip_prefix(NVML)?.strip_prefix('.')?;
    version.contains('.').then(|| version.to_owned())
}

/// Firmware of the GPUs' system processor, which the driver's programs look for.
fn firmware(root: &Path, version: &str) -> Vec<PathBuf> {
    let folder = Path::new(FIRMWARE).join(version);
    let entries = fs::read_dir(root.join(&folder)).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_gsp = |name: &String| name.strip_suffix(".bin").is_some_and(|name| name.starts_with("gsp"));
    names.filter(is_gsp).map(|name| folder.join(name)).collect()
}

/// The existing file that a path below the root leads to; links are resolved inside the root.
fn resolve(root: &Path, file: &Path) -> Option<PathBuf> {
    let mut at = file.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(root.join(&at)) {
            Ok(target) if target.is_absolute() => target.strip_prefix("/").ok()?.clone_into(&mut at),
            Ok(target) => at = at.parent()?.join(target),
            Err(_) => return root.join(&at).exists().then_some(at),
        }
    }
    None
}
