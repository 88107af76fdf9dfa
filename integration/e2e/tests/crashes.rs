//! Kill the operator, the agent, kubelet or the node in the middle of a change: it ends at the old or the new layout, and
//! pods outside the plan never notice.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]

use std::{collections::BTreeSet, time::Duration};

use e2e::{
    Error, Result, World,
    objects::{self, Life, ensure, set_guarantee},
    product,
    scene::{mig_profile, pool, tenant, two_small_pods, workload},
    story::{settled, tenant_ready},
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt, TryStreamExt, pin_mut};
use gputenancy_crds::{ChangePhase, GpuNode};
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher},
};

/// Pods on gpu-2, in a pool of their own: whatever happens on gpu-1, they live on.
async fn bystanders(world: &World) -> Result<std::collections::BTreeMap<String, Life>> {
    world
        .set(&[
            mig_profile("mig-2g", "2g.20gb"),
            pool("aside", "gpu-2", &["mig-2g"]),
            tenant("aside", &[("mig-2g", 2)]),
        ])
        .await?;
    tenant_ready(world, "aside").await?;
    world.set(&[workload("aside", "calm", "nvidia.com/mig-2g.20gb", 2)]).await?;
    world.pods_ready("aside", 2).await
}

/// Asks for three halves, which moves one of the two small pods.
async fn grow(world: &World) -> Result<()> {
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await
}

/// Waits for the phases of changes on gpu-1 and calls `strike` once for each; ends when nothing changes any more.
async fn strike_in_phases(
    world: &World,
    strike: impl AsyncFn(ChangePhase) -> Result<()>,
) -> Result<BTreeSet<ChangePhase>> {
    let api = Api::<GpuNode>::all(world.client.clone());
    let config = watcher::Config::default().fields("metadata.name=gpu-1");
    let nodes = watcher(api, config).default_backoff().applied_objects().map_err(|e| Error::Wrong(e.to_string()));
    pin_mut!(nodes);
    let mut struck = BTreeSet::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, nodes.next()).await;
        let Ok(Some(node)) = next else {
            return Err(Error::Wrong(format!("the change stands still after strikes in {struck:?}")));
        };
        let phases: BTreeSet<ChangePhase> =
            node?.spec.gpus.iter().filter_map(|g| Some(g.change.as_ref()?.phase)).collect();
        for phase in &phases {
            if struck.insert(*phase) {
                strike(*phase).await?;
            }
        }
        if phases.is_empty() && !struck.is_empty() {
            return Ok(struck);
        }
    }
}

async fn ends_well(world: &World, calm: &std::collections::BTreeMap<String, Life>) -> Result<()> {
    settled(world, "3g.40gb", 3).await?;
    world.pods_ready("small", 2).await?;
    let now = objects::running(&world.client, "aside").await?;
    ensure(&now == calm, format!("bystanders untouched: before {calm:?}, now {now:?}"))
}

#[tokio::test]
async fn the_operator_killed_in_each_phase_is_continued_by_the_next_leader() {
    let world = World::enter().await.unwrap();
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        grow(&world).await?;
        let kill = async |_phase| {
            let pods = [
                "delete",
                "pod",
                "-n",
                product::NAMESPACE,
                "-l",
                "app.kubernetes.io/name=gputenancy-operator",
                "--force",
                "--grace-period=0",
            ];
            world.kubectl(&pods).await.map(drop)
        };
        let struck = strike_in_phases(&world, kill).await?;
        // a phase may be over before the watch tells of it; the kill in the middle of carving is the one that must have been
        ensure(struck.len() >= 3 && struck.contains(&ChangePhase::Partitioning), format!("killed in {struck:?}"))?;
        ends_well(&world, &calm).await
    };
    world.keeping_evidence("operator-killed", body).await;
}

#[tokio::test]
async fn the_agent_killed_between_two_nvml_calls_goes_on_where_it_was() {
    let world = World::enter().await.unwrap();
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        for (nth, when) in [("1", "after"), ("5", "before"), ("16", "after")] {
            let kill = [
                "inject",
                "--call",
                "change",
                "--kill",
                when,
                "--nth",
                nth,
                "--times",
                "1",
                "--process",
                "gputenancy-age",
            ];
            world.nvsim("gpu-1", &kill).await?;
        }
        grow(&world).await?;
        ends_well(&world, &calm).await?;
        let agents = [
            "get",
            "pods",
            "-n",
            product::NAMESPACE,
            "-l",
            "app.kubernetes.io/name=gputenancy-agent",
            "-o",
            "jsonpath={.items[*].status.containerStatuses[*].restartCount}",
        ];
        let restarts = world.kubectl(&agents).await?;
        ensure(
            restarts.split(' ').any(|n| n.parse::<i32>().unwrap_or(0) >= 1),
            format!("the agent was killed: {restarts}"),
        )
    };
    world.keeping_evidence("agent-killed", body).await;
    world.nvsim("gpu-1", &["clear-faults"]).await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_plugin_again() {
    let world = World::enter().await.unwrap();
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        grow(&world).await?;
        let node = world.lab.node("gpu-1")?;
        let kill = async |phase| match phase {
            ChangePhase::Evicting | ChangePhase::Partitioning => Ok(node.kill_component("kubelet").await?),
            _ => Ok(()),
        };
        strike_in_phases(&world, kill).await?;
        ends_well(&world, &calm).await?;
        let offered = objects::allocatable(&world.client, "gpu-1", "nvidia.com/mig-3g.40gb").await?;
        ensure(offered == 3, format!("three halves are offered after kubelet's restart, not {offered}"))
    };
    world.keeping_evidence("kubelet-restarted", body).await;
}

#[tokio::test]
async fn a_node_without_power_is_carved_again_before_it_offers_anything() {
    let world = World::enter().await.unwrap();
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        grow(&world).await?;
        let node = world.lab.node("gpu-1")?;
        let cycle = async |phase| {
            if phase == ChangePhase::Partitioning {
                node.power_off().await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                node.power_on().await?;
            }
            Ok(())
        };
        strike_in_phases(&world, cycle).await?;
        ends_well(&world, &calm).await?;
        eventually("allocatable equals NVML after the power cycle", PATIENCE, || async {
            let offered = objects::allocatable(&world.client, "gpu-1", "nvidia.com/mig-3g.40gb").await?;
            Ok(if offered == 3 { Ok(()) } else { Err(format!("{offered} offered")) })
        })
        .await
    };
    world.keeping_evidence("node-power-cycled", body).await;
}
