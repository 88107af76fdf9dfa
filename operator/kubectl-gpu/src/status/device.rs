//! One device: its name in words, its state and its owner.

use gputenancy_crds::{
    ComputeMode, DeviceProcesses, DeviceState as Reported, GpuSpec, GpuState, Health, InstanceSpec, ShareGroup,
    Sharing, SharingMode, names, slice_of,
};
use gputenancy_plan::resource_name;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::model::{DeviceCounts, DeviceState, DeviceStatus, PodReference};
use crate::world::World;

/// A GPU with the desired state of it and what decides about its devices.
#[derive(Clone, Copy)]
pub(super) struct GpuView<'a> {
    pub world: &'a World,
    /// `None`: the platform does not manage it.
    pub spec: Option<&'a GpuSpec>,
    pub state: &'a GpuState,
    /// The Node is Ready, and the agent reports.
    pub answers: bool,
    /// What others say about the node: it gets no new pods.
    pub marked: Option<&'a str>,
}

impl GpuView<'_> {
    /// Whether a new pod could get a further device of the GPU.
    pub fn is_available(self) -> bool {
        let withdrawn = self.spec.and_then(|spec| spec.withdrawn.as_deref()).or(self.marked);
        self.answers && self.state.health == Health::Healthy && withdrawn.is_none()
    }
}

/// All devices of a GPU, by start or number.
pub(super) fn devices(gpu: GpuView<'_>) -> Vec<DeviceStatus> {
    let GpuView { spec, state, .. } = gpu;
    let mut devices = Vec::new();
    for instance in &state.instances {
        let listed = spec.and_then(|s| s.exclusive(instance.start, &instance.profile));
        let resource = listed.map_or_else(|| names::mig_resource(&instance.profile), InstanceSpec::resource_name);
        let words = format!("{} at {}", instance.profile, instance.start);
        devices.extend(instance.device.iter().map(|d| device(gpu, words.clone(), instance.start, resource.clone(), d)));
    }
    // while MIG is being turned on or off, the whole GPU is no device
    for whole in state.whole.iter().filter(|_| spec.is_none_or(|s| !s.mig)) {
        let resource = spec.and_then(|s| s.resource.clone()).unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned());
        devices.push(device(gpu, "whole GPU".to_owned(), 0, resource, whole));
    }
    let mig = state.mig.is_some_and(|m| m.enabled);
    let sharing = spec.and_then(|s| s.sharing.as_ref()).filter(|_| !mig);
    for share in &state.shares {
        let group = sharing.and_then(|s| s.group_of(share.number));
        let words = match (sharing, group) {
            (Some(sharing), Some(group)) => share_in_words(sharing, group, share.number),
            _ if mig => slice_in_words(spec, state, share.number),
            _ => format!("share {}", share.number),
        };
        let resource = spec.and_then(|s| s.share_resource(share.number)).unwrap_or_default();
        devices.push(device(gpu, words, share.number, resource, &share.device));
    }
    devices.sort_by_key(|d| d.start);
    devices
}

fn slice_in_words(spec: Option<&GpuSpec>, state: &GpuState, number: i32) -> String {
    let (start, slice) = slice_of(number);
    let profile = state.instances.iter().find(|i| i.start == start).map_or("an instance", |i| i.profile.as_str());
    let listed = spec.and_then(|s| s.instances.iter().find(|i| i.start == start)?.replicas);
    let of = listed.map(|n| format!(" of {n}")).unwrap_or_default();
    format!("time-slice {slice}{of}, {profile} at {start}")
}

fn share_in_words(sharing: &Sharing, group: &ShareGroup, number: i32) -> String {
    let compute = |percent| match group.compute_mode {
        ComputeMode::Strict => format!("{percent} %"),
        ComputeMode::Burst => format!("{percent} %, Burst"),
    };
    let parts = [group.memory.as_ref().map(ToString::to_string), group.compute.map(compute)];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let parts = if parts.is_empty() { parts } else { format!(" ({parts})") };
    match sharing.mode {
        SharingMode::TimeSlice => format!("time-slice {number} of {}", sharing.numbers().len()),
        SharingMode::Mps => format!("MPS share {number}{parts}"),
        SharingMode::Fraction => format!("fraction {number}{parts}"),
    }
}

fn device(gpu: GpuView<'_>, words: String, start: i32, listed: String, reported: &Reported) -> DeviceStatus {
    // a device under canary verification has the name that it will have
    let resource = reported.resource.clone().filter(|r| !names::is_canary_resource(r)).unwrap_or(listed);
    let (state, note) = state(gpu, start, reported);
    let pod = reported.owner.as_ref().map(|owner| PodReference {
        namespace: owner.namespace.clone(),
        name: owner.pod.clone(),
        container: owner.container.clone(),
        inside: gpu.world.inside(&owner.namespace, &owner.pod),
    });
    DeviceStatus {
        device: words,
        start,
        profile: profile_of(gpu.world, &resource),
        resource,
        state,
        tenant: pod.as_ref().and_then(|p| tenant_of(gpu.world, &p.namespace)),
        pod,
        processes: reported.clients,
        containers: reported.processes.iter().map(|found| with_tenant(gpu.world, found)).collect(),
        more_containers: reported.more_containers,
        note,
    }
}

/// The processes with the tenant that the cluster shows, which an agent without the right to read grants does not know.
fn with_tenant(world: &World, found: &DeviceProcesses) -> DeviceProcesses {
    let tenant = || tenant_of(world, &found.container.as_ref()?.namespace);
    DeviceProcesses { tenant: found.tenant.clone().or_else(tenant), ..found.clone() }
}

/// The state, counted as the operator counts it, and what the state alone does not say.
fn state(gpu: GpuView<'_>, start: i32, device: &Reported) -> (DeviceState, Option<String>) {
    let GpuView { spec, state, answers, marked, .. } = gpu;
    let Some(spec) = spec else {
        let note = "not managed: neither changed nor advertised";
        return (DeviceState::Unmanaged, Some(note.to_owned()));
    };
    let phase = spec.change.as_ref().map(|c| format!(" ({:?})", c.phase)).unwrap_or_default();
    let canary = spec.trial.contains(&start) || device.resource.as_deref().is_some_and(names::is_canary_resource);
    let unhealthy = (state.health != Health::Healthy).then(|| health(state));
    let owned = device.owner.is_some();
    let note = if canary {
        Some("canary pod verifies it".to_owned())
    } else if !answers {
        Some(if owned { "as last reported: the agent is silent" } else { "the agent is silent" }.to_owned())
    } else if unhealthy.is_some() {
        unhealthy
    } else if spec.hold.contains(&start) {
        Some(if owned { format!("removed after its pod{phase}") } else { format!("withdrawn for a change{phase}") })
    } else if let Some(why) = spec.withdrawn.as_deref().or(marked).filter(|_| !owned) {
        Some(format!("no supply: {why}"))
    } else if !device.allocatable && !owned {
        Some("not allocatable in kubelet".to_owned())
    } else {
        None
    };
    let state = match (owned && !canary, note.is_some()) {
        (true, _) => DeviceState::Used,
        (false, false) => DeviceState::Free,
        (false, true) => DeviceState::Withdrawn,
    };
    (state, note)
}

/// Health of a GPU in words, such as `GPU Unhealthy: Xid 79`.
pub(super) fn health(state: &GpuState) -> String {
    let fault = state.fault.as_ref().map(|f| format!(": {f}")).unwrap_or_default();
    format!("GPU {:?}{fault}", state.health)
}

/// The first profile, by name, with this resource.
fn profile_of(world: &World, resource: &str) -> Option<String> {
    let has = |name: &String, spec| resource_name(name, spec) == resource;
    let profiles = world.fleet.profiles.iter().map(|p| (p.name_any(), &p.spec));
    profiles.filter(|(name, spec)| has(name, spec)).map(|(name, _)| name).min()
}

/// The tenant that lists a namespace, or that still has it.
fn tenant_of(world: &World, namespace: &str) -> Option<String> {
    let kept = || {
        let keeps = |t: &&gputenancy_crds::GpuTenant| {
            let mut namespaces = t.status.iter().flat_map(|s| &s.namespaces);
            namespaces.any(|n| n.name == namespace && n.phase != "Foreign")
        };
        world.tenants.iter().find(keeps).map(ResourceExt::name_any)
    };
    world.tenant_of(namespace).or_else(kept)
}

/// What others say about a node, by which its free devices are no supply; whether maintenance is planned or has begun makes no difference here.
pub(super) fn mark(world: &World, node: &str) -> Option<String> {
    world.fleet.reported_mark(node, Timestamp::default()).map(|verdict| verdict.why)
}

/// Devices with a resource on all GPUs that the platform manages.
pub(crate) fn count_of(world: &World, resource: &str) -> DeviceCounts {
    let mut counts = DeviceCounts::default();
    for (name, node) in &world.fleet.gpu_nodes {
        let (answers, mark) = (world.fleet.answers(name), mark(world, name));
        for state in node.status.iter().flat_map(|s| &s.gpus) {
            let spec = node.spec.gpus.iter().find(|g| g.uuid == state.uuid);
            let devices = devices(GpuView { world, spec, state, answers, marked: mark.as_deref() });
            devices.iter().filter(|d| d.resource == resource).for_each(|d| counts.count(d.state));
        }
    }
    counts
}
