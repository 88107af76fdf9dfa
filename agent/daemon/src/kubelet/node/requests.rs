//! Devices that the pods on this node request, and which of these pods are in flight: bound, and without a device yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use gputenancy_crds::projection::{NodeContainer, NodeContainerStatus, NodePod};

use super::allocatable::{Counts, InFlight, InFlightPods, managed_counts};
use crate::{
    device::{DeviceOwner, Owners},
    warm_up::DevicePods,
};

pub use crate::seen_pods::{PodName, pod_name};

/// Requests of the pods on this node, without pods that have ended or request no device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRequests(BTreeMap<PodName, PodRequest>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct PodRequest {
    uid: String,
    counts: Counts,
    /// When the pod was first seen on this node.
    since: Instant,
    /// Name of its `RuntimeClass`.
    class: Option<String>,
    /// Kubelet has admitted it, and its containers have their devices.
    admitted: bool,
}

impl PodRequests {
    /// The scheduler's count of requested devices.
    pub fn total(&self) -> Counts {
        sum(self.0.values().map(|request| &request.counts))
    }

    /// Requests of the pods to which kubelet has allocated no device.
    pub fn in_flight<'a>(&self, owners: impl IntoIterator<Item = &'a DeviceOwner>) -> InFlightPods {
        let mut pods = InFlightPods::new();
        for (_, PodRequest { counts, since, .. }) in self.without_device(owners) {
            for (resource, count) in counts {
                let pod = pods.entry(resource.clone()).or_insert(InFlight { count: 0, newest: *since });
                *pod = InFlight { count: pod.count + count, newest: pod.newest.max(*since) };
            }
        }
        pods
    }

    /// Namespaces of the pods that request this resource and to which kubelet has allocated no device.
    pub fn waiting<'a>(&self, resource: &str, owners: impl IntoIterator<Item = &'a DeviceOwner>) -> BTreeSet<String> {
        let waiting = self.without_device(owners).filter(|(_, request)| request.counts.contains_key(resource));
        waiting.map(|((namespace, _), _)| namespace.clone()).collect()
    }

    /// Name of the `RuntimeClass` of a pod; `None` for a pod without one, or that requests no device.
    pub fn class(&self, namespace: &str, pod: &str) -> Option<&str> {
        self.0.get(&(namespace.to_owned(), pod.to_owned()))?.class.as_deref()
    }

    /// Names of the `RuntimeClasses` of the pods that request this resource and do not have all of their devices. Kubelet does not report the devices
    /// of ordinary init containers, hence a pod that kubelet has admitted has all.
    pub fn starting<'s>(&'s self, resource: &str, owners: &Owners) -> impl Iterator<Item = Option<&'s str>> {
        let owned = |(namespace, pod): &PodName| {
            let of_pod = owners.values().filter(|owner| (&owner.namespace, &owner.pod) == (namespace, pod));
            of_pod.count() as u64
        };
        let lacks = |pod: &PodName, request: &PodRequest| owned(pod) < request.counts.values().sum::<u64>();
        let starting = |(pod, request): &(&PodName, &PodRequest)| {
            !request.admitted && request.counts.contains_key(resource) && lacks(pod, request)
        };
        self.0.iter().filter(starting).map(|(_, request)| request.class.as_deref()).collect::<Vec<_>>().into_iter()
    }

    fn without_device<'a>(
        &self,
        owners: impl IntoIterator<Item = &'a DeviceOwner>,
    ) -> impl Iterator<Item = (&PodName, &PodRequest)> {
        let owners: BTreeSet<PodName> =
            owners.into_iter().map(|owner| (owner.namespace.clone(), owner.pod.clone())).collect();
        self.0.iter().filter(move |(pod, _)| !owners.contains(*pod))
    }

    /// Records a pod; true if its requests changed. A pod that changes keeps the time at which it was first seen.
    pub fn apply(&mut self, pod: &NodePod, now: Instant) -> bool {
        let counts = requests(pod);
        if counts.is_empty() {
            return self.delete(pod);
        }
        let class = pod.spec.runtime_class_name.clone();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let new = PodRequest { uid: uid.clone(), counts: Counts::new(), since: now, class, admitted: false };
        let request = self.0.entry(pod_name(pod)).or_insert(new);
        request.uid = uid;
        request.admitted = is_admitted(pod);
        std::mem::replace(&mut request.counts, counts) != request.counts
    }

    /// Removes a pod; true if it was recorded.
    pub fn delete(&mut self, pod: &NodePod) -> bool {
        self.0.remove(&pod_name(pod)).is_some()
    }
}

impl DevicePods for PodRequests {
    fn uid(&self, pod: &PodName) -> Option<&str> {
        Some(self.0.get(pod)?.uid.as_str())
    }

    fn amount(&self, pod: &PodName) -> u64 {
        self.0.get(pod).map_or(0, |request| request.counts.values().sum())
    }

    fn is_admitted(&self, pod: &PodName) -> bool {
        self.0.get(pod).is_some_and(|request| request.admitted)
    }
}

fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
    let mut total = Counts::new();
    for (resource, count) in all.flatten() {
        *total.entry(resource.clone()).or_default() += count;
    }
    total
}

/// Whether kubelet has admitted the pod. It allocates a pod's devices while it admits it, and publishes a status of its own only after that.
fn is_admitted(pod: &NodePod) -> bool {
    let status = &pod.status;
    let created = |container: &NodeContainerStatus| {
        let running = container.state.running.is_some();
        running || container.started == Some(true) || container.container_id.is_some()
    };
    let mut containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    status.phase == "Running" || status.start_time.is_some() || containers.any(created)
}

/// As the scheduler counts: the sum of containers and sidecars, or the largest init container.
fn requests(pod: &NodePod) -> Counts {
    if pod.is_over() {
        return Counts::new();
    }
    let spec = &pod.spec;
    let (sidecars, init): (Vec<&NodeContainer>, Vec<&NodeContainer>) =
        spec.init_containers.iter().partition(|c| c.restart_policy.as_deref() == Some("Always"));
    let concurrent: Vec<Counts> = spec.containers.iter().chain(sidecars).map(limits).collect();
    let mut total = sum(concurrent.iter());
    for (resource, count) in init.into_iter().flat_map(limits) {
        let largest = total.entry(resource).or_default();
        *largest = count.max(*largest);
    }
    total.retain(|_, count| *count > 0);
    total
}

/// Devices are requested by limits.
fn limits(container: &NodeContainer) -> Counts {
    managed_counts(&container.resources.limits)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const R: &str = "nvidia.com/mig-1g.10gb";

    fn pod(name: &str, json: &serde_json::Value) -> NodePod {
        let mut all =
            serde_json::json!({"metadata": {"namespace": "team-a", "name": name}, "spec": {"containers": []}});
        all.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn container(count: &str) -> serde_json::Value {
        serde_json::json!({"resources": {"limits": {R: count, "cpu": "2"}}})
    }

    #[test]
    fn requests_are_counted_as_by_the_scheduler() {
        let sidecar = serde_json::json!({"restartPolicy": "Always", "resources": {"limits": {R: "1"}}});
        let spec = serde_json::json!({"spec": {"containers": [container("1"), container("1")], "initContainers": [container("2"), sidecar]}});
        assert_eq!(requests(&pod("p", &spec)), [(R.to_owned(), 3)].into());
        let spec = serde_json::json!({"spec": {"containers": [container("1")], "initContainers": [container("4")]}});
        assert_eq!(requests(&pod("p", &spec)), [(R.to_owned(), 4)].into());
    }

    #[test]
    fn ended_pod_requests_nothing() {
        let ended = serde_json::json!({"spec": {"containers": [container("1")]}, "status": {"phase": "Failed"}});
        assert!(requests(&pod("p", &ended)).is_empty());
    }

    #[test]
    fn pod_with_devices_in_an_init_container_starts_until_kubelet_has_admitted_it() {
        // kubelet reports no owner for the devices of an init container
        let starting = |status: serde_json::Value| {
            let spec =
                serde_json::json!({"initContainers": [container("1")], "containers": [], "runtimeClassName": "c"});
            let mut requests = PodRequests::default();
            requests.apply(&pod("p", &serde_json::json!({"spec": spec, "status": status})), Instant::now());
            requests.starting(R, &Owners::new()).map(|class| class.map(str::to_owned)).collect::<Vec<_>>()
        };
        let waits = vec![Some("c".to_owned())];
        assert_eq!(starting(serde_json::json!({"phase": "Pending"})), waits);
        let container = |more: serde_json::Value| {
            let mut container =
                serde_json::json!({"name": "i", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::json!({"phase": "Pending", "initContainerStatuses": [container]})
        };
        let waiting = serde_json::json!({"state": {"waiting": {"reason": "PodInitializing"}}, "started": false});
        assert_eq!(starting(container(waiting)), waits);
        for admitted in [
            serde_json::json!({"phase": "Running"}),
            serde_json::json!({"phase": "Pending", "startTime": "2026-11-27T12:00:00Z"}),
            container(serde_json::json!({"started": true})),
            container(serde_json::json!({"containerID": "containerd://1"})),
            container(serde_json::json!({"state": {"running": {"startedAt": "2026-11-27T12:00:00Z"}}})),
        ] {
            assert_eq!(starting(admitted.clone()), Vec::new(), "{admitted}");
        }
    }

    #[test]
    fn pod_is_in_flight_until_kubelet_allocates_a_device() {
        let (mut requests, early) = (PodRequests::default(), Instant::now());
        let late = early + Duration::from_secs(3);
        let with_device =
            |name: &str, count: &str| pod(name, &serde_json::json!({"spec": {"containers": [container(count)]}}));
        requests.apply(&with_device("running", "2"), early);
        requests.apply(&with_device("starting", "1"), early);
        requests.apply(&with_device("starting", "1"), late);
        let owner = DeviceOwner { namespace: "team-a".into(), pod: "running".into(), container: "c".into() };
        let flight = |count, newest| InFlightPods::from([(R.to_owned(), InFlight { count, newest })]);
        assert_eq!(requests.in_flight([&owner]), flight(1, early), "a changed pod keeps its time");
        requests.apply(&with_device("later", "1"), late);
        assert_eq!(requests.in_flight([&owner]), flight(2, late));
        assert_eq!(requests.total(), [(R.to_owned(), 4)].into());
        assert_eq!(requests.waiting(R, [&owner]), ["team-a".to_owned()].into());
        assert!(requests.waiting("nvidia.com/gpu", [&owner]).is_empty());
    }
}
