//! The story of the demo, step by step, each step returning what was seen; the test asserts it, the demo prints it.

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
    forecast::Layouts,
    objects::{self, Life},
    wait::{PATIENCE, eventually},
};

/// Namespace of the first team, whose pods use `mig-1g`.
pub const TEAM_A: &str = "team-a";
/// Namespace of the second team, whose pods use `mig-3g`.
pub const TEAM_B: &str = "team-b";
/// The sample in which team-b's guarantee for `mig-3g` grows.
pub const GROWN: &str = "grown/team-b.yaml";
/// What it grows to: with four GPUs, all but one of them are needed whole for it.
pub const GROWN_TO: usize = 7;
/// Resource of the profile `mig-1g`.
pub const MIG_1G: &str = "nvidia.com/mig-1g.10gb";
/// Resource of the profile `mig-3g`.
pub const MIG_3G: &str = "nvidia.com/mig-3g.40gb";

/// Applies catalog, pool and tenants, and waits until the tenants are Ready and the pool is laid out: pods started earlier
/// would all go to the node that is partitioned first.
pub async fn onboard(world: &World) -> Result<()> {
    for file in ["catalog.yaml", "pool.yaml", "tenants.yaml"] {
        world.sample(file).await?;
    }
    for tenant in [TEAM_A, TEAM_B] {
        tenant_ready(world, tenant).await?;
    }
    pool_ready(world, "inference").await.map(drop)
}

/// Waits until a pool is Ready at its present generation, nothing changing.
pub async fn pool_ready(world: &World, name: &str) -> Result<GpuPool> {
    let api = Api::<GpuPool>::all(world.client.clone());
    eventually(&format!("pool {name} Ready"), PATIENCE, || async {
        let pool = api.get(name).await?;
        let status = pool.status.clone().unwrap_or_default();
        let current = status.observed_generation == pool.metadata.generation && status.changing == Some(0);
        Ok(if current && condition::is_true(&status.conditions, condition::READY) {
            Ok(pool)
        } else {
            Err(format!("{:?}", objects::condition(&status.conditions, condition::READY).map(|c| &c.message)))
        })
    })
    .await
}

/// Waits until a tenant is Ready at its present generation.
pub async fn tenant_ready(world: &World, name: &str) -> Result<GpuTenant> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("tenant {name} Ready"), PATIENCE, || async {
        let tenant = api.get(name).await?;
        let status = tenant.status.clone().unwrap_or_default();
        let current = status.observed_generation == tenant.metadata.generation;
        Ok(if current && condition::is_true(&status.conditions, condition::READY) {
            Ok(tenant)
        } else {
            Err(format!("{:?}", objects::condition(&status.conditions, condition::READY).map(|c| &c.message)))
        })
    })
    .await
}

/// Starts the pods of both teams: two of `mig-1g`, two of `mig-3g`.
pub async fn start_pods(world: &World) -> Result<BTreeMap<String, Life>> {
    world.sample("pods/team-a.yaml").await?;
    world.sample("pods/team-b.yaml").await?;
    let mut pods = world.pods_ready(TEAM_A, 2).await?;
    pods.extend(world.pods_ready(TEAM_B, 2).await?);
    Ok(pods)
}

/// What a pod sees of its GPU, from inside, by NVML.
pub async fn inside(world: &World, namespace: &str, pod: &str) -> Result<String> {
    world.kubectl(&["exec", "-n", namespace, pod, "--", "gpu-work", "show"]).await
}

/// Asks for one device more in a namespace; the API server's refusal.
pub async fn refused(world: &World, namespace: &str, resource: &str) -> Result<String> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "one-too-many"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "c", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {resource: "1"}},
            }],
        },
    }))
    .map_err(|e| Error::Text { what: "a pod".into(), why: e.to_string() })?;
    match Api::<Pod>::namespaced(world.client.clone(), namespace).create(&PostParams::default(), &pod).await {
        Ok(_) => Err(Error::Wrong(format!("a pod beyond the quota of {namespace} was accepted"))),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(status.message.clone()),
        Err(other) => Err(other.into()),
    }
}

/// Where the device of a pod is: node, GPU index and start.
pub type Place = (String, i32, i32);

/// The devices of so many pods on these nodes, by pod name. A status follows kubelet a moment later, so that a pod may be Ready before
/// it is read here.
pub async fn all_hold(world: &World, nodes: &[&str], pods: usize) -> Result<BTreeMap<String, Place>> {
    eventually(&format!("{pods} pods with their devices in the statuses"), PATIENCE, || async {
        let mut held = holdings(world).await?;
        held.retain(|_, (node, ..)| nodes.contains(&node.as_str()));
        Ok(if held.len() == pods { Ok(held) } else { Err(format!("{held:?}")) })
    })
    .await
}

/// The device that each pod holds, by pod name, read from the agreements.
pub async fn holdings(world: &World) -> Result<BTreeMap<String, Place>> {
    let nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    let mut held = BTreeMap::new();
    for node in &nodes {
        for gpu in node.status.iter().flat_map(|s| &s.gpus) {
            for instance in &gpu.instances {
                if let Some(owner) = &instance.device.owner {
                    held.insert(owner.pod.clone(), (node.name_any(), gpu.index, instance.start));
                }
            }
        }
    }
    Ok(held)
}

/// A change that is journalled on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Journal {
    /// The GPU as text: node and NVML's index.
    pub gpu: String,
    /// The phase of the change.
    pub phase: ChangePhase,
    /// Why it is made, or why it failed.
    pub reason: String,
}

impl std::fmt::Display for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}: {}", self.gpu, self.phase, self.reason)
    }
}

/// Every change that is journalled on any GPU now.
pub async fn changes(world: &World) -> Result<Vec<Journal>> {
    let nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of = |node: &GpuNode| {
        let index = |uuid: &str| {
            let gpus = node.status.as_ref().map(|s| s.gpus.as_slice()).unwrap_or_default();
            gpus.iter().find(|g| g.uuid == uuid).map_or(-1, |g| g.index)
        };
        let line = |g: &gputenancy_crds::GpuSpec| {
            let change = g.change.as_ref()?;
            let gpu = format!("{} GPU {}", node.name_any(), index(&g.uuid));
            Some(Journal { gpu, phase: change.phase, reason: change.reason.clone() })
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

/// Waits until so many instances of a profile exist in the cluster and nothing changes any more.
pub async fn settled(world: &World, profile: &str, count: usize) -> Result<Vec<Vec<String>>> {
    let suffix = format!(":{profile}");
    let enough = |all: &[Vec<String>]| all.iter().flatten().filter(|i| i.ends_with(&suffix)).count() >= count;
    world.layout(&format!("{count} instances of {profile}, and rest"), PATIENCE * 2, enough).await
}

/// Events about pods of a namespace with this reason.
pub async fn pod_events(world: &World, namespace: &str, reason: &str) -> Result<Vec<String>> {
    let events = Api::<Event>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
    let told = events.into_iter().filter(|e| e.reason.as_deref() == Some(reason));
    Ok(told
        .map(|e| format!("{}: {}", e.involved_object.name.unwrap_or_default(), e.message.unwrap_or_default()))
        .collect())
}
