//! A GPU that executes operations as NVML does, for [`decide`](crate::partition::decide()).

use std::sync::Arc;

use crate::nvml::{InstanceProfile, MigMode, Process};
use gputenancy_crds::{GpuError, GpuSpec, InstanceSpec};

use crate::{
    gpu::{ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Operation},
    partition::{DecisionInput, PartitionDecision, decide},
};

pub const UUID: &str = "GPU-a";

fn profile(id: u32, name: &str, slices: u32, size: u32, starts: &[u32]) -> InstanceProfile {
    InstanceProfile {
        id,
        name: name.into(),
        slices,
        max: u32::try_from(starts.len()).unwrap(),
        multiprocessors: slices * 14,
        memory_mib: u64::from(size) * 9_856,
        engines: crate::nvml::Engines::default(),
        size,
        starts: starts.to_vec(),
    }
}

/// An A100-80 with its most common profiles.
pub fn board(mode_needs_reset: bool) -> Arc<ObservedBoard> {
    Arc::new(ObservedBoard {
        name: "NVIDIA A100-SXM4-80GB".into(),
        memory_mib: 81_920,
        reserved_mib: Some(600),
        mode_needs_reset,
        vgpu: None,
        before_volta: false,
        profiles: vec![
            profile(0, "7g.80gb", 7, 8, &[0]),
            profile(9, "3g.40gb", 3, 4, &[0, 4]),
            profile(14, "2g.20gb", 2, 2, &[0, 2, 4]),
            profile(19, "1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        ],
    })
}

pub fn gpu(mig: bool, mode_needs_reset: bool) -> ObservedGpu {
    ObservedGpu {
        uuid: UUID.into(),
        pci_bus_id: "00000000:01:00.0".into(),
        board: board(mode_needs_reset),
        mode: Some(MigMode { current: mig, pending: mig }),
        ..ObservedGpu::default()
    }
}

pub fn spec(mig: bool, instances: &[(i32, &str)]) -> GpuSpec {
    let instance = |(start, profile): &(i32, &str)| InstanceSpec {
        start: *start,
        profile: (*profile).into(),
        resource: None,
        replicas: None,
    };
    GpuSpec { uuid: UUID.into(), mig, instances: instances.iter().map(instance).collect(), ..GpuSpec::default() }
}

/// An instance, with or without its compute instance.
pub fn instance(gi: u32, profile: &InstanceProfile, start: u32, whole: bool) -> ObservedInstance {
    let compute = ObservedCompute { ci: 0, full_width: true, uuid: Some(format!("MIG-{gi}")) };
    ObservedInstance {
        gi,
        profile: profile.name.clone(),
        start,
        size: profile.size,
        compute: if whole { vec![compute] } else { Vec::new() },
    }
}

pub fn client(gi: Option<u32>) -> Process {
    Process { pid: 4711, gi, ci: gi.map(|_| 0), memory: None }
}

/// Executes; panics if NVML would refuse, and if a client would lose its instance.
pub fn execute(gpu: &mut ObservedGpu, operation: &Operation) {
    let mode = gpu.mode.as_mut().unwrap();
    match *operation {
        Operation::SetMode { on } => {
            assert!(gpu.instances.is_empty() || mode.current == on, "mode set over instances");
            mode.pending = on;
            if !gpu.board.mode_needs_reset && gpu.clients.is_empty() {
                mode.current = on;
            }
        }
        Operation::Reset { .. } => {
            assert!(gpu.clients.is_empty(), "reset under a client");
            mode.current = mode.pending;
            gpu.instances.clear();
        }
        Operation::DestroyCompute { gi, ci } => {
            assert_eq!(gpu.clients_of(gi).count(), 0, "destroyed under a client");
            let found = gpu.instances.iter_mut().find(|instance| instance.gi == gi).unwrap();
            found.compute.retain(|compute| compute.ci != ci);
        }
        Operation::DestroyInstance { gi } => {
            assert_eq!(gpu.clients_of(gi).count(), 0, "destroyed under a client");
            let at = gpu.instances.iter().position(|instance| instance.gi == gi).unwrap();
            assert!(gpu.instances[at].compute.is_empty(), "NVML refuses: IN_USE");
            gpu.instances.remove(at);
        }
        Operation::CreateInstance { profile_id, start, size } => {
            let profile = gpu.board.profiles.iter().find(|profile| profile.id == profile_id).unwrap();
            assert!(profile.starts.contains(&start) && profile.size == size);
            let free = |other: &ObservedInstance| other.start + other.size <= start || start + size <= other.start;
            assert!(gpu.instances.iter().all(free), "NVML refuses: INSUFFICIENT_RESOURCES");
            let gi = gpu.instances.iter().map(|instance| instance.gi + 1).max().unwrap_or(1);
            gpu.instances.push(instance(gi, profile, start, false));
        }
        Operation::CreateCompute { gi, slices } => {
            let found = gpu.instances.iter_mut().find(|instance| instance.gi == gi).unwrap();
            assert!(found.compute.is_empty());
            assert_eq!(gpu.board.profile(&found.profile).unwrap().slices, slices);
            found.compute.push(ObservedCompute { ci: 0, full_width: true, uuid: Some(format!("MIG-{gi}")) });
        }
        Operation::SetComputeMode { .. } => panic!("no layout has a compute mode"),
    }
    gpu.instances.sort_by_key(|instance| instance.start);
}

pub fn decision(spec: &GpuSpec, gpu: &ObservedGpu, allocatable: bool, failure: Option<&GpuError>) -> PartitionDecision {
    let input =
        DecisionInput { generation: 1, partitions: true, allocatable: &|_| allocatable, idle: &|_| true, failure };
    decide(spec, gpu, &input)
}

/// Executes operations until there is none left; returns the last decision and the operations.
pub fn partition(spec: &GpuSpec, gpu: &mut ObservedGpu) -> (PartitionDecision, Vec<Operation>) {
    let mut operations = Vec::new();
    for _ in 0..100 {
        match decision(spec, gpu, false, None) {
            PartitionDecision::Operate(operation) => {
                execute(gpu, &operation);
                operations.push(operation);
            }
            last => return (last, operations),
        }
    }
    panic!("no end after 100 operations: {operations:?}");
}

/// The layout as (start, profile).
pub fn layout(gpu: &ObservedGpu) -> Vec<(u32, String)> {
    gpu.instances.iter().map(|instance| (instance.start, instance.profile.clone())).collect()
}
