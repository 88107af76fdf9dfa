//! A GPU that obeys orders as NVML does, as far as [`step`](crate::carve::step) can tell.

use std::sync::Arc;

use gputenancy_crds::{GpuError, GpuSpec, InstanceSpec};
use gputenancy_nvml::{InstanceProfile, MigMode, Process};

use crate::{
    carve::{Decision, Facts, Rest, step},
    gpu::{Order, SeenBoard, SeenCompute, SeenGpu, SeenInstance},
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
        engines: gputenancy_nvml::Engines::default(),
        size,
        starts: starts.to_vec(),
    }
}

/// An A100-80 with its commonest profiles.
pub fn board(mode_needs_reset: bool) -> Arc<SeenBoard> {
    Arc::new(SeenBoard {
        name: "NVIDIA A100-SXM4-80GB".into(),
        memory_mib: 81_920,
        reserved_mib: Some(600),
        mode_needs_reset,
        profiles: vec![
            profile(0, "7g.80gb", 7, 8, &[0]),
            profile(9, "3g.40gb", 3, 4, &[0, 4]),
            profile(14, "2g.20gb", 2, 2, &[0, 2, 4]),
            profile(19, "1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        ],
    })
}

pub fn gpu(mig: bool, mode_needs_reset: bool) -> SeenGpu {
    SeenGpu {
        uuid: UUID.into(),
        pci_bus_id: "00000000:01:00.0".into(),
        board: board(mode_needs_reset),
        mode: Some(MigMode { current: mig, pending: mig }),
        ..SeenGpu::default()
    }
}

pub fn spec(mig: bool, instances: &[(i32, &str)]) -> GpuSpec {
    let instance =
        |(start, profile): &(i32, &str)| InstanceSpec { start: *start, profile: (*profile).into(), resource: None };
    GpuSpec { uuid: UUID.into(), mig, instances: instances.iter().map(instance).collect(), ..GpuSpec::default() }
}

/// An instance, with its compute instance or without.
pub fn instance(gi: u32, profile: &InstanceProfile, start: u32, whole: bool) -> SeenInstance {
    let compute = SeenCompute { ci: 0, full_width: true, uuid: Some(format!("MIG-{gi}")) };
    SeenInstance {
        gi,
        profile: profile.name.clone(),
        start,
        size: profile.size,
        compute: if whole { vec![compute] } else { Vec::new() },
    }
}

pub fn client(gi: Option<u32>) -> Process {
    Process { pid: 4711, gi, ci: gi.map(|_| 0), memory_mib: Some(1) }
}

/// Obeys; panics where NVML would refuse, and where an order harms a client.
pub fn obey(gpu: &mut SeenGpu, order: &Order) {
    let mode = gpu.mode.as_mut().unwrap();
    match *order {
        Order::SetMode { on } => {
            assert!(gpu.instances.is_empty() || mode.current == on, "mode set over instances");
            mode.pending = on;
            if !gpu.board.mode_needs_reset && gpu.clients.is_empty() {
                mode.current = on;
            }
        }
        Order::Reset { .. } => {
            assert!(gpu.clients.is_empty(), "reset under a client");
            mode.current = mode.pending;
            gpu.instances.clear();
        }
        Order::DestroyCompute { gi, ci } => {
            assert_eq!(gpu.clients_of(gi).count(), 0, "destroyed under a client");
            let instance = gpu.instances.iter_mut().find(|seen| seen.gi == gi).unwrap();
            instance.compute.retain(|compute| compute.ci != ci);
        }
        Order::DestroyInstance { gi } => {
            assert_eq!(gpu.clients_of(gi).count(), 0, "destroyed under a client");
            let at = gpu.instances.iter().position(|seen| seen.gi == gi).unwrap();
            assert!(gpu.instances[at].compute.is_empty(), "NVML refuses: IN_USE");
            gpu.instances.remove(at);
        }
        Order::CreateInstance { profile_id, start, size } => {
            let profile = gpu.board.profiles.iter().find(|profile| profile.id == profile_id).unwrap();
            assert!(profile.starts.contains(&start) && profile.size == size);
            let free = |seen: &SeenInstance| seen.start + seen.size <= start || start + size <= seen.start;
            assert!(gpu.instances.iter().all(free), "NVML refuses: INSUFFICIENT_RESOURCES");
            let gi = gpu.instances.iter().map(|seen| seen.gi + 1).max().unwrap_or(1);
            gpu.instances.push(instance(gi, profile, start, false));
        }
        Order::CreateCompute { gi, slices } => {
            let found = gpu.instances.iter_mut().find(|seen| seen.gi == gi).unwrap();
            assert!(found.compute.is_empty());
            assert_eq!(gpu.board.profile(&found.profile).unwrap().slices, slices);
            found.compute.push(SeenCompute { ci: 0, full_width: true, uuid: Some(format!("MIG-{gi}")) });
        }
    }
    gpu.instances.sort_by_key(|seen| seen.start);
}

pub fn decide(spec: &GpuSpec, gpu: &SeenGpu, taken: bool, failure: Option<&GpuError>) -> Decision {
    step(spec, gpu, &Facts { generation: 1, carves: true, taken: &|_| taken, idle: &|_| true, failure })
}

/// Steps until rest, and the orders taken.
pub fn carve(spec: &GpuSpec, gpu: &mut SeenGpu) -> (Rest, Vec<Order>) {
    let mut orders = Vec::new();
    for _ in 0..100 {
        match decide(spec, gpu, false, None) {
            Decision::Rest(rest) => return (rest, orders),
            Decision::Act(order) => {
                obey(gpu, &order);
                orders.push(order);
            }
        }
    }
    panic!("no end after 100 steps: {orders:?}");
}

/// The layout as (start, profile).
pub fn layout(gpu: &SeenGpu) -> Vec<(u32, String)> {
    gpu.instances.iter().map(|seen| (seen.start, seen.profile.clone())).collect()
}
