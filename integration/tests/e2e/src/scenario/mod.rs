//! Steps of the demo. Each returns what it observed: the test asserts it, the demo prints it.

pub mod h100;

use std::collections::BTreeMap;

use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, GpuTenant, condition};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;

pub use crate::world::NODES;
use crate::{
    Error, Result, World,
    objects::{self, ClusterObject, PodIdentity},
    plan_preview::Layouts,
    product,
    specs::restricted_spec,
    wait::{PATIENCE, eventually},
};

/// Namespace of the first team, whose pods use `mig-1g`.
pub const TEAM_A: &str = "team-a";
/// Namespace of the second team, whose pods use `mig-3g`.
pub const TEAM_B: &str = "team-b";
/// Namespace of the third team, whose pods share GPUs.
pub const TEAM_C: &str = "team-c";
/// The sample that adds shares for the third team.
pub const SHARED: &str = "sharing/team-c.yaml";
/// The sample in which team-b's guarantee for `mig-3g` grows.
pub const GROWN: &str = "grown/team-b.yaml";
/// Devices of the grown guarantee: of four GPUs, three are needed in full and half of the fourth.
pub const GROWN_TO: usize = 7;
/// Resource of the profile `mig-1g`.
pub const MIG_1G: &str = "nvidia.com/mig-1g.10gb";
/// Resource of the profile `mig-3g`.
pub const MIG_3G: &str = "nvidia.com/mig-3g.40gb";

/// Applies catalog, pool and tenants, and waits until tenants and pool are Ready: earlier pods would all be scheduled to the
/// node that is partitioned first.
pub async fn onboard(world: &World) -> Result<()> {
    for file in ["catalog.yaml", "pool.yaml", "tenants.yaml"] {
        world.sample(file).await?;
    }
    for tenant in [TEAM_A, TEAM_B] {
        tenant_ready(world, tenant).await?;
    }
    pool_ready(world, "inference").await.map(drop)
}

/// Gives team-c shares of two GPUs and starts its pods, four time-slices and two fractions; returns the GPUs that each pod sees.
pub async fn share(world: &World) -> Result<BTreeMap<String, String>> {
    world.sample(SHARED).await?;
    tenant_ready(world, TEAM_C).await?;
    pool_ready(world, "inference").await?;
    world.sample("pods/team-c.yaml").await?;
    let mut seen = BTreeMap::new();
    for pod in world.pods_ready(TEAM_C, 6).await?.into_keys() {
        let gpus = visible_gpus(world, TEAM_C, &pod).await?;
        seen.insert(pod, gpus.trim().to_owned());
    }
    Ok(seen)
}

/// The table of `kubectl gpu top`, once the agents have sampled the pods of team-c.
pub async fn usage(world: &World) -> Result<String> {
    eventually("team-c in kubectl gpu top", PATIENCE, || async {
        let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["top"]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = output.status.success() && text.contains("experiment-") && text.contains("service-");
        Ok(if shown { Ok(text) } else { Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))) })
    })
    .await
}

/// Waits until a pool is Ready at its present generation and no GPU is changing.
pub async fn pool_ready(world: &World, name: &str) -> Result<GpuPool> {
    ready(world, name, |pool: &GpuPool| pool.status.as_ref().is_some_and(|s| s.changing == Some(0))).await
}

/// Waits until a tenant is Ready at its present generation.
pub async fn tenant_ready(world: &World, name: &str) -> Result<GpuTenant> {
    ready(world, name, |_| true).await
}

/// Waits until an object is Ready at its present generation and satisfies a predicate.
async fn ready<K: ClusterObject>(world: &World, name: &str, good: impl Fn(&K) -> bool) -> Result<K> {
    let api = Api::<K>::all(world.client.clone());
    eventually(&format!("{} {name} Ready", K::kind(&())), PATIENCE, || async {
        let object = api.get(name).await?;
        let (conditions, observed) = objects::status(&object);
        let current = observed == object.meta().generation && good(&object);
        let ready = objects::condition(&conditions, condition::READY);
        Ok(if current && ready.is_some_and(|c| c.status == "True") { Ok(object) } else { Err(format!("{ready:?}")) })
    })
    .await
}

/// Starts the pods of both teams: two of `mig-1g`, two of `mig-3g`.
pub async fn start_pods(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    world.sample("pods/team-a.yaml").await?;
    world.sample("pods/team-b.yaml").await?;
    let mut pods = world.pods_ready(TEAM_A, 2).await?;
    pods.extend(world.pods_ready(TEAM_B, 2).await?);
    Ok(pods)
}

/// The GPUs and MIG devices that NVML lists inside a pod.
pub async fn visible_gpus(world: &World, namespace: &str, pod: &str) -> Result<String> {
    world.kubectl(&["exec", "-n", namespace, pod, "--", "gpu-work", "show"]).await
}

/// Creates a pod beyond the quota of a namespace and returns the API server's refusal.
pub async fn refused_pod(world: &World, namespace: &str, resource: &str) -> Result<String> {
    let spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {resource: "1"}},
    }));
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "one-too-many"}, "spec": spec}))
        .map_err(|e| Error::Text { what: "a pod".into(), why: e.to_string() })?;
    match Api::<Pod>::namespaced(world.client.clone(), namespace).create(&PostParams::default(), &pod).await {
        Ok(_) => Err(Error::Wrong(format!("a pod beyond the quota of {namespace} was accepted"))),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(status.message.clone()),
        Err(other) => Err(other.into()),
    }
}

/// Position of a pod's device: node, GPU index and start.
pub type Place = (String, i32, i32);

/// Waits until the statuses of these nodes list devices of exactly `pods` pods, and returns them by pod name. A pod can be Ready
/// a moment before its device is in the status.
pub async fn wait_for_devices(world: &World, nodes: &[&str], pods: usize) -> Result<BTreeMap<String, Place>> {
    eventually(&format!("{pods} pods with their devices in the statuses"), PATIENCE, || async {
        let mut held = devices_by_pod(world).await?;
        held.retain(|_, (node, ..)| nodes.contains(&node.as_str()));
        Ok(if held.len() == pods { Ok(held) } else { Err(format!("{held:?}")) })
    })
    .await
}

/// The device of each pod, by pod name, from `GpuNode.status`.
pub async fn devices_by_pod(world: &World) -> Result<BTreeMap<String, Place>> {
    let nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    let mut held = BTreeMap::new();
    for node in &nodes {
        for gpu in node.status.iter().flat_map(|s| &s.gpus) {
            for instance in &gpu.instances {
                if let Some(owner) = instance.device.as_ref().and_then(|d| d.owner.as_ref()) {
                    held.insert(owner.pod.clone(), (node.name_any(), gpu.index, instance.start));
                }
            }
        }
    }
    Ok(held)
}

/// A change recorded in `GpuNode.spec.gpus[].change`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeRecord {
    /// The GPU as text: node and NVML's index.
    pub gpu: String,
    /// The phase of the change.
    pub phase: ChangePhase,
    /// Reason of the change, or of its failure.
    pub reason: String,
}

impl std::fmt::Display for ChangeRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}: {}", self.gpu, self.phase, self.reason)
    }
}

/// All changes that are recorded now.
pub async fn changes(world: &World) -> Result<Vec<ChangeRecord>> {
    let nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of = |node: &GpuNode| {
        let index = |uuid: &str| {
            let gpus = node.status.as_ref().map(|s| s.gpus.as_slice()).unwrap_or_default();
            gpus.iter().find(|g| g.uuid == uuid).map_or(-1, |g| g.index)
        };
        let line = |g: &gputenancy_crds::GpuSpec| {
            let change = g.change.as_ref()?;
            let gpu = format!("{} GPU {}", node.name_any(), index(&g.uuid));
            Some(ChangeRecord { gpu, phase: change.phase, reason: change.reason.clone() })
        };
        node.spec.gpus.iter().filter_map(line).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(of).collect())
}

/// The layout of every GPU, in the form of [`objects::layouts`].
pub async fn layouts(world: &World) -> Result<Layouts> {
    let nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of = |node: &GpuNode| {
        let indices: Vec<i32> = node.status.iter().flat_map(|s| &s.gpus).map(|g| g.index).collect();
        let name = node.name_any();
        indices.into_iter().map(move |i| (name.clone(), i)).zip(objects::layouts(node)).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(of).collect())
}

/// Waits until at least `count` instances of a profile exist in the cluster and no GPU is changing.
pub async fn instances_ready(world: &World, profile: &str, count: usize) -> Result<Vec<Vec<String>>> {
    let suffix = format!(":{profile}");
    let enough = |all: &[Vec<String>]| all.iter().flatten().filter(|i| i.ends_with(&suffix)).count() >= count;
    world.layout(&format!("{count} instances of {profile} and no change"), PATIENCE * 2, enough).await
}

/// Events about pods of a namespace with this reason.
pub async fn pod_events(world: &World, namespace: &str, reason: &str) -> Result<Vec<String>> {
    let events = Api::<Event>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
    let found = events.into_iter().filter(|e| e.reason.as_deref() == Some(reason));
    Ok(found
        .map(|e| format!("{}: {}", e.involved_object.name.unwrap_or_default(), e.message.unwrap_or_default()))
        .collect())
}
