//! A conflicting owner of a node's GPUs: the node is left alone, the pool names the owner, and changes resume without it.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, PodIdentity, ensure},
    product,
    scenario::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually, observed},
};
use gputenancy_crds::{GpuNodeSpec, GpuPool, GpuTenant, Partitioner, condition, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::DeleteParams};
use serde_json::json;

const NODE: &str = "gpu-1";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// A sign of another owner, and excerpts of the pool's condition.
struct Sign {
    put: &'static [&'static str],
    remove: &'static [&'static str],
    excerpts: &'static [&'static str],
}

const SIGNS: &[Sign] = &[
    Sign {
        put: &["label", "node", NODE, "nvidia.com/mig.config=all-1g.10gb", "nvidia.com/gpu.deploy.mig-manager=true"],
        remove: &["label", "node", NODE, "nvidia.com/mig.config-", "nvidia.com/gpu.deploy.mig-manager-"],
        excerpts: &[
            "NVIDIA's MIG manager",
            "nvidia.com/mig.config=all-1g.10gb",
            "nvidia.com/gpu.deploy.mig-manager=false",
        ],
    },
    Sign {
        put: &["label", "node", NODE, "nos.nebuly.com/gpu-partitioning=mig"],
        remove: &["label", "node", NODE, "nos.nebuly.com/gpu-partitioning-"],
        excerpts: &["nos", "nos.nebuly.com/gpu-partitioning=mig", "remove label"],
    },
    Sign {
        put: &["annotate", "node", NODE, "hami.io/node-nvidia-register=[{\"id\":\"GPU-x\"}]"],
        remove: &["annotate", "node", NODE, "hami.io/node-nvidia-register-"],
        excerpts: &["HAMi", "hami.io/node-nvidia-register", "remove annotation"],
    },
    Sign {
        put: &[],
        remove: &["delete", "resourceslice", "gpu-1-gpus"],
        excerpts: &["NVIDIA's DRA driver", "ResourceSlice", "DaemonSet"],
    },
];

/// The state of the node that the product could change.
#[derive(Debug, PartialEq)]
struct NodeState {
    spec: GpuNodeSpec,
    labels: BTreeMap<String, String>,
    slices: i64,
    pods: BTreeMap<String, PodIdentity>,
    /// NVML calls that changed a GPU, from the simulator's history.
    changes: Vec<String>,
}

impl NodeState {
    async fn of(world: &World) -> Result<Self> {
        let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
        let labels = node.metadata.labels.unwrap_or_default().into_iter();
        let history = world.nvsim(NODE, &["history"]).await?;
        let change = |line: &&str| ["create", "destroy", "mode", "reset"].iter().any(|e| line.contains(e));
        Ok(Self {
            spec: objects::gpu_node(&world.client, NODE).await?.spec,
            labels: labels.filter(|(key, _)| key.starts_with("gputenancy.io/")).collect(),
            slices: objects::allocatable(&world.client, NODE, SLICE).await?,
            pods: objects::running(&world.client, "small").await?,
            changes: history.lines().filter(change).map(String::from).collect(),
        })
    }
}

#[tokio::test]
async fn node_with_conflicting_owner_is_left_alone() {
    let world = World::enter().await.unwrap();
    let body = each_owner(&world).await;
    for sign in SIGNS {
        // also after a failure, for the next test; the sign may be gone already
        drop(world.kubectl(sign.remove).await);
    }
    world.keeping_evidence("conflicting-owner", async { body }).await;
}

async fn each_owner(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"])]).await?;
    world.set(&[tenant("small", &[("mig-1g", 2)])]).await?;
    tenant_ready(world, "small").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("small", "w", SLICE, 2)]).await?;
    world.pods_ready("small", 2).await?;
    for (more, sign) in (3..).zip(SIGNS) {
        owner_blocks_changes(world, sign, more).await?;
    }
    for reason in ["ForeignPartitioner", "ForeignPartitionerGone"] {
        let events = pod_events(world, "default", reason).await?;
        ensure(events.len() >= SIGNS.len(), format!("one {reason} for each owner: {events:?}"))?;
    }
    Ok(())
}

/// With the other owner present, neither a grown guarantee nor an agent restart changes the node; without it the guarantee is
/// met.
async fn owner_blocks_changes(world: &World, sign: &Sign, guarantee: i32) -> Result<()> {
    let mut before = eventually("the layout state label to be steady", PATIENCE, || async {
        let now = NodeState::of(world).await?;
        let state = now.labels.get(names::LAYOUT_STATE_LABEL).cloned();
        Ok(if state.as_deref() == Some("steady") { Ok(now) } else { Err(format!("{state:?}")) })
    })
    .await?;
    before.spec.partitioner = Partitioner::None;
    if sign.put.is_empty() {
        world.set(&[slice()]).await?;
    } else {
        world.kubectl(sign.put).await?;
    }
    pool_condition(world, "True", "Found", &[&["node gpu-1"], sign.excerpts].concat()).await?;
    let written = eventually("spec.partitioner None", PATIENCE, || async {
        let spec = objects::gpu_node(&world.client, NODE).await?.spec;
        Ok(if spec.partitioner == Partitioner::None { Ok(spec) } else { Err(format!("{:?}", spec.partitioner)) })
    })
    .await?;
    ensure(written == before.spec, format!("other fields of GpuNode.spec changed: {written:?}"))?;
    let grown = json!({"spec": {"gpus": [{"profile": "mig-1g", "count": guarantee}]}});
    observed(&Api::<GpuTenant>::all(world.client.clone()), "small", &grown).await?;
    restart_agent(world).await?;
    // the operator has reconciled the pool twice after the tenant's change and the new agent's first report
    for minutes in [30 + guarantee, 40 + guarantee] {
        let later = json!({"spec": {"disruption": {"drainTimeout": format!("{minutes}m")}}});
        observed(&Api::<GpuPool>::all(world.client.clone()), "p", &later).await?;
    }
    let after = NodeState::of(world).await?;
    ensure(after == before, format!("before {before:?}, after {after:?}"))?;

    world.kubectl(sign.remove).await?;
    pool_condition(world, "False", "None", &[]).await?;
    let wanted = usize::try_from(guarantee).unwrap_or_default();
    world
        .layout("the guarantee to be met", PATIENCE, |all| {
            all.iter().flatten().filter(|i| i.ends_with("1g.10gb")).count() == wanted
        })
        .await?;
    pool_ready(world, "p").await?;
    let pods = objects::running(&world.client, "small").await?;
    ensure(pods == before.pods, format!("pods before {:?}, after {pods:?}", before.pods))
}

/// The `ResourceSlice` of NVIDIA's DRA driver for a node with one GPU.
fn slice() -> serde_json::Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "gpu-1-gpus"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}],
        },
    })
}

async fn pool_condition(world: &World, status: &str, reason: &str, excerpts: &[&str]) -> Result<()> {
    world.condition_becomes::<GpuPool>("p", "ForeignPartitioner", status, reason, excerpts).await
}

/// Deletes the agent's pod, and waits until its successor is ready, has reported after a reconcile, and advertises the same devices.
async fn restart_agent(world: &World) -> Result<()> {
    let agents = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let offered = objects::allocatable(&world.client, NODE, SLICE).await?;
    let old: Vec<String> = world.agents_on(NODE).await?.into_iter().filter_map(|p| p.metadata.name).collect();
    for name in &old {
        agents.delete(name, &DeleteParams::default()).await?;
    }
    eventually("a new agent to be ready", PATIENCE, || async {
        let pods = world.agents_on(NODE).await?;
        let new =
            pods.iter().any(|p| objects::is_ready(p) && p.metadata.name.as_ref().is_some_and(|n| !old.contains(n)));
        Ok(if new { Ok(()) } else { Err(format!("{} agents, none new and ready", pods.len())) })
    })
    .await?;
    eventually("a report of the new agent", PATIENCE, || async {
        let conditions = objects::gpu_node(&world.client, NODE).await?.status.unwrap_or_default().conditions;
        let ready = objects::condition(&conditions, condition::READY);
        Ok(if ready.is_some_and(|c| c.status != "Unknown") { Ok(()) } else { Err(format!("{ready:?}")) })
    })
    .await?;
    eventually("the same allocatable as before", PATIENCE, || async {
        let now = objects::allocatable(&world.client, NODE, SLICE).await?;
        Ok(if now == offered { Ok(()) } else { Err(format!("{now} of {offered}")) })
    })
    .await
}
