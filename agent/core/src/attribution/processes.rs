//! Which container each process on a GPU is of, and which processes are of none with a device. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    device::{DeviceOwner, Owners},
    gpu::{Inventory, ObservedGpu, ObservedInstance},
};

/// Where a process comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The process has ended; NVML and the kernel list it for a moment longer.
    Ended,
    /// The node itself, no pod.
    Node,
    /// A pod; its container, if the container has a log. Without one it is an MPS daemon, or a process of a pod that the agent has not seen yet or whose
    /// container has no log any more.
    Pod(Option<DeviceOwner>),
    /// A pod that the API server has deleted, with this UID.
    Former(Option<DeviceOwner>, String),
}

/// The processes of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProcesses {
    /// Number of processes that NVML lists, by container; `None` for those of the node itself.
    pub listed: BTreeMap<Option<DeviceOwner>, u64>,
    /// Processes that NVML lists, by GPU instance (`None` for the whole GPU) and container.
    pub groups: BTreeMap<(Option<u32>, Option<DeviceOwner>), Group>,
    /// Bytes of processes that NVML lists and that have ended, by id and GPU instance.
    pub ended: BTreeMap<(u32, Option<u32>), u64>,
    /// Processes that NVML does not list and that have the device file open, unless their pod has a device of the GPU; with their container,
    /// if they are of one.
    pub unlisted: BTreeMap<u32, Option<DeviceOwner>>,
}

/// The processes of one container on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Their ids.
    pub pids: BTreeSet<u32>,
    /// Bytes of those that NVML reports memory of; `None` if it reports none of any.
    pub memory: Option<u64>,
}

/// The processes of each GPU, by UUID. `open` are processes with the device file of a GPU open, by the GPU's minor number.
pub fn processes(
    inventory: &Inventory,
    owners: &Owners,
    open: &BTreeMap<u32, BTreeSet<u32>>,
    origin: &dyn Fn(u32) -> Origin,
) -> BTreeMap<String, GpuProcesses> {
    let of_gpu = |gpu: &ObservedGpu| {
        let clients: BTreeSet<u32> = gpu.clients.iter().map(|process| process.pid).collect();
        let mut found = GpuProcesses::default();
        let origins: BTreeMap<u32, Origin> = clients.iter().map(|pid| (*pid, origin(*pid))).collect();
        for origin in origins.values().filter(|origin| **origin != Origin::Ended) {
            *found.listed.entry(container(origin.clone())).or_default() += 1;
        }
        for process in &gpu.clients {
            match origins.get(&process.pid) {
                Some(Origin::Ended) | None => {
                    *found.ended.entry((process.pid, process.gi)).or_default() += process.memory.unwrap_or(0);
                }
                Some(origin) => {
                    let group = found.groups.entry((process.gi, container(origin.clone()))).or_default();
                    group.pids.insert(process.pid);
                    let both = [group.memory, process.memory].into_iter().flatten();
                    group.memory = both.reduce(u64::saturating_add);
                }
            }
        }
        let owners = owners_of(gpu, owners);
        let holders = open.get(&gpu.minor).into_iter().flatten().filter(|pid| !clients.contains(pid));
        let unlisted = holders.filter_map(|pid| {
            let origin = origin(*pid);
            // An MPS daemon works for the pods with shares of its GPU. The pod of another process without a container is not known yet, which lasts until
            // the agent has seen it: a process cannot choose the pod that its cgroup names. In reads of memory NVML's figures of both count.
            let attributed = match &origin {
                Origin::Pod(Some(pod)) => owners.contains(&(pod.namespace.as_str(), pod.pod.as_str())),
                Origin::Pod(None) | Origin::Ended => true,
                Origin::Former(..) | Origin::Node => false,
            };
            (!attributed).then(|| (*pid, container(origin)))
        });
        found.unlisted = unlisted.collect();
        (gpu.uuid.clone(), found)
    };
    inventory.gpus.iter().map(of_gpu).collect()
}

/// Number of pods with a device of each GPU, by its UUID: as many are concerned by a fault of the GPU.
pub fn pods<'i>(inventory: &'i Inventory, owners: &Owners) -> Vec<(&'i str, u64)> {
    inventory.gpus.iter().map(|gpu| (gpu.uuid.as_str(), owners_of(gpu, owners).len() as u64)).collect()
}

/// The container of a process, if it is of one.
fn container(origin: Origin) -> Option<DeviceOwner> {
    match origin {
        Origin::Ended | Origin::Node => None,
        Origin::Pod(container) | Origin::Former(container, _) => container,
    }
}

/// Pods with a device of the GPU, by namespace and name.
fn owners_of<'o>(gpu: &ObservedGpu, owners: &'o Owners) -> BTreeSet<(&'o str, &'o str)> {
    let instances: Vec<&str> = gpu.instances.iter().filter_map(ObservedInstance::uuid).collect();
    let legacy = format!("{}::", gpu.uuid);
    let here = owners
        .iter()
        .filter(|(id, _)| id.uuid() == gpu.uuid || instances.contains(&id.uuid()) || id.as_str().starts_with(&legacy));
    here.map(|(_, owner)| (owner.namespace.as_str(), owner.pod.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use crate::nvml::Process;

    use super::*;
    use crate::{device::DeviceId, gpu::ObservedCompute};

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    /// 1 to 3 are of the pods that own devices, 4 of another pod, 5 of the node, 6 of an MPS daemon, 7 of a deleted pod, 8 has ended.
    fn origin(pid: u32) -> Origin {
        match pid {
            1 | 2 => Origin::Pod(Some(owner("whole"))),
            3 => Origin::Pod(Some(owner("slice"))),
            4 => Origin::Pod(Some(owner("spy"))),
            6 => Origin::Pod(None),
            7 => Origin::Former(Some(owner("gone")), "uid".into()),
            8 => Origin::Ended,
            _ => Origin::Node,
        }
    }

    fn found(clients: &[u32], open: &[u32]) -> GpuProcesses {
        let client = |pid: &u32| Process { pid: *pid, gi: None, ci: None, memory: None };
        let compute = vec![ObservedCompute { ci: 0, full_width: true, uuid: Some("MIG-a".into()) }];
        let gpu = ObservedGpu {
            uuid: "GPU-a".into(),
            minor: 3,
            clients: clients.iter().map(client).collect(),
            instances: vec![ObservedInstance { compute, ..ObservedInstance::default() }],
            ..ObservedGpu::default()
        };
        let owners = [(DeviceId::share("GPU-a", 1), owner("whole")), (DeviceId::new("MIG-a"), owner("slice"))];
        let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        let open = [(3, open.iter().copied().collect()), (4, [99].into())].into();
        processes(&inventory, &owners.into(), &open, &origin).remove("GPU-a").unwrap()
    }

    #[test]
    fn listed_processes_are_counted_by_container() {
        let listed = found(&[1, 2, 3, 5, 8], &[]).listed;
        assert_eq!(listed, [(None, 1), (Some(owner("slice")), 1), (Some(owner("whole")), 2)].into());
    }

    #[test]
    fn processes_are_grouped_by_instance_and_container_and_those_that_have_ended_are_kept_apart() {
        let client = |pid, gi, memory| Process { pid, gi, ci: None, memory };
        let clients = vec![
            client(1, Some(7), Some(100)),
            client(2, Some(7), Some(20)),
            client(1, Some(8), None),
            client(8, Some(7), Some(3)),
        ];
        let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
        let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        let found = processes(&inventory, &Owners::new(), &BTreeMap::new(), &origin).remove("GPU-a").unwrap();
        let group = |pids: &[u32], memory| Group { pids: pids.iter().copied().collect(), memory };
        let whole = || Some(owner("whole"));
        assert_eq!(
            found.groups,
            [((Some(7), whole()), group(&[1, 2], Some(120))), ((Some(8), whole()), group(&[1], None))].into()
        );
        assert_eq!(found.ended, [((8, Some(7)), 3)].into());
    }

    #[test]
    fn pods_are_counted_once_for_each_gpu_of_which_they_have_a_device() {
        let compute = vec![ObservedCompute { ci: 0, full_width: true, uuid: Some("MIG-a".into()) }];
        let instances = vec![ObservedInstance { compute, ..ObservedInstance::default() }];
        let gpu = |uuid: &str, instances| ObservedGpu { uuid: uuid.into(), instances, ..ObservedGpu::default() };
        let gpus = vec![gpu("GPU-a", instances), gpu("GPU-b", Vec::new()), gpu("GPU-c", Vec::new())];
        let inventory = Inventory { gpus, ..Inventory::default() };
        let sidecar = DeviceOwner { container: "sidecar".into(), ..owner("p") };
        let owned = [
            (DeviceId::share("MIG-a", 0), owner("p")),
            (DeviceId::share("MIG-a", 1), owner("q")),
            (DeviceId::share("GPU-b", 0), owner("p")),
            (DeviceId::share("GPU-b", 1), sidecar),
        ];
        assert_eq!(pods(&inventory, &owned.into()), [("GPU-a", 2), ("GPU-b", 1), ("GPU-c", 0)]);
    }

    #[test]
    fn process_with_an_open_file_and_without_a_device_is_unlisted_and_never_left_out() {
        let unlisted = found(&[1], &[1, 2, 3, 4, 5, 6, 7, 8]).unlisted;
        assert_eq!(unlisted, [(4, Some(owner("spy"))), (5, None), (7, Some(owner("gone")))].into());
        assert!(found(&[4], &[4]).unlisted.is_empty(), "NVML lists it");
    }
}
