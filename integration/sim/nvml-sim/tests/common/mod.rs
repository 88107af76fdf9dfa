//! A simulated driver in a folder of its own for each test.

pub mod load;

use std::path::PathBuf;
use std::process::Command;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use silicon::board::Variant;
use silicon::install::{Options, install};
use silicon::machine::Devices;
use silicon::{Store, boards};

use crate::built::{binary, library};

/// A simulated driver.
pub struct Sim {
    /// The node's root.
    pub root: tempfile::TempDir,
    /// Its state.
    pub store: Store,
    /// How it was installed.
    pub options: Options,
}

impl Sim {
    /// Two GPUs without device nodes: every process sees both.
    pub fn new(boards: &str) -> Self {
        Self::with(boards, |_| {})
    }

    /// As [`Sim::new`], installed in another way.
    pub fn with(boards: &str, adapt: impl FnOnce(&mut Options)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut options = Options {
            root: root.path().into(),
            driver_root: "/run/nvidia/driver".into(),
            persistent: "/var/lib/nvsim".into(),
            library: library(),
            cuda: None,
            tool: None,
            node: "node".into(),
            boards: boards::load_list(boards).unwrap(),
            variant: Variant::Normal,
            gpus: 2,
            latency_permille: 0,
            devices: false,
        };
        adapt(&mut options);
        let store = install(&options).unwrap();
        Self { root, store, options }
    }

    /// Folder of the library.
    pub fn library_folder(&self) -> PathBuf {
        self.options.driver().join("usr/lib/x86_64-linux-gnu")
    }

    /// The library, which finds its state by its own place.
    pub fn library(&self) -> PathBuf {
        self.library_folder().join("libnvidia-ml.so.1")
    }

    /// NVML as the agent loads it.
    pub fn nvml(&self) -> Nvml {
        Nvml::builder().lib_path(self.library().as_os_str()).init().unwrap()
    }

    /// NVML's functions as they are.
    pub fn raw(&self) -> NvmlLib {
        // SAFETY: loading the library runs no initialiser of its own.
        let lib = unsafe { NvmlLib::new(self.library()) }.unwrap();
        // SAFETY: the signature is NVML's.
        assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
        lib
    }

    /// From now on processes see only what their device nodes allow.
    pub fn with_nodes(&self) {
        let nodes = |m: &mut silicon::Machine| m.devices = Some(Devices { caps_major: 511 });
        self.store
            .change(|m, _| {
                nodes(m);
                Ok(())
            })
            .unwrap();
    }

    /// Turns MIG mode on, by a reset if need be.
    pub fn mig(&self, gpu: u32) {
        let _ = self.store.change(|m, _| m.set_mig_mode(gpu, true, &[])).unwrap();
        self.store.change(|m, _| m.reset(gpu, &[])).unwrap();
    }

    /// Creates a GPU instance with its widest compute instance and returns its id.
    pub fn partition(&self, gpu: u32, profile: u32) -> u32 {
        let partition = |m: &mut silicon::Machine| {
            let gi = m.create_gi(gpu, profile, None)?.id;
            let ci = widest(&m.gpu(gpu)?.board, profile);
            m.create_ci(gpu, gi, ci, None)?;
            Ok(gi)
        };
        self.store.change(|m, _| partition(m)).unwrap()
    }

    /// A command of the simulator on this driver.
    pub fn nvsim(&self, arguments: &[&str]) -> String {
        let output = self.command("nvsim").arg("--state").arg(self.store.dir()).args(arguments).output().unwrap();
        assert!(output.status.success(), "nvsim {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A program of the simulator that finds this driver.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(binary(name));
        command.env("NVSIM_STATE", self.store.dir()).env("LD_LIBRARY_PATH", self.library_folder());
        command
    }
}

/// The compute-instance profile with all slices and most SMs of a GPU-instance profile.
pub fn widest(board: &silicon::Board, profile: u32) -> u32 {
    let of = board.profile(profile).unwrap();
    silicon::compute_profile::profiles(board, of).into_iter().max_by_key(|p| (p.slices, p.sm)).unwrap().id
}

/// The handle of a GPU.
pub fn gpu(lib: &NvmlLib, index: u32) -> nvmlDevice_t {
    let mut device = std::ptr::null_mut();
    // SAFETY: the signature is NVML's, the pointer is to a handle.
    assert_eq!(unsafe { lib.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device) }, 0);
    device
}
