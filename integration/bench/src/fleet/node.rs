//! Manifests of simulated nodes, and the answers of their agents.

use std::collections::BTreeMap;

use e2e::fixtures::merged;
use gputenancy_crds::{
    AgentStep, Board, DeviceOwner, DeviceState, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuSpec, GpuState, InstanceSpec,
    InstanceState, MigMode,
};
use serde_json::{Value, json};

/// Label of all objects of this benchmark, with [`NAME`] as its value; the pool selects nodes by it.
pub const LABEL: &str = "gputenancy-bench";
/// Value of the label, name of the pool, and prefix of all names.
pub const NAME: &str = "fleet";
/// GPUs of each node.
const GPUS: usize = 8;
/// Pods of each node; each owns one device of a GPU of its own.
pub const PODS: usize = 4;
/// NVIDIA's name of the profile of all instances.
pub const SHAPE: &str = "1g.10gb";
/// Instances of this profile on a GPU.
const INSTANCES: i32 = 7;
/// Container of each pod.
pub const CONTAINER: &str = "work";

/// Name of the node with this index.
pub fn name(node: usize) -> String {
    format!("{NAME}-{node:05}")
}

/// Name of the tenant with this index, and of its namespace.
pub fn tenant_name(tenant: usize) -> String {
    format!("{NAME}-tenant-{tenant:04}")
}

/// Namespace and name of a node's pod; each tenant has `each` pods.
pub fn pod_name(node: usize, pod: usize, each: usize) -> (String, String) {
    (tenant_name((node * PODS + pod) / each.max(1)), format!("{}-{pod}", name(node)))
}

/// Resource of the profile of all instances.
pub fn resource() -> String {
    gputenancy_crds::names::mig_resource(SHAPE)
}

/// A Kubernetes node that no other pod is scheduled to.
pub fn manifest(node: usize) -> Value {
    let name = name(node);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            LABEL: NAME, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "spec": {"taints": [{"key": LABEL, "value": NAME, "effect": "NoSchedule"}]},
    })
}

/// Status of a Kubernetes node that is Ready.
pub fn status(now: &str) -> Value {
    let devices = GPUS * usize::try_from(INSTANCES).unwrap_or_default();
    let amounts = json!({
        "cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti", resource(): devices.to_string(),
    });
    merged(json!({"status": {"capacity": amounts, "allocatable": amounts}}), ready(now))
}

/// Status that says that a Kubernetes node is Ready.
pub fn ready(now: &str) -> Value {
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated by the benchmark",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    json!({"status": {"conditions": [ready]}})
}

/// Generation of a `GpuNode` at rest: it is created without GPUs, which are then listed as the operator does.
const GENERATION: i64 = 2;

/// The `GpuNode` of a node at rest: all GPUs partitioned and listed, and the devices of the pods owned. Versions and board are those of a
/// real agent.
pub fn gpu_node(real: &GpuNodeStatus, node: usize, each: usize) -> GpuNode {
    let status = first_status(real, node, each);
    let instance =
        |i: &InstanceState| InstanceSpec { start: i.start, profile: i.profile.clone(), resource: None, replicas: None };
    let listed = |state: &GpuState| GpuSpec {
        uuid: state.uuid.clone(),
        mig: true,
        instances: state.instances.iter().map(instance).collect(),
        ..GpuSpec::default()
    };
    let spec = GpuNodeSpec { gpus: status.gpus.iter().map(listed).collect(), ..GpuNodeSpec::default() };
    let mut object = GpuNode::new(&name(node), spec);
    object.metadata.generation = Some(GENERATION);
    object.status = Some(status);
    object.status = Some(answer(node, &object));
    object
}

/// Status of a node's agent before the first spec.
fn first_status(real: &GpuNodeStatus, node: usize, each: usize) -> GpuNodeStatus {
    let board = real.boards.first().cloned().unwrap_or_else(Board::default);
    let gpus = (0..GPUS).map(|gpu| {
        let owner = (gpu < PODS).then(|| {
            let (namespace, pod) = pod_name(node, gpu, each);
            DeviceOwner { namespace, pod, container: CONTAINER.into() }
        });
        let instance = |start: i32| {
            let owner = owner.clone().filter(|_| start == 0);
            let device = DeviceState { clients: i32::from(owner.is_some()), owner, ..DeviceState::default() };
            instance(node, gpu, start, SHAPE, device)
        };
        let index = i32::try_from(gpu).unwrap_or_default();
        GpuState {
            uuid: format!("GPU-{node:08}-0000-0000-0000-{gpu:012}"),
            index,
            pci_bus_id: format!("00000000:{:02X}:00.0", index + 1),
            mig: Some(MigMode { enabled: true, pending: None }),
            step: AgentStep::Unmanaged,
            instances: (0..INSTANCES).map(instance).collect(),
            ..GpuState::default()
        }
    });
    GpuNodeStatus {
        observed_generation: Some(1),
        boards: vec![board],
        gpus: gpus.collect(),
        gpu_count: i32::try_from(GPUS).ok(),
        devices: Some(format!("{PODS}/56")),
        boot_id: Some(name(node)),
        layout: None,
        ..real.clone()
    }
}

fn instance(node: usize, gpu: usize, start: i32, profile: &str, device: DeviceState) -> InstanceState {
    let uuid = format!("MIG-{node:08}-0000-{gpu:04}-{start:04}-000000000000");
    InstanceState { start, profile: profile.into(), gi: start + 7, ci: Some(0), uuid: Some(uuid), device: Some(device) }
}

/// Status with which an agent answers the present spec of its node: every layout is reached at once.
pub fn answer(index: usize, node: &GpuNode) -> GpuNodeStatus {
    let mut status = node.status.clone().unwrap_or_default();
    for (gpu, state) in status.gpus.iter_mut().enumerate() {
        if let Some(spec) = node.spec.gpus.iter().find(|spec| spec.uuid == state.uuid) {
            reach(index, gpu, spec, state);
        } else {
            state.step = AgentStep::Unmanaged;
            let devices = state.devices_mut();
            devices.for_each(|d| (d.resource, d.allocatable) = (None, false));
        }
    }
    status.observed_generation = node.metadata.generation;
    status
}

fn reach(node: usize, gpu: usize, spec: &GpuSpec, state: &mut GpuState) {
    let old = std::mem::take(&mut state.instances);
    let device = |start: i32, resource: String, old: Option<&DeviceState>| DeviceState {
        resource: Some(resource),
        allocatable: !spec.hold.contains(&start),
        ..old.cloned().unwrap_or_default()
    };
    let mut instances: Vec<_> = spec
        .instances
        .iter()
        .map(|i| {
            let same = old.iter().find(|o| (o.start, &o.profile) == (i.start, &i.profile));
            instance(
                node,
                gpu,
                i.start,
                &i.profile,
                device(i.start, i.resource_name(), same.and_then(|o| o.device.as_ref())),
            )
        })
        .collect();
    instances.sort_by_key(|i| i.start);
    let whole = spec.resource.clone().unwrap_or_else(|| "nvidia.com/gpu".into());
    state.whole = (!spec.mig).then(|| device(0, whole, state.whole.as_ref()));
    state.instances = instances;
    state.mig = Some(MigMode { enabled: spec.mig, pending: None });
    state.step = AgentStep::Steady;
}

/// Allocatable devices of a node by resource.
pub fn allocatable(status: &GpuNodeStatus) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let devices = status.gpus.iter().flat_map(GpuState::devices);
    for device in devices.filter(|d| d.allocatable) {
        if let Some(resource) = &device.resource {
            *counts.entry(resource.clone()).or_default() += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_node_at_rest_has_what_its_spec_lists() {
        let node = gpu_node(&GpuNodeStatus::default(), 3, 20);
        let status = node.status.clone().unwrap();
        assert_eq!(answer(3, &node), status);
        assert_eq!((status.gpus.len(), status.observed_generation), (GPUS, Some(GENERATION)));
        assert_eq!(allocatable(&status), [(resource(), 56)].into());
        let owners = status.gpus.iter().flat_map(GpuState::devices).filter(|d| d.owner.is_some()).count();
        assert_eq!(owners, PODS);
    }

    #[test]
    fn answer_keeps_owners_and_advertises_the_layout_of_the_spec() {
        let mut node = GpuNode::new(&name(3), GpuNodeSpec::default());
        let first = first_status(&GpuNodeStatus::default(), 3, 20);
        let uuid = first.gpus[0].uuid.clone();
        node.status = Some(first);
        node.metadata.generation = Some(2);
        let kept = InstanceSpec { start: 0, profile: SHAPE.into(), resource: None, replicas: None };
        let new = InstanceSpec { start: 4, profile: "3g.40gb".into(), resource: None, replicas: None };
        node.spec.gpus =
            vec![GpuSpec { uuid, mig: true, instances: vec![new, kept], hold: vec![4], ..GpuSpec::default() }];
        let status = answer(3, &node);
        let [small, large] = status.gpus[0].instances.as_slice() else { panic!("two instances") };
        assert_eq!(small.device.as_ref().and_then(|d| d.owner.as_ref()).map(|o| o.pod.as_str()), Some("fleet-00003-0"));
        assert!(large.device.as_ref().is_some_and(|d| d.owner.is_none() && !d.allocatable));
        assert_eq!((status.observed_generation, status.gpus[1].step), (Some(2), AgentStep::Unmanaged));
        assert_eq!(allocatable(&status), [("nvidia.com/mig-1g.10gb".to_owned(), 1)].into());
    }
}
