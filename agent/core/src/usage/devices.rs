//! The devices that kubelet knows, whichever plugin advertises them.

use std::collections::BTreeMap;

use crate::{
    device::{Device, DeviceId, DeviceView, MigIds},
    gpu::{Inventory, ObservedGpu, ObservedInstance},
};

/// The agent's devices; of another plugin the shares of the spec, and the whole GPUs and instances that it lists in kubelet.
pub fn all(view: &DeviceView, elsewhere: &BTreeMap<DeviceId, String>, inventory: &Inventory) -> Vec<Device> {
    let shares = view.devices.iter().chain(&view.elsewhere).cloned();
    let mut devices: Vec<Device> = shares.collect();
    for (id, resource) in elsewhere {
        if devices.iter().all(|device| device.id != *id) {
            devices.extend(inventory.gpus.iter().find_map(|gpu| listed(gpu, id, resource)));
        }
    }
    devices
}

/// A whole GPU or an instance of it, by the UUID in its id.
fn listed(gpu: &ObservedGpu, id: &DeviceId, resource: &str) -> Option<Device> {
    let instance = gpu.instances.iter().find(|instance| instance.uuid() == Some(id.uuid()));
    if instance.is_none() && gpu.uuid != id.uuid() {
        return None;
    }
    let ids = |instance: &ObservedInstance| MigIds {
        gi: instance.gi,
        ci: instance.compute.first().map_or(0, |compute| compute.ci),
        start: instance.start,
        profile: instance.profile.clone(),
    };
    Some(Device {
        id: id.clone(),
        resource: resource.to_owned(),
        gpu_uuid: gpu.uuid.clone(),
        gpu_minor: gpu.minor,
        mig: instance.map(ids),
        share: None,
        numa: gpu.numa,
        cordoned: false,
        healthy: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::ObservedCompute;

    #[test]
    fn devices_of_another_plugin_are_found_by_the_uuid_in_their_ids() {
        let compute = vec![ObservedCompute { ci: 0, full_width: true, uuid: Some("MIG-a".into()) }];
        let instance = ObservedInstance { gi: 5, compute, ..ObservedInstance::default() };
        let gpu = |uuid: &str, instances| ObservedGpu { uuid: uuid.into(), instances, ..ObservedGpu::default() };
        let gpus = vec![gpu("GPU-a", vec![instance]), gpu("GPU-b", Vec::new())];
        let inventory = Inventory { gpus, ..Inventory::default() };
        let id = |id: &str, resource: &str| (DeviceId::new(id), resource.to_owned());
        let elsewhere = [id("MIG-a", "nvidia.com/mig-1g.10gb"), id("GPU-b", "nvidia.com/gpu"), id("GPU-z", "x")];
        let found = all(&DeviceView::default(), &elsewhere.into(), &inventory);
        let of = |device: &Device| (device.gpu_uuid.clone(), device.mig.as_ref().map(|ids| ids.gi));
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [("GPU-b".into(), None), ("GPU-a".into(), Some(5))]);
    }
}
