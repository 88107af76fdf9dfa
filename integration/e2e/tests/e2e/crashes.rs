//! Kill the operator, the agent, kubelet or the node in the middle of a change: it ends at the new layout, and pods outside
//! the plan never notice.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Result, World,
    objects::{self, Life, ensure, set_guarantee},
    product,
    scene::{mig_profile, pool, tenant, two_small_pods, workload},
    story::{settled, tenant_ready},
    strike::{self, Phases},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

const HALF: &str = "nvidia.com/mig-3g.40gb";
/// A budget that forbids to evict any of the small pods.
const BUDGET: &str = "stay";
/// A policy that keeps gpu-1 from offering new halves.
const POLICY: &str = "e2e-no-new-halves";

/// A change on gpu-1 is disturbed: it ends at the new layout, kubelet and scheduler agree, and the pods on gpu-2 live on.
async fn disturbed(test: &str, world: World, disturb: impl AsyncFn(&World) -> Result<()>) {
    let body = async {
        let calm = bystanders(&world).await?;
        two_small_pods(&world).await?;
        Box::pin(disturb(&world)).await?;
        settled(&world, "3g.40gb", 3).await?;
        world.pods_ready("small", 2).await?;
        // an API server that comes back may take nodes for dead for a moment, and their pods for unready; they are the same ones
        let now = world.pods_ready("aside", 2).await?;
        ensure(now == calm, format!("bystanders untouched: before {calm:?}, now {now:?}"))?;
        eventually("three halves are offered", PATIENCE, || async {
            let offered = objects::allocatable(&world.client, "gpu-1", HALF).await?;
            Ok(if offered == 3 { Ok(()) } else { Err(format!("{offered} offered")) })
        })
        .await
    };
    world.keeping_evidence(test, body).await;
}

/// Pods on gpu-2, in a pool of their own: whatever happens on gpu-1, they live on.
async fn bystanders(world: &World) -> Result<BTreeMap<String, Life>> {
    let shape = mig_profile("mig-2g", "2g.20gb");
    world.set(&[shape, pool("aside", "gpu-2", &["mig-2g"]), tenant("aside", &[("mig-2g", 2)])]).await?;
    tenant_ready(world, "aside").await?;
    world.set(&[workload("aside", "calm", "nvidia.com/mig-2g.20gb", 2)]).await?;
    world.pods_ready("aside", 2).await
}

/// Asks for three halves. One GPU changes under the pod that stays, then the other one, whose pod has to move.
async fn grow(world: &World) -> Result<()> {
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await
}

fn has_three_halves(node: &GpuNode) -> bool {
    objects::layouts(node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count() == 3
}

#[tokio::test]
async fn the_operator_killed_in_each_phase_goes_on_where_it_was() {
    disturbed("operator-killed", World::enter_real().await.unwrap(), async |world| {
        hold_phases(world).await?;
        grow(world).await?;
        let kill = async |_| {
            strike::kill_leader(world).await?;
            // nobody writes phases now: this is what the kill interrupted
            let hit = strike::phases(world, "gpu-1").await?;
            let_go(world, &hit).await?;
            Ok(hit)
        };
        let killed = strike::in_phases(world, "gpu-1", has_three_halves, kill).await;
        // also after a failure: the next test finds the cluster free
        let_go(world, &[ChangePhase::Evicting, ChangePhase::Verifying].into()).await?;
        let killed = killed?;
        for phase in [ChangePhase::Noticed, ChangePhase::Evicting, ChangePhase::Partitioning, ChangePhase::Verifying] {
            ensure(killed.contains(&phase), format!("killed in {killed:?}, not in {phase:?}"))?;
        }
        Ok(())
    })
    .await;
}

/// Makes every phase that could pass too quickly last until it is let go: notice by the pool's rule, evictions by a budget,
/// verifying by a policy against new halves. Carving takes seconds by itself.
async fn hold_phases(world: &World) -> Result<()> {
    let notice = json!({"spec": {"disruption": {"notice": "10s"}}}).to_string();
    world.kubectl(&["patch", "gpupool", "p", "--type=merge", "-p", &notice]).await?;
    world.set(&[vec![budget()], no_new_halves()].concat()).await?;
    let offer = json!({"status": {"allocatable": {HALF: "99"}}}).to_string();
    let offer = ["patch", "node", "gpu-1", "--subresource=status", "--dry-run=server", "--type=merge", "-p", &offer];
    eventually("the policy in force", PATIENCE, || async {
        Ok(match world.kubectl(&offer).await {
            Err(error) if error.to_string().contains(POLICY) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await
}

fn budget() -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": BUDGET, "namespace": "small"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "w"}}},
    })
}

fn no_new_halves() -> Vec<Value> {
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

/// Lets these phases end.
async fn let_go(world: &World, phases: &Phases) -> Result<()> {
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
async fn an_api_server_away_for_a_minute_while_owners_are_evicted_costs_nothing_but_time() {
    disturbed("api-server-away", World::enter().await.unwrap(), async |world| {
        world.set(&[budget()]).await?;
        grow(world).await?;
        let body = async {
            eventually("a change that evicts, held up by the budget", PATIENCE, || async {
                let phases = strike::phases(world, "gpu-1").await?;
                Ok(if phases.contains(&ChangePhase::Evicting) { Ok(()) } else { Err(format!("{phases:?}")) })
            })
            .await?;
            world.lab.stop_apiserver().await?;
            tokio::time::sleep(Duration::from_mins(1)).await;
            world.lab.start_apiserver().await?;
            Ok::<_, e2e::Error>(())
        };
        let outcome = body.await;
        let_go(world, &[ChangePhase::Evicting].into()).await?;
        outcome
    })
    .await;
}

#[tokio::test]
async fn the_agent_killed_between_two_nvml_calls_goes_on_where_it_was() {
    disturbed("agent-killed", World::enter().await.unwrap(), async |world| {
        let before = agent_restarts(world).await?;
        for (nth, when) in [("1", "after"), ("5", "before"), ("16", "after")] {
            let fault = ["inject", "--call", "change", "--kill", when, "--nth", nth, "--process", "gputenancy-age"];
            world.nvsim("gpu-1", &fault).await?;
        }
        grow(world).await?;
        settled(world, "3g.40gb", 3).await?;
        world.nvsim("gpu-1", &["clear-faults"]).await?;
        let restarts = agent_restarts(world).await? - before;
        ensure(restarts == 3, format!("the agent was killed three times, and restarted {restarts} times"))
    })
    .await;
}

/// Restarts of the agent on gpu-1.
async fn agent_restarts(world: &World) -> Result<i32> {
    let agents = ListParams::default().labels("app.kubernetes.io/name=gputenancy-agent").fields("spec.nodeName=gpu-1");
    let agents = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE).list(&agents).await?;
    Ok(agents.iter().map(|pod| objects::life(pod).restarts).sum())
}

#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_plugin_again() {
    disturbed("kubelet-restarted", World::enter_real().await.unwrap(), async |world| {
        grow(world).await?;
        let node = world.lab.node("gpu-1")?;
        let kill = async |phase| {
            if matches!(phase, ChangePhase::Evicting | ChangePhase::Partitioning) {
                node.kill_component("kubelet").await?;
            }
            Ok([phase].into())
        };
        let killed = strike::in_phases(world, "gpu-1", has_three_halves, kill).await?;
        ensure(killed.contains(&ChangePhase::Partitioning), format!("killed in {killed:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_node_without_power_is_carved_again_before_it_offers_anything() {
    disturbed("node-power-cycled", World::enter_real().await.unwrap(), async |world| {
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
        let cycled = strike::in_phases(world, "gpu-1", has_three_halves, cycle).await?;
        ensure(cycled.contains(&ChangePhase::Partitioning), format!("cycled in {cycled:?}"))
    })
    .await;
}
