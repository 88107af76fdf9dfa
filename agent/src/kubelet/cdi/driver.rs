//! What the host's NVIDIA driver offers to containers: device nodes, libraries, programs, sockets.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::CapMinors;
use crate::kubelet::config::{Config, below};

/// Device nodes that every GPU container needs, where the driver has them.
const COMMON_NODES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// Major number of GPU nodes, fixed for NVIDIA in Linux.
const GPU_MAJOR: u32 = 195;
/// Where distributions put the driver's libraries.
const LIBRARY_FOLDERS: [&str; 6] =
    ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64"];
/// The driver's libraries for compute and video, by the start of their file names.
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
/// The driver's programs that are of use inside a container.
const PROGRAMS: [&str; 4] = [
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "usr/bin/nvidia-cuda-mps-control",
    "usr/bin/nvidia-cuda-mps-server",
];
/// Sockets of the driver's services.
const SOCKETS: [&str; 2] = ["run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket"];
/// NVIDIA's hook that refreshes a container's library cache.
const HOOKS: [&str; 3] =
    ["/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook"];
/// Links are followed so far and no further.
const MAX_LINKS: usize = 8;

/// A character device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name below `/dev`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// A file of the driver in a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// Where it lies in the container.
    pub container: PathBuf,
    /// Where it lies on the host.
    pub host: PathBuf,
    /// A socket: programs in the container connect to it.
    pub socket: bool,
}

/// What there is on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// Nodes for every container.
    pub common: Vec<Node>,
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
    /// NVIDIA's hook, as the host sees it.
    pub hook: Option<PathBuf>,
}

impl Driver {
    /// Looks at the host.
    pub fn find(config: &Config) -> Self {
        let root = config.seen(&config.driver_root);
        let node = |name: &str| node(&config.dev, name);
        let folder = LIBRARY_FOLDERS.iter().find(|f| root.join(f).join("libnvidia-ml.so.1").exists());
        let hook = HOOKS.iter().find(|hook| config.seen(Path::new(hook)).exists()).map(PathBuf::from);
        let mut mounts = BTreeSet::new();
        if let Some(folder) = folder {
            mounts.extend(libraries(&root, folder));
        }
        mounts.extend(PROGRAMS.iter().filter_map(|file| mount(&root, file, false)));
        mounts.extend(SOCKETS.iter().filter_map(|file| mount(&root, file, true)));
        // as the host sees them
        let on_host = |mount: Mount| Mount { host: below(&config.driver_root, &mount.host), ..mount };
        Self {
            common: COMMON_NODES.iter().filter_map(|name| node(name)).collect(),
            gpu_major: node("nvidia0").map_or(GPU_MAJOR, |node| node.major),
            caps_major: node("nvidia-caps/nvidia-cap1").map(|node| node.major).or_else(|| caps_major(&root)),
            caps: read_first(&root, "proc/driver/nvidia-caps/mig-minors")
                .map_or_else(CapMinors::default, |t| CapMinors::parse(&t)),
            mounts: mounts.into_iter().map(on_host).collect(),
            libraries: folder.map(|folder| below(Path::new("/"), Path::new(folder))),
            hook,
        }
    }
}

/// A file of the driver root's own `/proc`, or of ours: the driver's entries are the same in every container.
fn read_first(root: &Path, file: &str) -> Option<String> {
    fs::read_to_string(root.join(file)).or_else(|_| fs::read_to_string(Path::new("/").join(file))).ok()
}

fn caps_major(root: &Path) -> Option<u32> {
    let devices = read_first(root, "proc/devices")?;
    devices.lines().find_map(|line| line.trim().strip_suffix(" nvidia-caps")?.trim().parse().ok())
}

fn node(dev: &Path, name: &str) -> Option<Node> {
    let meta = fs::metadata(dev.join(name)).ok()?;
    let number = |n: u64| u32::try_from(n).ok();
    let device = meta.rdev();
    let (major, minor) = (number(nix::sys::stat::major(device))?, number(nix::sys::stat::minor(device))?);
    meta.file_type().is_char_device().then(|| Node { name: name.to_owned(), major, minor })
}

/// Every library under its real name and under the names that link to it.
fn libraries(root: &Path, folder: &str) -> Vec<Mount> {
    let entries = fs::read_dir(root.join(folder)).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ours = names.filter(|name| LIBRARIES.iter().any(|library| is_version_of(name, library)));
    ours.filter_map(|name| mount(root, &format!("{folder}/{name}"), false)).collect()
}

fn is_version_of(name: &str, library: &str) -> bool {
    name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A file of the root, paths relative to it; links are resolved inside it.
fn mount(root: &Path, file: &str, socket: bool) -> Option<Mount> {
    let host = resolve(root, Path::new(file))?;
    Some(Mount { container: below(Path::new("/"), Path::new(file)), host, socket })
}

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
