//! Owners that kubelet has forgotten. It does so when it starts without its checkpoint, and reports none in the first seconds after each start.
//! Nothing of that ends a pod: while a pod runs that had a device, and kubelet has given it no other for it, the pod is still its owner.

use std::collections::BTreeMap;

use crate::{
    device::{DeviceId, DeviceOwner, Owners},
    pod::PodName,
};

/// Pods on this node that request devices and have not ended, as the API lists them.
pub trait DevicePods {
    /// UID of a pod; `None` for one that requests no device.
    fn uid(&self, pod: &PodName) -> Option<&str>;
    /// Number of devices that a pod requests, of all resources.
    fn amount(&self, pod: &PodName) -> u64;
    /// Whether kubelet has admitted a pod: only then it can have had a device.
    fn is_admitted(&self, pod: &PodName) -> bool;
}

/// Owners as kubelet reported them, each with the UID of its pod; without it while the API's pods are not known.
#[derive(Debug, Default)]
pub struct FormerOwners(BTreeMap<DeviceId, (DeviceOwner, Option<String>)>);

impl FormerOwners {
    /// Owners that an earlier run of the agent reported. What this one has recorded precedes.
    pub fn recall(&mut self, owners: Owners) {
        for (id, owner) in owners {
            self.0.entry(id).or_insert((owner, None));
        }
    }

    /// Kubelet's answer alone, which is believed.
    pub fn replace(&mut self, answer: Owners) -> Owners {
        self.0 = answer.iter().map(|(id, owner)| (id.clone(), (owner.clone(), None))).collect();
        answer
    }

    /// Kubelet's answer, with all former owners, while it is not known which of their pods exist.
    pub fn keep(&mut self, answer: &Owners) -> Owners {
        for (id, owner) in answer {
            if self.0.get(id).is_none_or(|(former, _)| former != owner) {
                self.0.insert(id.clone(), (owner.clone(), None));
            }
        }
        self.0.iter().map(|(id, (owner, _))| (id.clone(), owner.clone())).collect()
    }

    /// Kubelet's answer, with the owners that it has forgotten while their pods run.
    pub fn complete(&mut self, answer: Owners, pods: &impl DevicePods) -> Owners {
        for (owner, uid) in self.0.values_mut().filter(|(_, uid)| uid.is_none()) {
            let name = pod(owner);
            *uid = pods.uid(&name).filter(|_| pods.is_admitted(&name)).map(str::to_owned);
        }
        let mut held: BTreeMap<PodName, u64> = BTreeMap::new();
        for owner in answer.values() {
            *held.entry(pod(owner)).or_default() += 1;
        }
        let mut all = answer;
        for (id, (owner, uid)) in &self.0 {
            let pod = pod(owner);
            let runs = uid.is_some() && pods.uid(&pod) == uid.as_deref();
            let has = held.entry(pod.clone()).or_default();
            if runs && !all.contains_key(id) && *has < pods.amount(&pod) {
                *has += 1;
                all.insert(id.clone(), owner.clone());
            }
        }
        self.0.retain(|id, (owner, uid)| uid.is_some() && all.get(id) == Some(owner));
        for (id, owner) in &all {
            // a pod that gets the name of a former one has not had its device
            if let Some(uid) = pods.uid(&pod(owner)).filter(|_| !self.0.contains_key(id)) {
                self.0.insert(id.clone(), (owner.clone(), Some(uid.to_owned())));
            }
        }
        all
    }
}

fn pod(owner: &DeviceOwner) -> PodName {
    (owner.namespace.clone(), owner.pod.clone())
}
