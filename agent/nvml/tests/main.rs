//! The typed calls on the simulated library.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

use std::path::PathBuf;

use gputenancy_nvml::{
    Activation, ComputeMode, EventSet, FaultKind, MemoryLimit, NO_LIMIT, Nvml, OpenError, RecoveryAction, Silent, code,
    find_library, full_width,
};
use silicon::{
    Board, Store,
    board::Variant,
    boards,
    install::{Options, install},
};

struct Sim {
    root: tempfile::TempDir,
    store: Store,
    board: Board,
}

impl Sim {
    fn new(board: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let board = boards::load(board).unwrap();
        let options = Options {
            root: root.path().into(),
            driver_root: "/drv".into(),
            persistent: "/var/lib/nvsim".into(),
            library: library(),
            cuda: None,
            tool: None,
            node: "node".into(),
            boards: vec![board.clone()],
            variant: Variant::Flipped,
            gpus: 1,
            latency_permille: 0,
            devices: false,
        };
        let store = install(&options).unwrap();
        Self { root, store, board }
    }

    fn open(&self) -> Nvml {
        Nvml::open(find_library(&self.root.path().join("drv")).unwrap(), Box::new(Silent)).unwrap()
    }

    /// Turns MIG on, by a reset if need be.
    fn mig(&self) {
        self.store.change(|machine, _| machine.set_mig_mode(0, true, &[]).map(|_| ())).unwrap();
        self.store.change(|machine, _| machine.reset(0, &[])).unwrap();
    }
}

fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = "libnvml_sim.so";
    [deps.join(name), deps.join("..").join(name)].into_iter().find(|path| path.exists()).expect("cargo builds it")
}

#[test]
fn instances_of_every_profile_are_created_at_every_start_and_destroyed() {
    for key in boards::mig_keys() {
        let sim = Sim::new(key);
        sim.mig();
        let nvml = sim.open();
        let gpu = nvml.gpu(0).unwrap();
        let profiles = gpu.instance_profiles(gpu.memory().unwrap().total_mib).unwrap();
        assert_eq!(profiles.len(), sim.board.profiles.len(), "{key}");
        for profile in &profiles {
            let known = sim.board.profile(profile.id).unwrap();
            assert_eq!((&profile.name, profile.size), (&known.name, known.size), "{key}");
            assert_eq!(profile.starts, known.starts, "{key} {}", profile.name);
            for start in &profile.starts {
                let instance = gpu.create_gpu_instance(profile.id, *start, profile.size).unwrap();
                let info = instance.info().unwrap();
                assert_eq!((info.start, info.size, info.profile_id), (*start, profile.size, profile.id), "{key}");
                let compute_profiles = instance.compute_profiles().unwrap();
                let full = full_width(&compute_profiles, profile.slices).unwrap();
                assert_eq!(full.multiprocessors, profile.multiprocessors, "{key} {}", profile.name);
                let compute = instance.create_compute_instance(full.id).unwrap();
                let device = compute.mig_device(info.id, &compute.info().unwrap()).unwrap().unwrap();
                assert!(device.uuid().unwrap().starts_with("MIG-"), "{key}");
                let listed = gpu.gpu_instances(&profiles).unwrap();
                assert_eq!(listed.len(), 1, "{key} {}", profile.name);
                assert_eq!(listed[0].compute_instances(&compute_profiles).unwrap().len(), 1, "{key}");
                compute.destroy().unwrap();
                instance.destroy().unwrap();
            }
        }
    }
}

#[test]
fn occupied_placement_fails_with_call_code_and_message() {
    let sim = Sim::new("a100-80gb");
    sim.mig();
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    let instance = gpu.create_gpu_instance(9, 4, 4).unwrap();
    let failure = gpu.create_gpu_instance(9, 4, 4).err().unwrap();
    assert_eq!(failure.to_string(), "nvmlDeviceCreateGpuInstanceWithPlacement: Insufficient Resources (23)");
    instance.create_compute_instance(2).unwrap();
    assert_eq!(instance.destroy().unwrap_err().code, code::IN_USE);
}

#[test]
fn mig_mode_of_ampere_is_pending_until_the_reset() {
    let sim = Sim::new("a100-40gb");
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    assert!(gpu.mode_needs_reset().unwrap());
    let Activation::Pending(reason) = gpu.set_mig_mode(true).unwrap() else { panic!("active at once") };
    assert_eq!(reason.code, code::RESET_REQUIRED);
    let mode = gpu.mig_mode().unwrap().unwrap();
    assert_eq!((mode.current, mode.pending), (false, true));
    assert!(gpu.gpu_instances(&gpu.instance_profiles(40_960).unwrap()).unwrap().is_empty());
}

#[test]
fn mig_mode_of_hopper_is_active_at_once() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    assert!(!gpu.mode_needs_reset().unwrap());
    assert_eq!(gpu.set_mig_mode(true).unwrap(), Activation::Done);
    assert!(gpu.mig_mode().unwrap().unwrap().current);
}

#[test]
fn board_without_mig_has_no_mode() {
    let sim = Sim::new("t4-16gb");
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    assert_eq!(gpu.mig_mode().unwrap(), None);
    assert!(gpu.uuid().unwrap().starts_with("GPU-"));
    assert!(gpu.processes().unwrap().is_empty());
    assert_eq!(nvml.gpu_count().unwrap(), 1);
    assert_eq!(nvml.cuda_version().unwrap().split('.').count(), 2);
    let memory = gpu.memory().unwrap();
    assert!(memory.total_mib > 14_000 && memory.reserved_mib.unwrap() > 0, "{memory:?}");
}

#[test]
fn hardware_faults_arrive_as_events() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    let events = EventSet::new(&nvml, &[gpu]).unwrap();
    assert_eq!(events.next(0).unwrap(), None);
    sim.store.change(|machine, _| machine.raise_xid(0, None, 79)).unwrap();
    let event = events.next(0).unwrap().unwrap();
    assert_eq!(event.kind, FaultKind::Xid(79));
    assert_eq!(event.uuid, Some(gpu.uuid().unwrap()));
    assert_eq!(events.next(0).unwrap(), None);
}

#[test]
fn open_without_a_loaded_driver_fails_with_its_code() {
    let sim = Sim::new("h100-80gb");
    let path = find_library(&sim.root.path().join("drv")).unwrap();
    std::fs::remove_dir_all(sim.store.dir()).unwrap();
    let Err(OpenError::Init(failure)) = Nvml::open(path, Box::new(Silent)) else { panic!("it opened") };
    assert_eq!((failure.call, failure.code), ("nvmlInit_v2", code::DRIVER_NOT_LOADED));
    assert!(find_library(sim.root.path()).is_none());
}

#[test]
fn compute_mode_is_set_and_read_and_refused_under_mig() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.open();
    let gpu = nvml.gpu(0).unwrap();
    assert_eq!(gpu.compute_mode(), Ok(ComputeMode::Default));
    for mode in [ComputeMode::ExclusiveProcess, ComputeMode::Other(2), ComputeMode::Default] {
        gpu.set_compute_mode(mode).unwrap();
        assert_eq!(gpu.compute_mode(), Ok(mode));
    }
    assert_eq!(gpu.set_compute_mode(ComputeMode::Other(9)).unwrap_err().code, code::INVALID_ARGUMENT);
    assert_eq!(gpu.before_volta(), Ok(false));
    sim.mig();
    assert_eq!(gpu.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap_err().code, code::NOT_SUPPORTED);
}

/// The simulated driver has the limits from now on.
fn with_memory_limits(sim: &Sim) {
    sim.store
        .change(|machine, _| {
            machine.memory_limits.supported = true;
            Ok(())
        })
        .unwrap();
}

#[test]
fn memory_limits_are_set_read_and_cleared_where_the_driver_has_them() {
    let sim = Sim::new("a100-80gb");
    let nvml = sim.open();
    let (gpu, cgroup) = (nvml.gpu(0).unwrap(), silicon::cgroup::hierarchy());
    assert_eq!(gpu.memory_limit(&cgroup), Ok(None), "an older driver");
    assert_eq!(gpu.set_memory_limit(&cgroup, 0, 1 << 30), Ok(None));
    with_memory_limits(&sim);
    assert_eq!(gpu.memory_limit(&cgroup), Ok(Some(MemoryLimit::NONE)));
    assert_eq!(gpu.set_memory_limit(&cgroup, 2, 1).unwrap_err().code, code::INVALID_ARGUMENT);
    assert_eq!(gpu.set_memory_limit(&cgroup, 0, 1 << 30), Ok(Some(())));
    assert_eq!(gpu.memory_limit(&cgroup), Ok(Some(MemoryLimit { soft: 0, hard: 1 << 30, used: 0 })));
    assert_eq!(gpu.set_memory_limit(&cgroup, 0, NO_LIMIT), Ok(Some(())));
    assert_eq!(gpu.memory_limit(&cgroup), Ok(Some(MemoryLimit::NONE)));
    assert!(gpu.memory_limit("/sys/fs/cgroup/not/there".as_ref()).is_err());
    assert!(gpu.memory_limit("/sys\0".as_ref()).is_err());
}

#[test]
fn library_without_the_functions_has_no_memory_limits() {
    let sim = Sim::new("a100-80gb");
    with_memory_limits(&sim);
    // as libraries before version 615: the names of the two functions are not among the exported ones
    let library = sim.root.path().join("old.so");
    let mut content = std::fs::read(find_library(&sim.root.path().join("drv")).unwrap()).unwrap();
    for name in [b"nvmlDeviceGetMemoryLimits_v1\0", b"nvmlDeviceSetMemoryLimits_v1\0"] {
        let windows = content.windows(name.len()).enumerate();
        let found: Vec<usize> = windows.filter(|(_, window)| **window == name[..]).map(|(at, _)| at).collect();
        assert!(!found.is_empty());
        for at in found {
            content[at] = b'x';
        }
    }
    std::fs::write(&library, content).unwrap();
    // the state is found by the place of the library, so the variable names it
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "without_the_functions", "--nocapture"])
        .env("NVSIM_STATE", sim.store.dir())
        .env("OLD_LIBRARY", &library)
        .status();
    assert!(run.unwrap().success());
}

/// The process of the test above.
#[test]
fn without_the_functions() {
    let Some(library) = std::env::var_os("OLD_LIBRARY") else { return };
    let nvml = Nvml::open(PathBuf::from(library), Box::new(Silent)).unwrap();
    let (gpu, cgroup) = (nvml.gpu(0).unwrap(), silicon::cgroup::hierarchy());
    assert_eq!(gpu.memory_limit(&cgroup), Ok(None));
    assert_eq!(gpu.set_memory_limit(&cgroup, 0, 1 << 30), Ok(None));
}

#[test]
fn recovery_action_is_what_the_driver_says_and_none_of_an_old_driver() {
    use RecoveryAction::{DrainAndReset, DrainP2P, GpuReset, NodeReboot, Other};

    let sim = Sim::new("h100-80gb");
    let nvml = sim.open();
    let read = |action: Option<u32>| {
        sim.store.change(|machine, _| machine.set_recovery_action(0, action)).unwrap();
        nvml.gpu(0).unwrap().recovery_action().unwrap()
    };
    assert_eq!((read(Some(0)), read(None)), (Some(RecoveryAction::None), None));
    let found = [1, 2, 3, 4, 7].map(|number| read(Some(number)).unwrap());
    assert_eq!(found, [GpuReset, NodeReboot, DrainP2P, DrainAndReset, Other(7)]);
    sim.store.change(|machine, _| machine.reset(0, &[])).unwrap();
    assert_eq!(nvml.gpu(0).unwrap().recovery_action(), Ok(Some(RecoveryAction::None)));
}
