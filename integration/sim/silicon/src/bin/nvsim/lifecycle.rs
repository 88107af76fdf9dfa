//! Install, run and uninstall.

use std::error::Error;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use silicon::board::Variant;
use silicon::install::{self, Options};
use silicon::{Store, boards, materialize as trees};

use crate::admin::latency;

/// Milliseconds between two reads of the state.
const LOOK: u16 = 200;

/// Options of an installation.
#[derive(Args, Clone)]
pub struct Install {
    /// The node's root as seen from here.
    #[arg(long, default_value = "/")]
    root: PathBuf,
    /// The driver root within the node.
    #[arg(long, default_value = "/run/nvidia/driver")]
    driver_root: PathBuf,
    /// Folder within the node that survives power cycles.
    #[arg(long, default_value = "/var/lib/nvsim")]
    state_persistent: PathBuf,
    /// The simulated libnvidia-ml.so.1.
    #[arg(long, default_value = "/usr/lib/nvsim/libnvidia-ml.so.1")]
    library: PathBuf,
    /// The simulated libcuda.so.1; without this file the driver has none.
    #[arg(long, default_value = "/usr/lib/nvsim/libcuda.so.1")]
    cuda: PathBuf,
    /// Boards of the GPUs: one name, or several joined by `+`, one for each GPU in order and the last one for all further GPUs.
    #[arg(long, default_value = "a100-80gb", env = "NVSIM_BOARD")]
    board: String,
    /// Boards of single nodes in place of `--board`, as `NODE=BOARD,NODE=BOARD`. Those of other nodes are ignored.
    #[arg(long, env = "NVSIM_NODE_BOARDS", value_delimiter = ',', value_parser = node_board)]
    node_boards: Vec<(String, String)>,
    /// Number of GPUs.
    #[arg(long, default_value_t = 2, env = "NVSIM_GPUS", value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,
    /// Latency of driver calls: `real`, `none`, or a factor of real.
    #[arg(long, default_value = "real", env = "NVSIM_LATENCY", value_parser = latency)]
    latency: u32,
    /// Which half of the memory axis is half 1.
    #[arg(long, default_value = "normal", env = "NVSIM_VARIANT")]
    variant: Kind,
    /// Name of the node, which the UUIDs derive from; by default the host's.
    #[arg(long, env = "NODE_NAME")]
    node: Option<String>,
    /// Make no device nodes; every process then sees every GPU.
    #[arg(long)]
    no_devices: bool,
}

/// A text that names no boards of a node.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not of the form NODE=BOARD")]
struct NoNodeBoard(String);

fn node_board(text: &str) -> Result<(String, String), NoNodeBoard> {
    let (node, board) =
        text.split_once('=').filter(|(node, _)| !node.is_empty()).ok_or_else(|| NoNodeBoard(text.to_owned()))?;
    Ok((node.to_owned(), board.to_owned()))
}

/// A board's variant on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Half 1 at start 0.
    Normal,
    /// Half 1 at the middle.
    Flipped,
}

/// Options of `run`.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    install: Install,
    /// File that exists once the driver is installed.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// Uninstall the driver at SIGTERM.
    #[arg(long)]
    uninstall_on_exit: bool,
}

/// Options of `uninstall`.
#[derive(Args)]
pub struct Uninstall {
    /// The node's root as seen from here.
    #[arg(long, default_value = "/")]
    root: PathBuf,
    /// The driver root within the node.
    #[arg(long, default_value = "/run/nvidia/driver")]
    driver_root: PathBuf,
    /// Also while processes use the GPUs.
    #[arg(long)]
    force: bool,
}

/// Options of `materialize`.
#[derive(Args)]
pub struct Materialize {
    /// Where to write `proc` and `sys`.
    #[arg(long)]
    root: PathBuf,
    /// A driver root to complete with the files that NVIDIA's programs look for.
    #[arg(long)]
    driver_root: Option<PathBuf>,
}

impl Install {
    fn options(&self) -> Result<Options, Box<dyn Error>> {
        let host = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        let node = self.node.clone().map_or_else(host, Ok)?;
        let own = self.node_boards.iter().find(|(name, _)| *name == node);
        let boards = boards::load_list(own.map_or(self.board.as_str(), |(_, list)| list.as_str()))?;
        if boards.len() > self.gpus as usize {
            return Err(format!("{} boards for {} GPUs", boards.len(), self.gpus).into());
        }
        Ok(Options {
            root: self.root.clone(),
            driver_root: self.driver_root.clone(),
            persistent: self.state_persistent.clone(),
            library: self.library.clone(),
            cuda: self.cuda.exists().then(|| self.cuda.clone()),
            tool: std::env::current_exe().ok(),
            node,
            boards,
            variant: match self.variant {
                Kind::Normal => Variant::Normal,
                Kind::Flipped => Variant::Flipped,
            },
            gpus: self.gpus,
            latency_permille: self.latency,
            devices: !self.no_devices,
        })
    }
}

/// Installs and prints a summary.
pub fn install(arguments: &Install) -> Result<(Options, Store), Box<dyn Error>> {
    let options = arguments.options()?;
    let store = install::install(&options)?;
    let boards = boards::summary(options.of_gpus().map(|board| board.name.as_str()));
    println!("{boards} simulated, state in {}", store.dir().display());
    Ok((options, store))
}

/// Uninstalls.
pub fn uninstall(arguments: &Uninstall) -> Result<(), Box<dyn Error>> {
    Ok(install::uninstall(&arguments.root, &arguments.driver_root, arguments.force)?)
}

/// Installs and keeps running: the entrypoint of the simulator's `DaemonSet`.
pub fn run(arguments: &Run) -> Result<(), Box<dyn Error>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let ended = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let (options, store) = install(&arguments.install)?;
    let mut followed = None;
    let mut ready = false;
    loop {
        let machine = store.read()?;
        if followed.as_ref() != Some(&machine) {
            install::follow(&options, &machine)?;
            followed = Some(machine);
        }
        if let Some(file) = arguments.ready_file.as_ref().filter(|_| !ready) {
            fs::write(file, "")?;
        }
        ready = true;
        let mut wait = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        if poll(&mut wait, PollTimeout::from(LOOK))? > 0 {
            break;
        }
    }
    if arguments.uninstall_on_exit {
        install::uninstall(&options.root, &options.driver_root, true)?;
    }
    Ok(())
}

/// Writes the trees around NVML.
pub fn materialize(store: &Store, arguments: &Materialize) -> Result<(), Box<dyn Error>> {
    trees::trees(&arguments.root, &*store.read()?)?;
    if let Some(driver) = &arguments.driver_root {
        trees::driver_files(driver)?;
    }
    Ok(())
}
