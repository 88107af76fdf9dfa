//! Owners that kubelet has forgotten. It does so when it starts without its checkpoint, and reports none in the first seconds after each start.
//! Nothing of that ends a pod: while a pod runs that had a device, and kubelet has given it no other for it, the pod is still its owner.

use std::collections::BTreeMap;

use super::requests::{PodName, PodRequests};
use crate::device::{DeviceId, DeviceOwner, Owners};

/// Owners as kubelet reported them, each with the UID of its pod.
#[derive(Debug, Default)]
pub struct FormerOwners(BTreeMap<DeviceId, (DeviceOwner, String)>);

impl FormerOwners {
    /// Kubelet's answer, with the owners that it has forgotten. `pods`: those on this node that request devices and have not ended; without them
    /// kubelet's answer is all that is known.
    pub fn complete(&mut self, answer: Owners, pods: Option<&PodRequests>) -> Owners {
        let Some(pods) = pods else {
            self.0.clear();
            return answer;
        };
        let mut held: BTreeMap<PodName, u64> = BTreeMap::new();
        for owner in answer.values() {
            *held.entry(pod(owner)).or_default() += 1;
        }
        let mut all = answer;
        for (id, (owner, uid)) in &self.0 {
            let pod = pod(owner);
            let runs = pods.uid(&pod) == Some(uid);
            let has = held.entry(pod.clone()).or_default();
            if runs && !all.contains_key(id) && *has < pods.amount(&pod) {
                *has += 1;
                all.insert(id.clone(), owner.clone());
            }
        }
        self.0.retain(|id, (owner, _)| all.get(id) == Some(owner));
        for (id, owner) in &all {
            // a pod that gets the name of a former one has not had its device
            if let Some(uid) = pods.uid(&pod(owner)).filter(|_| !self.0.contains_key(id)) {
                self.0.insert(id.clone(), (owner.clone(), uid.to_owned()));
            }
        }
        all
    }
}

fn pod(owner: &DeviceOwner) -> PodName {
    (owner.namespace.clone(), owner.pod.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn id(n: u32) -> DeviceId {
        DeviceId::new(format!("GPU-{n}"))
    }

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "t".into(), pod: pod.into(), container: "c".into() }
    }

    /// Pods by name with UID and number of devices.
    fn pods(all: &[(&str, &str, u32)]) -> PodRequests {
        let mut requests = PodRequests::default();
        for (name, uid, count) in all {
            let pod = serde_json::json!({
                "metadata": {"namespace": "t", "name": name, "uid": uid},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": count.to_string()}}}]},
            });
            requests.apply(&serde_json::from_value(pod).unwrap(), Instant::now());
        }
        requests
    }

    fn owners(all: &[(u32, &str)]) -> Owners {
        all.iter().map(|(n, pod)| (id(*n), owner(pod))).collect()
    }

    #[test]
    fn running_pod_keeps_its_device_when_kubelet_has_forgotten_it() {
        let mut former = FormerOwners::default();
        let running = pods(&[("a", "1", 1), ("b", "2", 2)]);
        let all = owners(&[(0, "a"), (1, "b"), (2, "b")]);
        assert_eq!(former.complete(all.clone(), Some(&running)), all);
        for _ in 0..2 {
            assert_eq!(former.complete(Owners::new(), Some(&running)), all, "however often it is asked");
        }
        assert_eq!(former.complete(Owners::new(), Some(&pods(&[("b", "2", 2)]))), owners(&[(1, "b"), (2, "b")]));
        assert_eq!(former.complete(Owners::new(), Some(&running)), owners(&[(1, "b"), (2, "b")]), "a has ended before");
        assert!(former.complete(Owners::new(), None).is_empty());
    }

    #[test]
    fn pod_that_has_got_other_devices_keeps_no_former_one() {
        let mut former = FormerOwners::default();
        let running = pods(&[("a", "1", 1)]);
        former.complete(owners(&[(0, "a")]), Some(&running));
        let moved = owners(&[(1, "a")]);
        assert_eq!(former.complete(moved.clone(), Some(&running)), moved);
        assert_eq!(former.complete(Owners::new(), Some(&running)), moved);
    }

    #[test]
    fn device_of_an_earlier_pod_of_the_same_name_is_free() {
        let mut former = FormerOwners::default();
        former.complete(owners(&[(0, "a")]), Some(&pods(&[("a", "1", 1)])));
        let next = pods(&[("a", "2", 1)]);
        // kubelet still reports the earlier one, which the API server has forgotten
        former.complete(owners(&[(0, "a")]), Some(&next));
        assert!(former.complete(Owners::new(), Some(&next)).is_empty());
    }

    #[test]
    fn kubelet_s_answer_precedes() {
        let mut former = FormerOwners::default();
        let running = pods(&[("a", "1", 1), ("b", "2", 1)]);
        former.complete(owners(&[(0, "a")]), Some(&running));
        let given = owners(&[(0, "b")]);
        assert_eq!(former.complete(given.clone(), Some(&running)), given);
    }
}
