//! Many pods start on one node with MIG instances and time-slices, while its agent is killed and kubelet restarts: each device is given
//! to one pod. With `GPUTENANCY_ROUNDS=2` or more they are fifty, and each program is killed twice.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, tenant, workload},
    interrupt,
    kubelet::PodResources,
    objects::{ensure, gpu_node},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually, rounds},
};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "fifty";
const INSTANCES: i32 = 7;
/// Time-slices of a short run, and of a long one.
const SHARES: [i32; 2] = [13, 43];
/// Devices in use at which the agent is killed (true) or kubelet (false), as far as there are so many.
const KILLS: [(usize, bool); 4] = [(5, true), (15, false), (25, true), (35, false)];

#[tokio::test]
async fn killed_agent_and_restarted_kubelet_give_each_device_to_one_pod() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("allocation-kills", many_pods(&world)).await;
}

async fn many_pods(world: &World) -> Result<()> {
    let shares = SHARES[usize::from(rounds() > 1)];
    let all = usize::try_from(INSTANCES + shares).unwrap_or(50);
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {
            "device": {"timeSlice": {"replicas": shares}},
            "sharing": {"maxReplicas": shares, "reason": "a test with many pods"},
            "support": {"expected": "many neighbours", "incident": "a pod does not start although a share is free"},
        },
    });
    let mut team = tenant(TEAM, &[("mig-1g", INSTANCES), ("turns", shares)]);
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    world.set(&[mig_profile("mig-1g", "1g.10gb"), turns, pool("p", NODE, &["mig-1g", "turns"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    let mark = world.nvsim(NODE, &["history"]).await?.lines().count();
    world
        .set(&[
            workload(TEAM, "instances", "nvidia.com/mig-1g.10gb", INSTANCES),
            workload(TEAM, "shares", "nvidia.com/gpu.shared", shares),
        ])
        .await?;
    let node = world.lab.node(NODE)?;
    for (devices, agent) in KILLS.into_iter().filter(|(devices, _)| *devices < all) {
        in_use(world, mark, devices).await?;
        if agent {
            interrupt::kill_agent(world, NODE).await?;
        } else {
            node.kill_component("kubelet").await?;
        }
    }
    let pods = world.pods_ready(TEAM, all).await?;

    // kubelet's list, the agent's status and the driver's record agree
    let kubelet = PodResources::at(&node.kubelet_file("pod-resources/kubelet.sock")).unwrap();
    let expected: BTreeSet<&String> = pods.keys().collect();
    eventually(&format!("{all} devices with one owner each"), PATIENCE, || async {
        let owners = kubelet.owners("nvidia.com/").await.map_err(|status| Error::Wrong(status.to_string()))?;
        let by_kubelet: BTreeSet<&String> = owners.values().map(|owner| &owner.pod).collect();
        let status = gpu_node(&world.client, NODE).await?.status.unwrap_or_default();
        let devices = status.gpus.iter().flat_map(|gpu| gpu.devices().filter_map(|d| Some(&d.owner.as_ref()?.pod)));
        let by_agent: Vec<&String> = devices.collect();
        let same = by_kubelet == expected && by_agent.iter().copied().collect::<BTreeSet<_>>() == expected;
        let once = owners.len() == expected.len() && by_agent.len() == expected.len();
        Ok(if same && once { Ok(()) } else { Err(format!("{} owners, {} devices", owners.len(), by_agent.len())) })
    })
    .await?;
    let most = record(world, mark).await?.values().map(BTreeSet::len).max();
    ensure(most <= usize::try_from(shares).ok(), format!("{most:?} pods on one GPU with {shares} shares"))
}

/// Waits until pods have attached to so many devices since the mark.
async fn in_use(world: &World, mark: usize, devices: usize) -> Result<()> {
    eventually(&format!("{devices} devices in use"), PATIENCE, || async {
        let found: usize = record(world, mark).await?.values().map(BTreeSet::len).sum();
        Ok(if found >= devices { Ok(()) } else { Err(found.to_string()) })
    })
    .await
}

/// Owners that were on a device at the same time, by the simulator's record: the most of each device. An instance has one.
async fn record(world: &World, mark: usize) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut most: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in world.nvsim(NODE, &["history"]).await?.lines().skip(mark) {
        let line: Value =
            serde_json::from_str(line).map_err(|e| Error::Text { what: line.into(), why: e.to_string() })?;
        if line["event"] != "attach" {
            continue;
        }
        let mut together: BTreeSet<String> =
            line["others"].as_array().into_iter().flatten().filter_map(|o| o.as_str().map(str::to_owned)).collect();
        together.extend(line["owner"].as_str().map(str::to_owned));
        let device = line["uuid"].as_str().unwrap_or_default().to_owned();
        ensure(!device.starts_with("MIG-") || together.len() == 1, format!("two pods on one instance: {line}"))?;
        let known = most.entry(device).or_default();
        if together.len() > known.len() {
            *known = together;
        }
    }
    Ok(most)
}
