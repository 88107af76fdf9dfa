//! The library through nvml-wrapper, as the agent uses it.

use crate::built;
use crate::common::Sim;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use silicon::{Code, boards};

#[test]
fn wrapper_lists_gpus_with_name_and_memory() {
    for key in boards::keys() {
        let sim = Sim::new(key);
        let nvml = sim.nvml();
        assert_eq!(nvml.device_count().unwrap(), 2);
        let gpu = nvml.device_by_index(1).unwrap();
        assert_eq!(gpu.name().unwrap(), sim.options.boards[0].name);
        assert_eq!(gpu.memory_info().unwrap().total >> 20, sim.options.boards[0].memory_mib);
        assert_eq!(gpu.minor_number().unwrap(), 1);
        assert_eq!(gpu.pci_info().unwrap().bus_id, "00000000:0F:00.0");
        assert_eq!(nvml.device_by_uuid(gpu.uuid().unwrap()).unwrap().index().unwrap(), 1);
        assert_eq!(nvml.device_by_pci_bus_id("0000:0f:00.0").unwrap().index().unwrap(), 1);
    }
}

#[test]
fn each_gpu_of_a_mixed_node_has_its_own_board() {
    let sim = Sim::with("a100-80gb+h100-94gb+t4-16gb", |options| options.gpus = 3);
    let nvml = sim.nvml();
    let found = [0, 1, 2].map(|index| {
        let gpu = nvml.device_by_index(index).unwrap();
        let capability = gpu.cuda_compute_capability().unwrap();
        let smallest = gpu.profile_info(0).ok().map(|profile| profile.memory_size_mb);
        let memory = gpu.memory_info().unwrap().total >> 20;
        let pci = gpu.pci_info().unwrap().pci_device_id;
        (gpu.name().unwrap(), memory, pci, capability.major, gpu.gpm_support().unwrap(), smallest)
    });
    let (a100, h100, t4) = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 NVL", "Tesla T4");
    assert_eq!(found[0], (a100.to_owned(), 81_920, 0x20B2_10DE, 8, false, Some(9728)));
    assert_eq!(found[1], (h100.to_owned(), 95_830, 0x2321_10DE, 9, true, Some(11_008)));
    assert_eq!(found[2], (t4.to_owned(), 15_360, 0x1EB8_10DE, 7, false, None));
    sim.mig(0);
    sim.mig(1);
    for gpu in [0, 1] {
        sim.partition(gpu, 19);
    }
    let names = [0, 1].map(|index| {
        let gpu = nvml.device_by_index(index).unwrap();
        gpu.mig_device_by_index(0).unwrap().name().unwrap()
    });
    assert_eq!(names, [format!("{a100} MIG 1g.10gb"), format!("{h100} MIG 1g.12gb")]);
    let shown: serde_json::Value = serde_json::from_str(&sim.nvsim(&["show", "-o", "json"])).unwrap();
    assert_eq!(shown["board"], "a100-80gb+h100-94gb+t4-16gb");
    assert_eq!(shown["gpus"][1]["board"], "h100-94gb");
    assert_eq!(shown["gpus"][1]["name"], h100);
    let text = sim.nvsim(&["show"]);
    assert!(text.contains(&format!("GPU 0: {a100} GPU-")) && text.contains(&format!("GPU 2: {t4} GPU-")), "{text}");
}

#[test]
fn wrapper_lists_every_profile_of_every_board() {
    for key in boards::mig_keys() {
        let sim = Sim::new(key);
        let nvml = sim.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let ids: Vec<u32> = (0..18).filter_map(|n| gpu.profile_info(n).ok()).map(|p| p.id).collect();
        let mut expected = sim.options.boards[0].profiles.clone();
        expected.sort_by_key(|p| p.nvml_enum);
        assert_eq!(ids, expected.iter().map(|p| p.id).collect::<Vec<_>>(), "{key}");
    }
}

#[test]
fn mig_mode_needs_a_reset_on_ampere_only() {
    for (board, activation, current) in [("a100-80gb", 16, 0), ("h100-80gb", 0, 1)] {
        let sim = Sim::new(board);
        let nvml = sim.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.set_mig_mode(true).unwrap(), activation);
        assert_eq!((gpu.mig_mode().unwrap().current, gpu.mig_mode().unwrap().pending), (current, 1));
        assert_eq!(gpu.mig_device_count().unwrap(), 7 * current);
        sim.nvsim(&["reset", "0"]);
        assert_eq!(gpu.mig_mode().unwrap().current, 1);
    }
}

#[test]
fn mig_devices_have_indices_names_and_attributes() {
    let sim = Sim::new("h100-80gb");
    sim.mig(0);
    let gone = sim.partition(0, 19);
    sim.partition(0, 9);
    sim.store.change(|m, _| m.destroy_ci(0, gone, 0, &[])).unwrap();
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.mig_device_by_index(0), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.mig_device_by_index(6), Err(NvmlError::NotFound)));
    let mig = gpu.mig_device_by_index(1).unwrap();
    assert_eq!(mig.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    assert_eq!(mig.memory_info().unwrap().total, 40448 << 20);
    let attributes = mig.attributes().unwrap();
    assert_eq!((attributes.multiprocessor_count, attributes.memory_size_mb), (60, 40448));
    let uuid = mig.uuid().unwrap();
    assert!(uuid.starts_with("MIG-"));
    assert_eq!(nvml.device_by_uuid(uuid).unwrap().name().unwrap(), mig.name().unwrap());
    assert_eq!(mig.mig_parent_device().unwrap().uuid().unwrap(), gpu.uuid().unwrap());
}

#[test]
fn xid_reaches_every_registered_event_set() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    sim.nvsim(&["xid", "1", "13"]);
    let register = || gpu.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap()).unwrap();
    let sets = [register(), register()];
    assert!(matches!(sets[0].wait(0), Err(NvmlError::Timeout)));
    sim.nvsim(&["xid", "1", "79"]);
    sim.nvsim(&["xid", "0", "48"]);
    for set in &sets {
        let event = set.wait(5000).unwrap();
        assert_eq!(event.device.uuid().unwrap(), gpu.uuid().unwrap());
        assert!(format!("{:?}", event.event_data).contains("79"));
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)), "the other GPU is not registered");
    }
}

#[test]
fn lost_gpu_does_not_affect_the_other() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    sim.nvsim(&["lose", "0"]);
    assert!(matches!(gpu.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    nvml.device_by_index(1).unwrap().name().unwrap();
    sim.nvsim(&["lose", "0", "--restore"]);
    gpu.name().unwrap();
}

#[test]
fn ecc_errors_are_counted() {
    let sim = Sim::new("h100-80gb");
    sim.nvsim(&["ecc", "0", "2"]);
    let nvml = sim.nvml();
    let errors = |index: u32| {
        let gpu = nvml.device_by_index(index).unwrap();
        gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).unwrap()
    };
    assert_eq!((errors(0), errors(1)), (2, 0));
}

#[test]
fn idle_board_has_plausible_readings() {
    let sim = Sim::new("a100-80gb");
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!((20..60).contains(&gpu.temperature(TemperatureSensor::Gpu).unwrap()));
    assert!((20_000..100_000).contains(&gpu.power_usage().unwrap()));
    assert_eq!(gpu.utilization_rates().unwrap().gpu, 0);
    let energy = || gpu.total_energy_consumption().unwrap();
    let (before, after) = (energy(), energy());
    assert!(before > 0 && after >= before);
    sim.mig(0);
    assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
}

#[test]
fn injected_fault_hits_call_and_gpu() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    let (first, second) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
    sim.nvsim(&["inject", "--call", "nvmlDeviceGetName", "--code", "15", "--nth", "2", "--gpu", "1"]);
    first.name().unwrap();
    second.name().unwrap();
    first.name().unwrap();
    assert!(matches!(second.name(), Err(NvmlError::GpuLost)));
    second.name().unwrap();
    sim.nvsim(&["inject", "--call", "any", "--code", "999", "--times", "0"]);
    assert!(matches!(first.name(), Err(NvmlError::Unknown)));
    sim.nvsim(&["clear-faults"]);
    first.name().unwrap();
}

#[test]
fn trace_lists_calls_in_order() {
    let sim = Sim::new("h100-80gb");
    let nvml = sim.nvml();
    sim.nvsim(&["trace", "start"]);
    let gpu = nvml.device_by_index(0).unwrap();
    gpu.set_mig_mode(true).unwrap();
    let trace = sim.nvsim(&["trace", "list"]);
    let calls: Vec<&str> = trace.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(calls, ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceSetMigMode"]);
    sim.nvsim(&["trace", "stop"]);
    gpu.name().unwrap();
}

#[test]
fn nvidia_smi_resets_and_lists() {
    let sim = Sim::with("a100-80gb", |options| options.tool = Some(built::binary("nvsim")));
    let nvml = sim.nvml();
    nvml.device_by_index(1).unwrap().set_mig_mode(true).unwrap();
    let smi = |arguments: &[&str]| {
        let tool = sim.options.driver().join("usr/bin/nvidia-smi");
        std::process::Command::new(tool).args(arguments).env_remove("NVSIM_STATE").output().unwrap()
    };
    assert!(smi(&["-r", "-i", "1"]).status.success());
    assert_eq!(nvml.device_by_index(1).unwrap().mig_mode().unwrap().current, 1);
    sim.partition(1, 9);
    let list = String::from_utf8(smi(&["-L"]).stdout).unwrap();
    assert!(list.contains("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-"), "{list}");
    assert!(list.contains("MIG 3g.40gb"), "{list}");
    let table = String::from_utf8(smi(&[]).stdout).unwrap();
    assert!(table.contains("0MiB / 81920MiB") && table.contains("MIG 0 3g.40gb"), "{table}");
    assert!(table.contains("No running processes found"), "{table}");
    let query = smi(&["--query-gpu=index,memory.total,utilization.gpu", "--format=csv,noheader", "-i", "0"]);
    assert_eq!(String::from_utf8(query.stdout).unwrap(), "0, 81920 MiB, 0 %\n");
    let fields = "--query-gpu=power.draw,temperature.gpu,mig.mode.current,compute_mode,persistence_mode,power.limit";
    let query = smi(&[fields, "--format=csv", "-i", "1"]);
    let header = "power.draw [W], temperature.gpu, mig.mode.current, compute_mode, persistence_mode, power.limit [W]";
    let values = "62.00 W, 34, Enabled, Default, Disabled, [N/A]";
    assert_eq!(String::from_utf8(query.stdout).unwrap(), format!("{header}\n{values}\n"));
    assert_eq!(smi(&["--query-gpu=nothing", "--format=csv"]).status.code(), Some(2));
}

#[test]
fn change_by_another_process_is_visible() {
    let sim = Sim::new("a100-80gb");
    let nvml = sim.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.mig_mode().unwrap().pending, 0);
    sim.store.change(|m, _| m.set_mig_mode(0, true, &[])).unwrap().unwrap_err();
    assert_eq!(gpu.mig_mode().unwrap().pending, 1);
    let refused = sim.store.change(|m, _| m.create_gi(0, 19, None).map(drop));
    assert_eq!(refused.unwrap_err().code(), Code::NOT_SUPPORTED);
}
