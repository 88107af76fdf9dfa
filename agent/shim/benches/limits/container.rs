//! This program in a container: with a share of a GPU and the shim, or with the driver's library alone.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{
    INSIDE,
    support::{Node, Share, built, library},
};

/// Functions that return at once, in front of the simulated driver: what a call takes is then the shim's. The others are the simulated driver's.
const EMPTY: &str = r"
#include <stddef.h>
static unsigned long long address = 0x7f0000000000ull;
int cuCtxGetCurrent(void **context) { *context = (void *)0x1000; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) { *pointer = address += 1024; return 0; }
int cuMemFree_v2(unsigned long long pointer) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = 1ull << 36; return 0; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x)
{ return 0; }
";

/// The libraries of a driver.
pub struct Driver {
    file: PathBuf,
    /// Where the linker finds it as `libcuda.so.1`.
    folder: PathBuf,
}

impl Driver {
    /// The simulated one.
    pub fn simulated(node: &Node) -> Self {
        Self::of(node, "simulated", built::shared("libcuda_sim.so"))
    }

    /// The simulated one behind empty functions.
    pub fn empty(node: &Node) -> Self {
        Self::compiled(node, "empty", EMPTY)
    }

    /// The simulated one behind functions in C.
    pub fn compiled(node: &Node, name: &str, text: &str) -> Self {
        let [source, file] = ["c", "so"].map(|kind| node.root.path().join(format!("lib{name}.{kind}")));
        fs::write(&source, text).unwrap();
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,--no-as-needed", "-o"]);
        let built = compiler.arg(&file).arg(&source).arg(built::shared("libcuda_sim.so")).status().unwrap();
        assert!(built.success(), "cc");
        Self::of(node, name, file)
    }

    fn of(node: &Node, name: &str, file: PathBuf) -> Self {
        let folder = node.root.path().join(format!("driver-{name}"));
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&file, folder.join("libcuda.so.1")).unwrap();
        Self { file, folder }
    }

    /// Begins to run this program; with a share, in its container.
    pub fn begin(&self, node: &Node, share: Option<&Share>, arguments: &[&str]) -> Child {
        self.command(node, share, &[], arguments).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A command that runs this program, or `runner` with it; with a share, in its container.
    pub fn command(&self, node: &Node, share: Option<&Share>, runner: &[&OsString], arguments: &[&str]) -> Command {
        let this = std::env::current_exe().unwrap().into_os_string();
        let mut words = runner.iter().copied().chain([&this]);
        let mut command = if let Some(share) = share {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/tests/gpu/in-container");
            let mut command = Command::new(script);
            command.arg(&self.file).arg(library("libgputenancy_cuda.so")).arg(&share.folder).args(words);
            command
        } else {
            let mut command = Command::new(words.next().unwrap());
            command.args(words).env("LD_LIBRARY_PATH", &self.folder);
            command
        };
        command.arg(INSIDE).args(arguments).env("NVSIM_STATE", node.store.dir()).env("NVSIM_DEV", "all");
        command
    }

    /// Runs it, and returns the number that it prints.
    pub fn run(&self, node: &Node, share: Option<&Share>, arguments: &[&str]) -> f64 {
        number(self.begin(node, share, arguments))
    }
}

/// Waits for a program, and returns the number that it prints.
pub fn number(program: Child) -> f64 {
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text.trim().parse().unwrap_or_else(|_| panic!("no number: {text}"))
}
