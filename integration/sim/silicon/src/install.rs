//! Installs and uninstalls the simulated driver on a node.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::board::{Board, Variant};
use crate::machine::{DRIVER_VERSION, Devices, Machine};
use crate::store::{self, Store};
use crate::{activity, boards, clients, engines, history, materialize, nodes, paths, physical};

/// The CDI kind whose device `state` gives a container the state of the simulator.
pub const CDI_KIND: &str = "gputenancy.io/simulator";
const CDI_FILE: &str = "var/run/cdi/gputenancy-simulator.json";
/// CUDA's library.
const CUDA: &str = "libcuda.so";
const INFOROM: &str = "inforom.json";
/// The driver's programs, which are all the same file.
const PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Why the driver cannot be installed or uninstalled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is a real driver.
    #[error("this node has a real NVIDIA driver ({0}); the simulator is not installed next to it")]
    RealDriver(String),
    /// Another machine is installed.
    #[error("a simulator with {0} is installed already; uninstall it first")]
    Different(String),
    /// Processes use the GPUs.
    #[error("{0} process(es) use the simulated GPUs")]
    InUse(usize),
    /// No library to install.
    #[error("no library at {0}; name it with --library")]
    NoLibrary(PathBuf),
    /// A file operation failed.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What to install, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's root as this process sees it.
    pub root: PathBuf,
    /// The driver root within the node.
    pub driver_root: PathBuf,
    /// Folder of the `InfoROM` within the node.
    pub persistent: PathBuf,
    /// The library to install.
    pub library: PathBuf,
    /// The simulated CUDA, if the driver is to have it.
    pub cuda: Option<PathBuf>,
    /// The program that becomes the driver root's `nvidia-smi`, `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`.
    pub tool: Option<PathBuf>,
    /// Name of the node.
    pub node: String,
    /// The boards of the GPUs, as [`boards::of_gpu`] assigns them.
    pub boards: Vec<Board>,
    /// Which variant of the boards.
    pub variant: Variant,
    /// Number of GPUs.
    pub gpus: u32,
    /// Thousandths of real latency.
    pub latency_permille: u32,
    /// Whether to make device nodes; without them every process sees every GPU.
    pub devices: bool,
}

impl Options {
    /// The driver root as this process sees it.
    pub fn driver(&self) -> PathBuf {
        inside(&self.root, &self.driver_root)
    }

    /// The state folder as this process sees it.
    pub fn state(&self) -> PathBuf {
        self.driver().join(paths::STATE_IN_ROOT)
    }

    /// The `/dev` of the node.
    pub fn dev(&self) -> PathBuf {
        self.root.join("dev")
    }

    /// The board of each GPU.
    pub fn of_gpus(&self) -> impl Iterator<Item = &Board> {
        (0..self.gpus).filter_map(move |index| boards::of_gpu(&self.boards, index))
    }

    /// The `InfoROM`'s file as this process sees it.
    pub fn inforom(&self) -> PathBuf {
        inside(&self.root, &self.persistent).join(INFOROM)
    }
}

/// Installs the driver, or the missing parts of an existing installation.
pub fn install(options: &Options) -> Result<Store, Error> {
    refuse_real_driver(options)?;
    let store = Store::new(options.state());
    let machine = match store.read() {
        Ok(known) => {
            let keys = || known.gpus.iter().map(|gpu| gpu.board.key.as_str());
            if !keys().eq(options.of_gpus().map(|board| board.key.as_str())) {
                return Err(Error::Different(boards::summary(keys())));
            }
            (*known).clone()
        }
        // a state of another version of the simulator cannot be read; its GPUs are as after a power cycle
        Err(store::Error::Missing(..) | store::Error::Broken(..)) => power_on(options)?,
        Err(e) => return Err(e.into()),
    };
    let driver = options.driver();
    at(&options.library, Path::metadata).map_err(|_| Error::NoLibrary(options.library.clone()))?;
    let folder = driver.join(paths::LIBRARY_FOLDER);
    at(&folder, fs::create_dir_all)?;
    let versioned = format!("libnvidia-ml.so.{DRIVER_VERSION}");
    copy(&options.library, &folder.join(&versioned), 0o644)?;
    link(&versioned, &folder.join("libnvidia-ml.so.1"))?;
    if let Some(cuda) = &options.cuda {
        let versioned = format!("{CUDA}.{DRIVER_VERSION}");
        copy(cuda, &folder.join(&versioned), 0o644)?;
        link(&versioned, &folder.join(format!("{CUDA}.1")))?;
    }
    if let Some(tool) = &options.tool {
        let bin = driver.join("usr/bin");
        at(&bin, fs::create_dir_all)?;
        for program in PROGRAMS {
            copy(tool, &bin.join(program), 0o755)?;
        }
    }
    if options.devices {
        at(&options.dev(), |dev| make_devices(dev, &machine))?;
    }
    at(&driver, |driver| materialize::proc_files(driver, &machine))?;
    let spec = options.root.join(CDI_FILE);
    at(&spec, |spec| write_json(spec, &cdi_spec(&options.driver_root.join(paths::STATE_IN_ROOT))))?;
    // the state is written last: without it NVML returns that no driver is loaded
    if store.read().is_err() {
        store.create(&machine)?;
    }
    store.change(|machine, _| {
        machine.latency_permille = options.latency_permille;
        Ok(())
    })?;
    Ok(store)
}

/// Removes everything that [`install`] writes except the `InfoROM`.
pub fn uninstall(root: &Path, driver_root: &Path, force: bool) -> Result<(), Error> {
    let driver = inside(root, driver_root);
    let state = driver.join(paths::STATE_IN_ROOT);
    let live = Store::new(&state).clients().and_then(clients::Clients::live).map_or(0, |live| live.len());
    if live > 0 && !force {
        return Err(Error::InUse(live));
    }
    let folder = driver.join(paths::LIBRARY_FOLDER);
    let programs = PROGRAMS.map(|program| driver.join("usr/bin").join(program));
    let files = [
        state.join("state.json"),
        root.join(CDI_FILE),
        folder.join("libnvidia-ml.so.1"),
        folder.join(format!("libnvidia-ml.so.{DRIVER_VERSION}")),
        folder.join(format!("{CUDA}.1")),
        folder.join(format!("{CUDA}.{DRIVER_VERSION}")),
    ];
    files.iter().chain(&programs).try_for_each(|file| at(file, nodes::remove_if_there))?;
    for folder in [&state, &driver.join("proc")] {
        match fs::remove_dir_all(folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::Io(folder.clone(), e)),
            _ => {}
        }
    }
    for folder in ["usr/lib/x86_64-linux-gnu", "usr/lib", "usr/bin", "usr", "run", ""] {
        // folders with files of others remain
        let _ = fs::remove_dir(driver.join(folder));
    }
    at(&root.join("dev"), remove_devices)
}

/// Updates the node's device nodes and `InfoROM` from the state.
pub fn follow(options: &Options, machine: &Machine) -> Result<(), Error> {
    if options.devices {
        at(&options.dev(), |dev| nodes::sync_caps(dev, machine))?;
    }
    let file = options.inforom();
    let modes = serde_json::to_vec(&machine.inforom_modes()).map_err(|e| Error::Io(file.clone(), e.into()))?;
    if fs::read(&file).ok().as_ref() != Some(&modes) {
        at(&file, |file| store::replace(file, &modes))?;
    }
    Ok(())
}

fn power_on(options: &Options) -> Result<Machine, Error> {
    let file = options.inforom();
    let modes: Vec<bool> = fs::read(&file).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    if let Some(folder) = file.parent() {
        at(folder, fs::create_dir_all)?;
    }
    let Options { node, boards, variant, gpus, .. } = options;
    let mut machine = Machine::with_boards(node, boards, *variant, *gpus, &modes);
    if options.devices {
        let majors = free_majors()?;
        machine.devices = majors.first().map(|&caps_major| Devices { caps_major });
    }
    Ok(machine)
}

fn refuse_real_driver(options: &Options) -> Result<(), Error> {
    let version = Path::new("/proc/driver/nvidia/version");
    if let Ok(text) = fs::read_to_string(version)
        && !text.contains(materialize::SIMULATED)
    {
        return Err(Error::RealDriver(version.display().to_string()));
    }
    if options.devices && nodes::foreign(&options.dev()) {
        return Err(Error::RealDriver(options.dev().join("nvidiactl").display().to_string()));
    }
    Ok(())
}

fn free_majors() -> Result<Vec<u32>, Error> {
    let devices = at(Path::new("/proc/devices"), fs::read_to_string)?;
    Ok(nodes::free_majors(&devices))
}

fn make_devices(dev: &Path, machine: &Machine) -> io::Result<()> {
    let Some(Devices { caps_major }) = machine.devices else { return Ok(()) };
    let caps = dev.join(nodes::CAPS);
    fs::create_dir_all(&caps)?;
    fs::write(dev.join(nodes::MARKER), "gputenancy simulator\n")?;
    for gpu in &machine.gpus {
        nodes::make(&dev.join(format!("nvidia{}", gpu.index)), (nodes::NVIDIA_MAJOR, gpu.index), 0o666)?;
    }
    // the UVM major is dynamic too: one below the capabilities'
    let uvm = caps_major - 1;
    for (name, numbers) in [
        ("nvidiactl", (nodes::NVIDIA_MAJOR, 255)),
        ("nvidia-modeset", (nodes::NVIDIA_MAJOR, 254)),
        ("nvidia-uvm", (uvm, 0)),
        ("nvidia-uvm-tools", (uvm, 1)),
    ] {
        nodes::make(&dev.join(name), numbers, 0o666)?;
    }
    nodes::sync_caps(dev, machine)
}

fn remove_devices(dev: &Path) -> io::Result<()> {
    if !dev.join(nodes::MARKER).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dev)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().and_then(|n| n.strip_prefix("nvidia"));
        let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
        if ours.is_some_and(|rest| number(rest) || ["ctl", "-modeset", "-uvm", "-uvm-tools"].contains(&rest)) {
            nodes::remove_if_there(&entry.path())?;
        }
    }
    fs::remove_dir_all(dev.join(nodes::CAPS))
}

/// CDI specification: mounts the state read-only, and the files that processes write.
fn cdi_spec(state: &Path) -> serde_json::Value {
    let mount = |file: &str, access: &str| {
        json!({
            "hostPath": state.join(file),
            "containerPath": Path::new(paths::STATE_IN_CONTAINER).join(file),
            "options": [access, "nosuid", "nodev", "noexec", "bind"],
        })
    };
    let mut folder = mount("", "ro");
    if let Some(map) = folder.as_object_mut() {
        map.insert("hostPath".into(), json!(state));
        map.insert("containerPath".into(), json!(paths::STATE_IN_CONTAINER));
    }
    let files =
        [clients::FILE, history::FILE, engines::FILE, activity::FILE, physical::FILE].map(|file| mount(file, "rw"));
    let mounts: Vec<_> = [folder].into_iter().chain(files).collect();
    json!({
        "cdiVersion": "0.6.0",
        "kind": CDI_KIND,
        "devices": [{
            "name": "state",
            "containerEdits": { "mounts": mounts },
        }],
    })
}

fn write_json(path: &Path, value: &serde_json::Value) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    store::replace(path, &serde_json::to_vec_pretty(value)?)
}

/// Replaces a file atomically; an equal one is kept, because processes may have it mapped.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Error> {
    let content = at(from, fs::read)?;
    if fs::read(to).ok().as_ref() == Some(&content) {
        return Ok(());
    }
    at(to, |to| store::replace(to, &content))?;
    at(to, |to| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
}

fn link(target: &str, path: &Path) -> Result<(), Error> {
    if fs::read_link(path).is_ok_and(|t| t == Path::new(target)) {
        return Ok(());
    }
    at(path, nodes::remove_if_there)?;
    at(path, |path| symlink(target, path))
}

/// A path of the node below the node's root.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn at<'p, T>(path: &'p Path, f: impl FnOnce(&'p Path) -> io::Result<T>) -> Result<T, Error> {
    f(path).map_err(|e| Error::Io(path.into(), e))
}
