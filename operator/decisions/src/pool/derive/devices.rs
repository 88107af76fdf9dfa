//! Devices of the fleet, counted the same way for pools, profiles and tenants.

use std::collections::BTreeMap;

use gputenancy_crds::{
    Capacity, DeviceOwner, DeviceState, GpuNode, GpuSpec, GpuState, Health, names, projection::SlimPod,
};

use super::pod_index::PodIndex;
use crate::fleet_view::Claim;

/// What can be had of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// A pod holds it.
    Held,
    /// A new pod could get it now.
    Free,
    /// It exists and is neither held nor offered.
    Withdrawn,
}

/// The devices of one node that the platform advertises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// Numbers by extended resource.
    pub by_resource: BTreeMap<String, Capacity>,
    /// Devices that pods hold.
    pub held: BTreeMap<Claim, i32>,
    /// Of the devices that pods hold, those that no other pod gets after them, by extended resource: they are withdrawn, or their GPU is faulty.
    pub leaving: BTreeMap<String, i32>,
    /// Devices that processes of pods keep that kubelet has forgotten.
    pub left_over: Vec<LeftOver>,
}

/// Devices without an owner that processes of one pod use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOver {
    /// The pod, which may still be in the API.
    pub pod: DeviceOwner,
    /// Their extended resource.
    pub resource: String,
    /// Their number.
    pub count: i32,
    /// Devices of the same resource that kubelet lists as devices of a pod with this name.
    pub owned: i32,
}

impl LeftOver {
    /// The devices by namespace and resource; `None` while a pod with this name runs on the node and lacks devices: kubelet has forgotten them, and
    /// the API server's quota counts the pod.
    pub fn claim(&self, node: &str, pods: &PodIndex) -> Option<(Claim, i32)> {
        let Self { pod, resource, count, owned } = self;
        let on_node = |known: &&SlimPod| known.spec.node_name.as_deref() == Some(node) && !known.is_over();
        let requested = pods.get(&pod.namespace, &pod.pod).filter(on_node).map_or(0, |known| known.requested(resource));
        let lacks = i32::try_from(requested).unwrap_or(i32::MAX).saturating_sub(*owned).clamp(0, *count);
        let kept = count - lacks;
        (kept > 0).then(|| ((pod.namespace.clone(), resource.clone()), kept))
    }
}

/// Numbers of devices by namespace, name and resource of a pod: with it as the owner, and without an owner.
type ByPod = BTreeMap<(String, String, String), (i32, i32)>;

impl NodeDevices {
    /// Counts the devices of GPUs that the platform manages. `answers`: the node is Ready, its agent reports, and no mark says that
    /// it should take no new work.
    pub fn of(node: &GpuNode, answers: bool) -> Self {
        let (mut counted, mut pods) = (Self::default(), BTreeMap::new());
        for state in node.status.iter().flat_map(|s| &s.gpus) {
            if let Some(spec) = node.spec.gpus.iter().find(|g| g.uuid == state.uuid) {
                counted.add(spec, state, answers, &mut pods);
            }
        }
        let left_over = pods.into_iter().filter(|(_, (_, count))| *count > 0);
        counted.left_over = left_over
            .map(|((namespace, name, resource), (owned, count))| {
                let pod = DeviceOwner { namespace, pod: name, container: String::new() };
                LeftOver { pod, resource, count, owned }
            })
            .collect();
        counted
    }

    /// `pods`: devices that each pod owns, and that its processes keep without an owner.
    fn add(&mut self, spec: &GpuSpec, state: &GpuState, answers: bool, pods: &mut ByPod) {
        let sound = answers && state.health == Health::Healthy;
        // what a canary has is nobody's yet, and counts under the name that it will have
        let named = |device: &DeviceState| device.resource.clone().filter(|r| !names::is_canary_resource(r));
        let mut count = |start: i32, resource: String, device: &DeviceState| {
            let tried =
                spec.trial.contains(&start) || device.resource.as_deref().is_some_and(names::is_canary_resource);
            let offered = sound && device.allocatable && !spec.hold.contains(&start) && spec.withdrawn.is_none();
            let usage = match (&device.owner, offered) {
                _ if tried => Use::Withdrawn,
                (Some(_), _) => Use::Held,
                (None, true) => Use::Free,
                (None, false) => Use::Withdrawn,
            };
            let of_pod = |pod: &DeviceOwner| (pod.namespace.clone(), pod.pod.clone(), resource.clone());
            if let Some(owner) = device.owner.as_ref().filter(|_| !tried) {
                pods.entry(of_pod(owner)).or_default().0 += 1;
                *self.held.entry((owner.namespace.clone(), resource.clone())).or_default() += 1;
            }
            if let Some(former) = device.former_owner.as_ref().filter(|_| device.owner.is_none() && !tried) {
                pods.entry(of_pod(former)).or_default().1 += 1;
            }
            if usage == Use::Held && !offered {
                *self.leaving.entry(resource.clone()).or_default() += 1;
            }
            let sum = self.by_resource.entry(resource).or_default();
            sum.total += 1;
            match usage {
                Use::Held => sum.allocated += 1,
                Use::Free => sum.free += 1,
                Use::Withdrawn => sum.unschedulable += 1,
            }
        };
        for (i, device) in state.instances.iter().filter_map(|i| Some((i, i.device.as_ref()?))) {
            let listed = spec.exclusive(i.start, &i.profile).map(gputenancy_crds::InstanceSpec::resource_name);
            let named = named(device).or(listed);
            count(i.start, named.unwrap_or_else(|| names::mig_resource(&i.profile)), device);
        }
        for w in state.whole.iter().filter(|_| !spec.mig) {
            let named = named(w).or_else(|| spec.resource.clone());
            count(0, named.unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.into()), w);
        }
        for share in &state.shares {
            if let Some(resource) = named(&share.device).or_else(|| spec.share_resource(share.number)) {
                count(share.number, resource, &share.device);
            }
        }
    }
}

/// Pods that wait for a node, by namespace and resource.
pub fn waiting(pods: &PodIndex) -> BTreeMap<Claim, i32> {
    let mut waiting = BTreeMap::new();
    let pending = |p: &SlimPod| !p.is_over() && p.metadata.deletion_timestamp.is_none();
    for (name, pod) in pods.unbound().filter(|(_, p)| pending(p)) {
        for resource in pod.resources() {
            *waiting.entry((name.namespace.to_string(), resource)).or_default() += 1;
        }
    }
    waiting
}
