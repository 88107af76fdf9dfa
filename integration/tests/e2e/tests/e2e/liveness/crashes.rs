//! Crashes of operator, agent, kubelet, API server or node during a change, and an agent that leaves: it ends at the new layout, and pods outside of the
//! plan keep running.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use e2e::{
    Result, World,
    departure::{agent_leaves, agent_returns, install_as_before, install_as_client},
    fixtures::{mig_profile, no_eviction, pool, tenant, two_small_pods, workload},
    interrupt::{self, Phases},
    objects::{self, PodIdentity, ensure, set_guarantee},
    scenario::{NODES, instances_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, GpuPool};
use serde_json::{Value, json};

const HALF: &str = "nvidia.com/mig-3g.40gb";
/// A `PodDisruptionBudget` that permits no eviction of the small pods.
const BUDGET: &str = "stay";
/// A policy that keeps the allocatable 3g.40gb devices of gpu-1 constant.
const POLICY: &str = "e2e-no-new-devices";

/// Runs a change on gpu-1 with a disturbance: it ends at the new layout, allocatable follows, and pods on gpu-2 keep running.
async fn disturbed(test: &str, world: World, disturb: impl AsyncFn(&World) -> Result<()>) {
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        Box::pin(disturb(&world)).await?;
        instances_ready(&world, "3g.40gb", 3).await?;
        world.pods_ready("small", 2).await?;
        // after an API server outage, nodes and their pods can be NotReady for a moment
        let now = world.pods_ready("aside", 2).await?;
        ensure(now == calm, format!("pods on gpu-2: before {calm:?}, now {now:?}"))?;
        eventually("three allocatable 3g.40gb devices", PATIENCE, || async {
            let offered = objects::allocatable(&world.client, "gpu-1", HALF).await?;
            Ok(if offered == 3 { Ok(()) } else { Err(format!("{offered} allocatable")) })
        })
        .await
    };
    world.keeping_evidence(test, body).await;
}

/// Starts pods on gpu-2, in a separate pool.
async fn bystanders(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    let shape = mig_profile("mig-2g", "2g.20gb");
    world.set(&[shape, pool("aside", "gpu-2", &["mig-2g"]), tenant("aside", &[("mig-2g", 2)])]).await?;
    tenant_ready(world, "aside").await?;
    world.set(&[workload("aside", "calm", "nvidia.com/mig-2g.20gb", 2)]).await?;
    world.pods_ready("aside", 2).await
}

/// Raises the guarantee to three 3g.40gb devices: one GPU changes beside its pod, the other after an eviction.
async fn grow(world: &World) -> Result<()> {
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await
}

fn has_three_big(node: &GpuNode) -> bool {
    objects::layouts(node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count() == 3
}

#[tokio::test]
async fn operator_killed_in_each_phase_resumes_the_change() {
    disturbed("operator-killed", World::enter_realtime().await.unwrap(), async |world| {
        block_phases(world).await?;
        grow(world).await?;
        let kill = async |_| {
            interrupt::kill_leader(world).await?;
            // without a leader no phase changes: these were interrupted
            let hit = interrupt::phases(world, "gpu-1").await?;
            unblock(world, &hit).await?;
            Ok(hit)
        };
        let killed = interrupt::in_phases(world, "gpu-1", has_three_big, kill).await;
        // also after a failure, for the next test
        unblock(world, &[ChangePhase::Evicting, ChangePhase::Verifying].into()).await?;
        let killed = killed?;
        for phase in [ChangePhase::Noticed, ChangePhase::Evicting, ChangePhase::Partitioning, ChangePhase::Verifying] {
            ensure(killed.contains(&phase), format!("killed in {killed:?}, not in {phase:?}"))?;
        }
        Ok(())
    })
    .await;
}

/// Makes short phases last: Noticed by the pool's notice, Evicting by a `PodDisruptionBudget`, Verifying by a policy that keeps
/// allocatable constant. Partitioning takes seconds.
async fn block_phases(world: &World) -> Result<()> {
    let notice = json!({"spec": {"disruption": {"notice": "10s"}}}).to_string();
    world.kubectl(&["patch", "gpupool", "p", "--type=merge", "-p", &notice]).await?;
    world.set(&[vec![no_eviction("small", BUDGET)], no_new_devices()].concat()).await?;
    let offer = json!({"status": {"allocatable": {HALF: "99"}}}).to_string();
    let offer = ["patch", "node", "gpu-1", "--subresource=status", "--dry-run=server", "--type=merge", "-p", &offer];
    eventually("the policy to be enforced", PATIENCE, || async {
        Ok(match world.kubectl(&offer).await {
            Err(error) if error.to_string().contains(POLICY) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await
}

fn no_new_devices() -> Vec<Value> {
    let amount = |object: &str| format!("string({object}.status.?allocatable['{HALF}'].orValue('0'))");
    let nodes =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes/status"]});
    let same = format!("object.metadata.name != 'gpu-1' || {} == {}", amount("object"), amount("oldObject"));
    let kind = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec});
    let rule = json!({"matchConstraints": {"resourceRules": [nodes]}, "validations": [{"expression": same}]});
    vec![
        kind("ValidatingAdmissionPolicy", rule),
        kind("ValidatingAdmissionPolicyBinding", json!({"policyName": POLICY, "validationActions": ["Deny"]})),
    ]
}

/// Removes what blocks these phases.
async fn unblock(world: &World, phases: &Phases) -> Result<()> {
    let delete = ["delete", "--ignore-not-found"];
    if phases.contains(&ChangePhase::Evicting) {
        world.kubectl(&[delete.as_slice(), &["pdb", "-n", "small", BUDGET]].concat()).await?;
    }
    if phases.contains(&ChangePhase::Verifying) {
        let policy = "validatingadmissionpolicybinding,validatingadmissionpolicy";
        world.kubectl(&[delete.as_slice(), &[policy, POLICY]].concat()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_that_leaves_in_each_phase_suspends_the_change() {
    let world = World::enter_realtime().await.unwrap();
    disturbed("agent-left", world, async |world| {
        install_as_client(world).await?;
        block_phases(world).await?;
        // Partitioning lasts until the agent is told to stop
        world.nvsim("gpu-1", &["inject", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--hang", "8"]).await?;
        grow(world).await?;
        let leave = async |_| {
            agent_leaves(world, "gpu-1").await?;
            // without an agent no phase changes: these were interrupted
            let hit = interrupt::phases(world, "gpu-1").await?;
            unblock(world, &hit).await?;
            agent_returns(world, "gpu-1").await?;
            Ok(hit)
        };
        let left = interrupt::in_phases(world, "gpu-1", has_three_big, leave).await;
        // also after a failure, for the next test
        unblock(world, &[ChangePhase::Evicting, ChangePhase::Verifying].into()).await?;
        world.nvsim("gpu-1", &["clear-faults"]).await?;
        install_as_before(world).await?;
        let left = left?;
        for phase in [ChangePhase::Noticed, ChangePhase::Evicting, ChangePhase::Partitioning, ChangePhase::Verifying] {
            ensure(left.contains(&phase), format!("left in {left:?}, not in {phase:?}"))?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn cordon_of_nvsentinel_in_each_phase_suspends_or_cancels_the_change() {
    disturbed("cordoned", World::enter_realtime().await.unwrap(), async |world| {
        block_phases(world).await?;
        let health = json!({"spec": {"health": {"clearAfter": "0s", "maxUnavailable": "100%"}}}).to_string();
        world.kubectl(&["patch", "gpupool", "p", "--type=merge", "-p", &health]).await?;
        // Partitioning lasts until the node is cordoned
        world.nvsim("gpu-1", &["inject", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--hang", "8"]).await?;
        grow(world).await?;
        let cordon = async |phase| {
            let label = "k8saas.nvidia.com/cordon-by=NVSentinel";
            world.kubectl(&["label", "node", "gpu-1", "--overwrite", label]).await?;
            world.kubectl(&["cordon", "gpu-1"]).await?;
            world
                .condition_becomes::<GpuPool>("p", "NodesMarked", "True", "Marked", &["node gpu-1: it is cordoned"])
                .await?;
            let hit = interrupt::phases(world, "gpu-1").await?.into_iter().chain([phase]).collect();
            unblock(world, &hit).await?;
            world.kubectl(&["uncordon", "gpu-1"]).await?;
            Ok(hit)
        };
        let met = interrupt::in_phases(world, "gpu-1", has_three_big, cordon).await;
        // also after a failure, for the next test
        unblock(world, &[ChangePhase::Evicting, ChangePhase::Verifying].into()).await?;
        world.nvsim("gpu-1", &["clear-faults"]).await?;
        let met = met?;
        for phase in [ChangePhase::Noticed, ChangePhase::Evicting, ChangePhase::Partitioning, ChangePhase::Verifying] {
            ensure(met.contains(&phase), format!("cordoned in {met:?}, not in {phase:?}"))?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn api_server_outage_during_eviction_only_delays_the_change() {
    disturbed("api-server-away", World::enter().await.unwrap(), async |world| {
        world.set(&[no_eviction("small", BUDGET)]).await?;
        grow(world).await?;
        let body = async {
            eventually("a change in phase Evicting", PATIENCE, || async {
                let phases = interrupt::phases(world, "gpu-1").await?;
                Ok(if phases.contains(&ChangePhase::Evicting) { Ok(()) } else { Err(format!("{phases:?}")) })
            })
            .await?;
            let (node, leader) = interrupt::leading(world).await?;
            world.lab.stop_apiserver().await?;
            let lost = ended(world, &node, &leader).await;
            // also after a failure
            world.lab.start_apiserver().await?;
            lost?;
            nodes_not_ready(world).await
        };
        let outcome = body.await;
        unblock(world, &[ChangePhase::Evicting].into()).await?;
        outcome
    })
    .await;
}

/// Waits until one of these processes of a node has ended: a leader that cannot renew its lease ends.
async fn ended(world: &World, node: &str, processes: &[String]) -> Result<()> {
    eventually("the leader to end without its lease", PATIENCE, || async {
        let now = world.on_node(node, &["sh", "-c", "cd /proc && ls -d [0-9]*"]).await?;
        let now: BTreeSet<&str> = now.split_whitespace().collect();
        let run = processes.iter().all(|process| now.contains(process.as_str()));
        Ok(if run { Err(format!("{processes:?} of {node} run")) } else { Ok(()) })
    })
    .await
}

/// Writes of the GPU nodes what Kubernetes' node controller writes after an outage of 50 seconds. Kubelets correct it within 10 seconds.
async fn nodes_not_ready(world: &World) -> Result<()> {
    for node in NODES {
        let ready = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"});
        let status = json!({"status": {"conditions": [ready]}}).to_string();
        eventually(&format!("{node} not Ready"), PATIENCE, || async {
            let patched = world.kubectl(&["patch", "node", node, "--subresource=status", "-p", &status]).await;
            Ok(patched.map(drop).map_err(|error| error.to_string()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_killed_between_nvml_calls_resumes_the_change() {
    disturbed("agent-killed", World::enter().await.unwrap(), async |world| {
        let before = agent_restarts(world).await?;
        for (nth, when) in [("1", "after"), ("5", "before"), ("16", "after")] {
            let fault = ["inject", "--call", "change", "--kill", when, "--nth", nth, "--process", "gputenancy-age"];
            world.nvsim("gpu-1", &fault).await?;
        }
        grow(world).await?;
        instances_ready(world, "3g.40gb", 3).await?;
        world.nvsim("gpu-1", &["clear-faults"]).await?;
        let restarts = agent_restarts(world).await? - before;
        ensure(restarts == 3, format!("{restarts} restarts after 3 kills"))
    })
    .await;
}

/// Restarts of the agent on gpu-1.
async fn agent_restarts(world: &World) -> Result<i32> {
    Ok(world.agents_on("gpu-1").await?.iter().map(|pod| objects::identity(pod).restarts).sum())
}

#[tokio::test]
async fn kubelet_restart_reregisters_the_device_plugin() {
    disturbed("kubelet-restarted", World::enter_realtime().await.unwrap(), async |world| {
        grow(world).await?;
        let node = world.lab.node("gpu-1")?;
        let kill = async |phase| {
            if matches!(phase, ChangePhase::Evicting | ChangePhase::Partitioning) {
                node.kill_component("kubelet").await?;
            }
            Ok([phase].into())
        };
        let killed = interrupt::in_phases(world, "gpu-1", has_three_big, kill).await?;
        ensure(killed.contains(&ChangePhase::Partitioning), format!("killed in {killed:?}"))
    })
    .await;
}

#[tokio::test]
async fn node_power_loss_restores_layout_before_advertising() {
    disturbed("node-power-cycled", World::enter_realtime().await.unwrap(), async |world| {
        grow(world).await?;
        let node = world.lab.node("gpu-1")?;
        let cycle = async |phase| {
            if phase == ChangePhase::Partitioning {
                node.power_off().await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                node.power_on().await?;
            }
            Ok([phase].into())
        };
        let cycled = interrupt::in_phases(world, "gpu-1", has_three_big, cycle).await?;
        ensure(cycled.contains(&ChangePhase::Partitioning), format!("cycled in {cycled:?}"))
    })
    .await;
}
