//! A node with the simulated driver, and programs in containers on it.
#![allow(dead_code, reason = "the benchmarks use a part")]

pub mod arbitrating;
#[path = "../../../../integration/sim/nvml-sim/tests/support/built.rs"]
pub mod built;
pub mod calls;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use gputenancy_ledger::{Limits, Mapped, OnMissing, Usage};
use silicon::{
    Store,
    board::Variant,
    boards,
    install::{Options, install},
};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// Bytes that the agent reserves for a context.
pub const CONTEXT: u64 = 640 * MIB;
/// A node with two GPUs without device nodes.
pub struct Node {
    pub root: tempfile::TempDir,
    pub store: Store,
}

/// A container's share of a GPU.
pub struct Share {
    pub folder: PathBuf,
    pub limits: Mapped<Limits>,
    pub usage: Mapped<Usage>,
}

impl Node {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            root: root.path().into(),
            driver_root: "/drv".into(),
            persistent: "/var/lib/nvsim".into(),
            library: built::shared("libcuda_sim.so"),
            cuda: None,
            tool: None,
            node: "node".into(),
            boards: vec![boards::load("h100-80gb").unwrap()],
            variant: Variant::Normal,
            gpus: 2,
            latency_permille: 0,
            devices: false,
        };
        let store = install(&options).unwrap();
        Self { root, store }
    }

    pub fn gpu(&self, index: usize) -> String {
        self.store.read().unwrap().gpus[index].uuid.clone()
    }

    /// A share of GPU 0.
    pub fn share(&self, name: &str, memory: u64) -> Share {
        self.share_with(name, memory, CONTEXT)
    }

    /// A share of GPU 0 that counts so many bytes for a context.
    pub fn share_with(&self, name: &str, memory: u64, context: u64) -> Share {
        let folder = self.root.path().join(name);
        fs::create_dir(&folder).unwrap();
        let limits = Mapped::<Limits>::create(&folder.join("limits")).unwrap();
        limits.write(&self.gpu(0), memory, context, OnMissing::Deny);
        let usage = Mapped::<Usage>::create(&folder.join("usage")).unwrap();
        Share { folder, limits, usage }
    }

    /// `cuda-work` in a container with this folder as its share.
    pub fn program(&self, share: &Path, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/gpu/in-container");
        let mut command = Command::new(script);
        command.args(["libcuda_sim.so", "libgputenancy_cuda.so"].map(library)).arg(share);
        command.args(std::env::var("GPUTENANCY_RUNNER").iter().flat_map(|words| words.split(' ')));
        command.arg(other_build().map_or_else(|| built::binary("cuda-work"), |folder| folder.join("cuda-work")));
        command.args(arguments).env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all").stdout(Stdio::piped());
        command
    }

    pub fn run(&self, share: &Share, arguments: &[&str]) -> String {
        let output = self.program(&share.folder, arguments).output().unwrap();
        assert!(output.status.success(), "cuda-work {arguments:?}: {}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Allocates blocks of 64 MiB.
    pub fn allocate(&self, share: &Share, more: &[&str]) -> String {
        self.run(share, &[&["allocate"], more].concat())
    }

    /// A program that holds what it got until it is killed.
    pub fn holder(&self, share: &Share, count: &str) -> Holder {
        let arguments = ["allocate", "--count", count, "--hold"];
        let mut child = self.program(&share.folder, &arguments).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("granted={count} code=0\n"));
        Holder { child, _output: output }
    }
}

/// A folder with the libraries and programs of another build, such as one for another processor, which `GPUTENANCY_RUNNER` runs then.
fn other_build() -> Option<PathBuf> {
    std::env::var_os("GPUTENANCY_BUILD").map(PathBuf::from)
}

/// The library that programs in containers load.
pub fn library(name: &str) -> PathBuf {
    other_build().map_or_else(|| built::shared(name), |folder| folder.join(name))
}

/// A program that holds memory.
pub struct Holder {
    child: Child,
    /// Open until it ends, so that it can print.
    _output: BufReader<ChildStdout>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
