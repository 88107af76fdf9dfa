//! A simulated node, and programs on shares of its GPU.

#[path = "../../../../integration/nvml-sim/tests/support/built.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
pub mod built;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use gputenancy_ledger::{Limits, Mapped, OnMissing, Usage};
use silicon::{
    Store,
    board::Variant,
    boards,
    install::{Options, install},
};

const MIB: u64 = 1 << 20;
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
            board: boards::load("h100-80gb").unwrap(),
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
        let folder = self.root.path().join(name);
        fs::create_dir(&folder).unwrap();
        let limits = Mapped::<Limits>::create(&folder.join("limits")).unwrap();
        limits.write(&self.gpu(0), memory, CONTEXT, OnMissing::Deny);
        let usage = Mapped::<Usage>::create(&folder.join("usage")).unwrap();
        Share { folder, limits, usage }
    }

    /// `cuda-work` in a container with this folder as its share.
    pub fn program(&self, share: &Path, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/gpu-test/in-container");
        let mut command = Command::new(script);
        let [driver, shim] = ["libcuda_sim.so", "libgputenancy_cuda.so"].map(built::shared);
        command.args([driver, shim]).arg(share).arg(built::binary("cuda-work"));
        command.args(arguments).env("NVSIM_STATE", self.store.dir()).env("NVSIM_DEV", "all").stdout(Stdio::piped());
        command
    }
}
