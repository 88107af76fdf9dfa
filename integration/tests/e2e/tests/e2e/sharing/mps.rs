//! MPS shares on a real kubelet: limits per share, one tenant per GPU, and the end of a daemon.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    fixtures::{merged, pool, tenant, workload},
    objects::{ensure, gpu_node, running},
    scenario::{self, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuNode;
use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "mps-a";
const OTHER: &str = "mps-b";
const LARGE: &str = "gputenancy.io/mps-large";
const SMALL: &str = "gputenancy.io/mps-small";

fn profile(name: &str, memory: &str, threads: i32) -> Value {
    let support = json!({"expected": "a fault of a neighbour ends the program", "incident": "a pod does not start although a share is free"});
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": {"mps": {"memory": memory, "threads": threads}}, "support": support},
    })
}

fn sharer(name: &str, guarantees: &[(&str, i32)]) -> Value {
    let mut sharer = tenant(name, guarantees);
    let spec = sharer["spec"].take();
    sharer["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    sharer
}

/// A pool whose first GPU has one large and two small shares.
fn shared_pool() -> Value {
    let mut fixed = pool("p", NODE, &["mps-large", "mps-small"]);
    let shares = json!([{"name": "mps-large", "count": 1}, {"name": "mps-small", "count": 2}]);
    let layout = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": shares}]});
    let spec = fixed["spec"].take();
    fixed["spec"] = merged(spec, json!({"layout": layout}));
    fixed
}

/// The `CUDA_MPS_*` variables of a pod.
async fn variables(world: &World, pod: &str) -> Result<BTreeMap<String, String>> {
    let text = world.kubectl(&["exec", "-n", TEAM, pod, "--", "cat", "/proc/1/environ"]).await?;
    let pairs = text.split('\0').filter_map(|pair| pair.strip_prefix("CUDA_MPS_")?.split_once('='));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Status, reason and message of the node's condition `MpsReady`.
fn mps_ready(node: &GpuNode) -> Option<(String, String, String)> {
    let mut conditions = node.status.iter().flat_map(|s| &s.conditions);
    let found = conditions.find(|c| c.type_ == "MpsReady")?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

async fn mps_becomes(world: &World, status: &str) -> Result<String> {
    eventually(&format!("MpsReady={status}"), PATIENCE, || async {
        let found = mps_ready(&gpu_node(&world.client, NODE).await?);
        Ok(match found {
            Some((now, _, message)) if now == status => Ok(message),
            other => Err(format!("{other:?}")),
        })
    })
    .await
}

/// Events about a pod that name a reason why its container does not start.
async fn start_failure(world: &World, namespace: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), namespace);
    eventually("an event about the refused start", PATIENCE, || async {
        let found = events.list(&ListParams::default()).await?;
        let mut notes = found.items.into_iter().filter_map(|event| event.note);
        Ok(notes.find(|note| note.contains("tenants do not share an MPS server")).ok_or("no such event".to_owned()))
    })
    .await
}

#[tokio::test]
async fn unequal_shares_run_under_their_limits_and_a_killed_daemon_recovers() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[profile("mps-large", "30Gi", 50), profile("mps-small", "10Gi", 25)]).await?;
        let of_team = sharer(TEAM, &[("mps-large", 1), ("mps-small", 1)]);
        world.set(&[shared_pool(), of_team, sharer(OTHER, &[("mps-small", 1)])]).await?;
        tenant_ready(&world, TEAM).await?;
        tenant_ready(&world, OTHER).await?;
        pool_ready(&world, "p").await?;
        world.set(&[workload(TEAM, "large", LARGE, 1), workload(TEAM, "small", SMALL, 1)]).await?;
        let pods = world.pods_ready(TEAM, 2).await?;

        for pod in pods.keys() {
            let found = variables(&world, pod).await?;
            let (memory, threads) = if pod.starts_with("large") { ("0=30720M", "50") } else { ("0=10240M", "25") };
            let limits = (found["PINNED_DEVICE_MEM_LIMIT"].as_str(), found["ACTIVE_THREAD_PERCENTAGE"].as_str());
            ensure(limits == (memory, threads), format!("{pod}: {found:?}"))?;
            scenario::visible_gpus(&world, TEAM, pod).await?;
            let mounts = world.kubectl(&["exec", "-n", TEAM, pod, "--", "cat", "/proc/1/mountinfo"]).await?;
            let mut pipes = mounts.lines().filter(|line| line.contains(" /run/gputenancy/mps/pipe "));
            let read_only = pipes.next().is_some_and(|line| line.contains(" /run/gputenancy/mps/pipe ro,"));
            ensure(read_only, format!("{pod} can write among the daemon's sockets: {mounts}"))?;
        }
        mps_becomes(&world, "True").await?;

        world.set(&[workload(OTHER, "second", SMALL, 1)]).await?;
        let refused = start_failure(&world, OTHER).await?;
        let named = refused.contains(&format!("namespace {OTHER}")) && refused.contains("GPU GPU-");
        ensure(named && !refused.contains(TEAM), format!("names the GPU, and not the other tenant: {refused}"))?;
        ensure(running(&world.client, OTHER).await?.is_empty(), "the second tenant's container must not run")?;
        world.kubectl(&["scale", "deployment", "-n", OTHER, "second", "--replicas=0"]).await?;

        // the control program's process id is in the folder of its pipes
        let kill = "kill -9 $(cat /run/gputenancy/mps/GPU-*/tenant-mps-a/pipe/nvidia-cuda-mps-control.pid)";
        world.on_node(NODE, &["sh", "-c", kill]).await?;
        let message = mps_becomes(&world, "False").await?;
        ensure(pods.keys().all(|pod| message.contains(&format!("{TEAM}/{pod}"))), &message)?;
        mps_becomes(&world, "True").await?;
        eventually("an event of each pod that the daemon took down", PATIENCE, || async {
            let found = scenario::pod_events(&world, TEAM, "MpsDaemonEnded").await?;
            let all = pods.keys().all(|pod| found.iter().any(|event| event.starts_with(&format!("{pod}: "))));
            Ok(if all { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await?;
        eventually("both programs run again", PATIENCE, || async {
            let list = Api::<Pod>::namespaced(world.client.clone(), TEAM).list(&ListParams::default()).await?;
            let containers = list.items.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
            let restarted = containers.flatten().filter(|c| c.ready && c.restart_count > 0).count();
            Ok(if restarted == 2 { Ok(()) } else { Err(format!("{restarted} restarted")) })
        })
        .await
    };
    world.keeping_evidence("mps", body).await;
}
