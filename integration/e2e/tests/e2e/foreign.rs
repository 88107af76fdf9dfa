//! Another owner of a node's GPUs: nothing is touched there, the pool says who it is, and all goes on when it is gone.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Result, World,
    objects::{self, Life, ensure, says, set_guarantee},
    product,
    scene::{mig_profile, pool, tenant, workload},
    story::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNodeSpec, GpuPool, Partitioner, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

const NODE: &str = "gpu-1";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// How another owner shows itself, and what the pool says then.
struct Sign {
    put: &'static [&'static str],
    remove: &'static [&'static str],
    words: &'static [&'static str],
}

const SIGNS: &[Sign] = &[
    Sign {
        put: &["label", "node", NODE, "nvidia.com/mig.config=all-1g.10gb", "nvidia.com/gpu.deploy.mig-manager=true"],
        remove: &["label", "node", NODE, "nvidia.com/mig.config-", "nvidia.com/gpu.deploy.mig-manager-"],
        words: &[
            "NVIDIA's MIG manager",
            "nvidia.com/mig.config=all-1g.10gb",
            "nvidia.com/gpu.deploy.mig-manager=false",
        ],
    },
    Sign {
        put: &["label", "node", NODE, "nos.nebuly.com/gpu-partitioning=mig"],
        remove: &["label", "node", NODE, "nos.nebuly.com/gpu-partitioning-"],
        words: &["nos", "nos.nebuly.com/gpu-partitioning=mig", "remove label"],
    },
    Sign {
        put: &["annotate", "node", NODE, "hami.io/node-nvidia-register=[{\"id\":\"GPU-x\"}]"],
        remove: &["annotate", "node", NODE, "hami.io/node-nvidia-register-"],
        words: &["HAMi", "hami.io/node-nvidia-register", "remove annotation"],
    },
    Sign {
        put: &[],
        remove: &["delete", "resourceslice", "gpu-1-gpus"],
        words: &["NVIDIA's DRA driver", "ResourceSlice", "DaemonSet"],
    },
];

/// Everything of the node that is ours to touch, and must not be.
#[derive(Debug, PartialEq)]
struct Untouched {
    agreement: GpuNodeSpec,
    labels: BTreeMap<String, String>,
    slices: i64,
    pods: BTreeMap<String, Life>,
    /// Calls that changed anything on the silicon.
    carvings: Vec<String>,
}

impl Untouched {
    async fn of(world: &World) -> Result<Self> {
        let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
        let labels = node.metadata.labels.unwrap_or_default().into_iter();
        let history = world.nvsim(NODE, &["history"]).await?;
        let carving = |line: &&str| ["create", "destroy", "mode", "reset"].iter().any(|e| line.contains(e));
        Ok(Self {
            agreement: objects::gpu_node(&world.client, NODE).await?.spec,
            labels: labels.filter(|(key, _)| key.starts_with("gputenancy.io/")).collect(),
            slices: objects::allocatable(&world.client, NODE, SLICE).await?,
            pods: objects::running(&world.client, "small").await?,
            carvings: history.lines().filter(carving).map(String::from).collect(),
        })
    }
}

#[tokio::test]
async fn a_node_with_another_owner_is_not_touched_and_the_pool_names_it() {
    let world = World::enter().await.unwrap();
    let body = the_signs_come_and_go(&world).await;
    for sign in SIGNS {
        // a run that failed leaves no sign to the next test; nothing there is as good
        drop(world.kubectl(sign.remove).await);
    }
    world.keeping_evidence("foreign", async { body }).await;
}

async fn the_signs_come_and_go(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"])]).await?;
    world.set(&[tenant("small", &[("mig-1g", 2)])]).await?;
    tenant_ready(world, "small").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("small", "w", SLICE, 2)]).await?;
    world.pods_ready("small", 2).await?;
    for (more, sign) in (3..).zip(SIGNS) {
        stands_back(world, sign, more).await?;
    }
    let told = pod_events(world, "default", "ForeignPartitioner").await?;
    ensure(told.len() >= SIGNS.len(), format!("an event for each owner: {told:?}"))?;
    let gone = pod_events(world, "default", "ForeignPartitionerGone").await?;
    ensure(gone.len() >= SIGNS.len(), format!("and one when it is gone: {gone:?}"))
}

/// The other owner comes, a guarantee grows, the agent is started anew: nothing happens. It goes, and the guarantee is met.
async fn stands_back(world: &World, sign: &Sign, guarantee: i32) -> Result<()> {
    let mut before = eventually("the node's labels have followed the last change", PATIENCE, || async {
        let now = Untouched::of(world).await?;
        let state = now.labels.get(names::LAYOUT_STATE_LABEL).cloned();
        Ok(if state.as_deref() == Some("steady") { Ok(now) } else { Err(format!("{state:?}")) })
    })
    .await?;
    before.agreement.partitioner = Partitioner::None;
    if sign.put.is_empty() {
        world.set(&[slice()]).await?;
    } else {
        world.kubectl(sign.put).await?;
    }
    pool_says(world, "True", "Found", &[&["node gpu-1"], sign.words].concat()).await?;
    let told = eventually("the agent is told not to carve", PATIENCE, || async {
        let spec = objects::gpu_node(&world.client, NODE).await?.spec;
        Ok(if spec.partitioner == Partitioner::None { Ok(spec) } else { Err(format!("{:?}", spec.partitioner)) })
    })
    .await?;
    ensure(told == before.agreement, format!("nothing else is written: {told:?}"))?;
    set_guarantee(&world.client, "small", "mig-1g", guarantee).await?;
    restart_agent(world).await?;
    // several passes of the operator and several looks of the agent
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = Untouched::of(world).await?;
    ensure(after == before, format!("untouched: {before:?}, and then {after:?}"))?;

    world.kubectl(sign.remove).await?;
    pool_says(world, "False", "None", &[]).await?;
    let wanted = usize::try_from(guarantee).unwrap_or_default();
    world
        .layout("the guarantee is met", PATIENCE, |all| {
            all.iter().flatten().filter(|i| i.ends_with("1g.10gb")).count() == wanted
        })
        .await?;
    pool_ready(world, "p").await?;
    let pods = objects::running(&world.client, "small").await?;
    ensure(pods == before.pods, format!("nobody was evicted: {:?}, and then {pods:?}", before.pods))
}

/// What NVIDIA's DRA driver publishes for a node with one GPU.
fn slice() -> serde_json::Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "gpu-1-gpus"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}],
        },
    })
}

async fn pool_says(world: &World, status: &str, reason: &str, words: &[&str]) -> Result<()> {
    let pools = Api::<GpuPool>::all(world.client.clone());
    eventually(&format!("ForeignPartitioner={status}"), PATIENCE, || async {
        let conditions = pools.get("p").await?.status.unwrap_or_default().conditions;
        Ok(says(&conditions, "ForeignPartitioner", status, reason, words))
    })
    .await
}

/// Ends the agent of the node in an orderly way, and waits for the next one to be ready and to offer what the last one did.
async fn restart_agent(world: &World) -> Result<()> {
    let agents = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let here = ListParams::default()
        .labels("app.kubernetes.io/name=gputenancy-agent")
        .fields(&format!("spec.nodeName={NODE}"));
    let offered = objects::allocatable(&world.client, NODE, SLICE).await?;
    let old: Vec<String> = agents.list(&here).await?.items.into_iter().filter_map(|p| p.metadata.name).collect();
    for name in &old {
        agents.delete(name, &DeleteParams::default()).await?;
    }
    eventually("another agent is ready", PATIENCE, || async {
        let pods = agents.list(&here).await?.items;
        let new =
            pods.iter().any(|p| objects::is_ready(p) && p.metadata.name.as_ref().is_some_and(|n| !old.contains(n)));
        Ok(if new { Ok(()) } else { Err(format!("{} agents, none of them new and ready", pods.len())) })
    })
    .await?;
    eventually("what was offered is offered again", PATIENCE, || async {
        let now = objects::allocatable(&world.client, NODE, SLICE).await?;
        Ok(if now == offered { Ok(()) } else { Err(format!("{now} of {offered}")) })
    })
    .await
}
