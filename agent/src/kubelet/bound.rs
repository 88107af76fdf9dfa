//! What the scheduler has bound to this node: a pod on its way must not meet a lowered allocatable, kubelet would fail it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    api::ObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    allocatable::{Counts, Flight, Flights, ours},
    node::count,
};
use crate::{device::DeviceOwner, environment::Suspects, watch_backoff};

/// The part of a `Pod` that is read here.
#[derive(Resource, Serialize, Deserialize, Clone, Debug)]
#[resource(inherit = Pod)]
pub struct BoundPod {
    /// Namespace and name.
    pub metadata: ObjectMeta,
    /// What its containers ask for.
    pub spec: BoundSpec,
    /// Whether it is over.
    #[serde(default)]
    pub status: BoundStatus,
}

/// The containers of a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct BoundSpec {
    /// Run one after the other, or beside the others when they restart.
    #[serde(default)]
    pub init_containers: Vec<BoundContainer>,
    /// Run at the same time.
    #[serde(default)]
    pub containers: Vec<BoundContainer>,
    /// Added by somebody who debugs.
    #[serde(default)]
    pub ephemeral_containers: Vec<BoundContainer>,
}

/// A container's demand, and where its variables come from.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct BoundContainer {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// `Always` makes an init container a sidecar.
    #[serde(default)]
    pub restart_policy: Option<String>,
    /// What it asks for.
    #[serde(default)]
    pub resources: BoundResources,
    /// Variables that are written one by one.
    #[serde(default)]
    pub env: Vec<Named>,
    /// Objects that give all that they hold.
    #[serde(default)]
    pub env_from: Vec<EnvFrom>,
}

/// Something with a name.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct Named {
    /// The name.
    #[serde(default)]
    pub name: String,
}

/// One of the two is set.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct EnvFrom {
    /// A `ConfigMap`.
    pub config_map_ref: Option<Named>,
    /// A `Secret`.
    pub secret_ref: Option<Named>,
}

/// Quantities by resource; devices are asked for by limits.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub struct BoundResources {
    /// The most, for devices also the least.
    #[serde(default)]
    pub limits: BTreeMap<String, String>,
}

/// The part of a pod's status that is read here.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct BoundStatus {
    /// `Succeeded` and `Failed` are over.
    #[serde(default)]
    pub phase: String,
    /// Init containers as they run.
    #[serde(default)]
    pub init_container_statuses: Vec<BoundRun>,
    /// Containers as they run.
    #[serde(default)]
    pub container_statuses: Vec<BoundRun>,
    /// Ephemeral containers as they run.
    #[serde(default)]
    pub ephemeral_container_statuses: Vec<BoundRun>,
}

/// The run of a container that is the latest.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct BoundRun {
    /// Name of the container.
    #[serde(default)]
    pub name: String,
    /// `containerd://` or the like, and the runtime's id; empty before the first run.
    #[serde(default, rename = "containerID")]
    pub container_id: String,
}

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// What the pods of this node ask for, by pod and resource; pods that are over or need no device are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demands(BTreeMap<PodName, Demand>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Demand {
    counts: Counts,
    /// When the pod was first seen here.
    since: Instant,
}

impl Demands {
    /// What the scheduler counts as taken.
    pub fn requested(&self) -> Counts {
        sum(self.0.values().map(|demand| &demand.counts))
    }

    /// The part of it that kubelet has given no device yet.
    pub fn in_flight<'a>(&self, owners: impl IntoIterator<Item = &'a DeviceOwner>) -> Flights {
        let landed: BTreeSet<PodName> =
            owners.into_iter().map(|owner| (owner.namespace.clone(), owner.pod.clone())).collect();
        let mut flights = Flights::new();
        for Demand { counts, since } in self.0.iter().filter(|(pod, _)| !landed.contains(*pod)).map(|(_, d)| d) {
            for (resource, count) in counts {
                let flight = flights.entry(resource.clone()).or_insert(Flight { count: 0, youngest: *since });
                *flight = Flight { count: flight.count + count, youngest: flight.youngest.max(*since) };
            }
        }
        flights
    }

    /// A pod keeps the time at which it was first seen, also when it changes.
    fn learn(&mut self, pod: &BoundPod, now: Instant) {
        let counts = demand(pod);
        if counts.is_empty() {
            self.0.remove(&name(pod));
        } else {
            let known = self.0.entry(name(pod)).or_insert_with(|| Demand { counts: Counts::new(), since: now });
            known.counts = counts;
        }
    }
}

fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
    let mut total = Counts::new();
    for (resource, count) in all.flatten() {
        *total.entry(resource.clone()).or_default() += count;
    }
    total
}

/// Namespace and name.
pub fn name(pod: &BoundPod) -> PodName {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}

/// As the scheduler counts: containers and sidecars together, or the greediest init container.
fn demand(pod: &BoundPod) -> Counts {
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        return Counts::new();
    }
    let sidecar = |container: &&BoundContainer| container.restart_policy.as_deref() == Some("Always");
    let (beside, before): (Vec<&BoundContainer>, Vec<&BoundContainer>) =
        pod.spec.init_containers.iter().partition(|container| sidecar(container));
    let together: Vec<Counts> = pod.spec.containers.iter().chain(beside).map(limits).collect();
    let mut total = sum(together.iter());
    for (resource, count) in before.into_iter().flat_map(limits) {
        let most = total.entry(resource).or_default();
        *most = count.max(*most);
    }
    total.retain(|_, count| *count > 0);
    total
}

fn limits(container: &BoundContainer) -> Counts {
    let devices = container.resources.limits.iter().filter(|(resource, _)| ours(resource));
    devices.map(|(resource, text)| (resource.clone(), count(text))).collect()
}

/// Watches the pods of a node for as long as it is polled; `latest` stays none where the agent may not read pods, and `suspects` empty.
pub async fn follow(
    client: Client,
    node: &str,
    latest: &watch::Sender<Option<Demands>>,
    suspects: &watch::Sender<Suspects>,
) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).streaming_lists();
    let mut events = watcher(Api::<BoundPod>::all(client), config).backoff(watch_backoff()).boxed();
    let (mut listing, mut suspected) = (Demands::default(), Suspects::default());
    let mut told = false;
    while let Some(event) = events.next().await {
        let known = |change: &dyn Fn(&mut Demands)| {
            latest.send_if_modified(|demands| {
                let before = demands.clone();
                demands.as_mut().map(change);
                *demands != before
            });
        };
        match event {
            Ok(watcher::Event::Init) => (listing, suspected) = (Demands::default(), Suspects::default()),
            Ok(watcher::Event::InitApply(pod)) => {
                listing.learn(&pod, Instant::now());
                suspected.learn(&pod);
            }
            // a list after a break tells no times: its pods count as bound just now, and are waited for once more
            Ok(watcher::Event::InitDone) => {
                latest.send_replace(Some(std::mem::take(&mut listing)));
                suspects.send_replace(std::mem::take(&mut suspected));
            }
            Ok(watcher::Event::Apply(pod)) => {
                known(&|demands| demands.learn(&pod, Instant::now()));
                suspects.send_if_modified(|suspects| suspects.learn(&pod));
            }
            Ok(watcher::Event::Delete(pod)) => {
                known(&|demands| {
                    demands.0.remove(&name(&pod));
                });
                suspects.send_if_modified(|suspects| suspects.forget(&pod));
            }
            Err(error) if !told => {
                tracing::warn!(%error, "cannot watch this node's pods: one that is being bound while devices are withdrawn may fail");
                told = true;
            }
            Err(error) => tracing::debug!(%error, "watching this node's pods"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const R: &str = "nvidia.com/mig-1g.10gb";

    fn pod(name: &str, json: &serde_json::Value) -> BoundPod {
        let mut all =
            serde_json::json!({"metadata": {"namespace": "team-a", "name": name}, "spec": {"containers": []}});
        all.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn asks(count: &str) -> serde_json::Value {
        serde_json::json!({"resources": {"limits": {R: count, "cpu": "2"}}})
    }

    #[test]
    fn counts_as_the_scheduler_does() {
        let sidecar = serde_json::json!({"restartPolicy": "Always", "resources": {"limits": {R: "1"}}});
        let spec =
            serde_json::json!({"spec": {"containers": [asks("1"), asks("1")], "initContainers": [asks("2"), sidecar]}});
        assert_eq!(demand(&pod("p", &spec)), [(R.to_owned(), 3)].into());
        let spec = serde_json::json!({"spec": {"containers": [asks("1")], "initContainers": [asks("4")]}});
        assert_eq!(demand(&pod("p", &spec)), [(R.to_owned(), 4)].into());
    }

    #[test]
    fn a_pod_that_is_over_asks_for_nothing() {
        let over = serde_json::json!({"spec": {"containers": [asks("1")]}, "status": {"phase": "Failed"}});
        assert!(demand(&pod("p", &over)).is_empty());
    }

    #[test]
    fn a_pod_is_in_flight_until_kubelet_gives_it_a_device() {
        let (mut demands, early) = (Demands::default(), Instant::now());
        let late = early + Duration::from_secs(3);
        let asking = |name: &str, count: &str| pod(name, &serde_json::json!({"spec": {"containers": [asks(count)]}}));
        demands.learn(&asking("landed", "2"), early);
        demands.learn(&asking("flying", "1"), early);
        demands.learn(&asking("flying", "1"), late);
        let owner = DeviceOwner { namespace: "team-a".into(), pod: "landed".into(), container: "c".into() };
        let flight = |count, youngest| Flights::from([(R.to_owned(), Flight { count, youngest })]);
        assert_eq!(demands.in_flight([&owner]), flight(1, early), "a pod that changes is no new pod");
        demands.learn(&asking("later", "1"), late);
        assert_eq!(demands.in_flight([&owner]), flight(2, late));
        assert_eq!(demands.requested(), [(R.to_owned(), 4)].into());
    }
}
