//! Kubelet that restarts with, without and with a corrupt checkpoint, also together with the agent: pods on MIG instances and shares run on, the team's
//! budget stays, and the devices stay advertised. A folder of the host that is made again is mounted again.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    fixtures::{merged, mig_profile, pool, restricted_spec, tenant, workload},
    interrupt,
    objects::{self, PodIdentity, allocatable, ensure, gpu_node},
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuState, names};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "keepers";
const INSTANCE: &str = "nvidia.com/mig-3g.40gb";
const SHARED: &str = "nvidia.com/gpu.shared";
/// Devices of each resource, all of which are in use.
const DEVICES: [(&str, i32); 2] = [(INSTANCE, 2), (SHARED, 3)];
const PODS: usize = 5;
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
const CDI: &str = "/var/run/cdi";
/// Specification of another program, the simulator.
const SIMULATOR: &str = "/var/run/cdi/gputenancy-simulator.json";

/// What happens to kubelet's checkpoint while kubelet is stopped.
const KEPT: &str = "true";
const DELETED: &str = "rm -f";
const CORRUPT: &str = "printf '{' | tee";

#[tokio::test]
async fn pods_run_on_when_kubelet_restarts_with_any_checkpoint() {
    let world = World::enter().await.unwrap();
    let body = async {
        let before = full_node(&world).await?;
        for (number, (checkpoint, agent)) in
            // once kubelet has forgotten the pods, it ends them if it starts while the agent is down (docs/troubleshooting.md)
            [(KEPT, false), (KEPT, true), (DELETED, false), (DELETED, false), (CORRUPT, false)]
                    .into_iter()
                    .enumerate()
        {
            let case = format!("{checkpoint}, agent killed: {agent}");
            restart_kubelet(&world, checkpoint, agent).await?;
            admitted(&world, number).await?;
            nothing_changed(&world, &case, &before).await?;
        }
        // kubelet does not know the pods, and neither does an agent without memory
        interrupt::kill_agent(&world, NODE).await?;
        nothing_changed(&world, "agent killed later", &before).await
    };
    world.keeping_evidence("kubelet-memory", body).await;
}

#[tokio::test]
async fn folder_of_the_host_that_is_made_again_is_mounted_again() {
    let world = World::enter().await.unwrap();
    let body = async {
        let before = full_node(&world).await?;
        let first = restarts(&world).await?;
        let kept = "/run/kept-specification.json";
        let again = format!("cp {SIMULATOR} {kept} && rm -rf {CDI} && mkdir {CDI} && mv {kept} {SIMULATOR}");
        world.on_node(NODE, &["sh", "-c", &again]).await?;
        // containerd learns of it when no container has the removed folder, and the simulator's also has
        let on_node = format!("spec.nodeName={NODE}");
        let simulator = ["-n", product::NAMESPACE, "-l", "app.kubernetes.io/name=gputenancy-simulator"];
        world.kubectl(&[&["delete", "pod", "--field-selector", &on_node][..], &simulator].concat()).await?;
        eventually("the specification in the new folder", PATIENCE, || async {
            let found = world.on_node(NODE, &["ls", CDI]).await?;
            let now = restarts(&world).await?;
            let written = found.lines().any(|file| file == "gputenancy.io-gpu.json");
            Ok(if written && now > first { Ok(()) } else { Err(format!("{found:?}, {now} restarts")) })
        })
        .await?;
        nothing_changed(&world, "folder made again", &before).await?;
        // a new pod gets its device through it
        let pods = Api::<Pod>::namespaced(world.client.clone(), TEAM);
        let instances = pods.list(&ListParams::default().labels("app=instances")).await?;
        let ended = instances.items.first().map(ResourceExt::name_any).unwrap_or_default();
        world.kubectl(&["delete", "pod", "-n", TEAM, &ended]).await?;
        world.pods_ready(TEAM, PODS).await.map(drop)
    };
    world.keeping_evidence("folder-made-again", body).await;
}

/// Restarts of the agent's containers.
async fn restarts(world: &World) -> Result<i32> {
    Ok(world.agents_on(NODE).await?.iter().map(|pod| objects::identity(pod).restarts).sum())
}

/// All devices of the node are in use by pods of one team.
async fn full_node(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {
            "device": {"timeSlice": {"replicas": 3}},
            "support": {"expected": "neighbours on the GPU are noticed", "incident": "a pod does not start although a share is free"},
        },
    });
    let mut team = tenant(TEAM, &[("mig-3g", 2), ("turns", 3)]);
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    world.set(&[mig_profile("mig-3g", "3g.40gb"), turns, pool("p", NODE, &["mig-3g", "turns"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[workload(TEAM, "instances", INSTANCE, 2), workload(TEAM, "shares", SHARED, 3)]).await?;
    let pods = world.pods_ready(TEAM, PODS).await?;
    offered(world, "before").await?;
    Ok(pods)
}

async fn restart_kubelet(world: &World, checkpoint: &str, agent: bool) -> Result<()> {
    let node = world.lab.node(NODE)?;
    node.stop_component("kubelet").await?;
    let changed = world.on_node(NODE, &["sh", "-c", &format!("{checkpoint} {CHECKPOINT}")]).await;
    if agent {
        interrupt::kill_agent(world, NODE).await?;
    }
    // also after a failure
    node.start_component("kubelet").await?;
    changed.map(drop)
}

/// Kubelet admits its pods in the order of their creation: it has admitted all others before a new one runs.
async fn admitted(world: &World, number: usize) -> Result<()> {
    let name = format!("mark-{number}");
    let spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"],
    }));
    let here = json!({"nodeSelector": {"kubernetes.io/hostname": NODE}, "terminationGracePeriodSeconds": 1});
    let mark: Value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TEAM}, "spec": merged(spec, here),
    });
    world.set(&[mark]).await?;
    eventually("a new pod on the node", PATIENCE, || async {
        let pod = Api::<Pod>::namespaced(world.client.clone(), TEAM).get(&name).await?;
        Ok(if objects::is_ready(&pod) { Ok(()) } else { Err(format!("{:?}", pod.status.and_then(|s| s.phase))) })
    })
    .await?;
    world.kubectl(&["delete", "pod", "-n", TEAM, &name]).await.map(drop)
}

/// The pods run on, each with its device; quota and budget are as before.
async fn nothing_changed(world: &World, case: &str, before: &BTreeMap<String, PodIdentity>) -> Result<()> {
    offered(world, case).await?;
    let now = objects::running(&world.client, TEAM).await?;
    ensure(now == *before, format!("{case}: before {before:?}, now {now:?}"))?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), TEAM).list(&ListParams::default()).await?.items;
    ensure(pods.len() == PODS, format!("{case}: {} pods, some ended by kubelet", pods.len()))
}

/// Waits until each device is advertised and has its owner, and the quota grants all of them.
async fn offered(world: &World, case: &str) -> Result<()> {
    eventually(&format!("{case}: all devices advertised, and owned"), PATIENCE, || async {
        let status = gpu_node(&world.client, NODE).await?.status.unwrap_or_default();
        let devices: Vec<_> = status.gpus.iter().flat_map(GpuState::devices).collect();
        let owned = devices.iter().filter(|device| device.owner.is_some() && device.allocatable).count();
        let retained = devices.iter().filter(|device| device.former_owner.is_some()).count();
        let quota = Api::<ResourceQuota>::namespaced(world.client.clone(), TEAM).get(names::QUOTA).await?;
        let hard = quota.status.and_then(|status| status.hard).unwrap_or_default();
        for (resource, count) in DEVICES {
            let offered = allocatable(&world.client, NODE, resource).await?;
            let limit = hard.get(&format!("requests.{resource}")).map(|quantity| quantity.0.clone());
            if offered != i64::from(count) || limit != Some(count.to_string()) {
                return Ok(Err(format!("{offered} of {resource} allocatable, quota {limit:?}")));
            }
        }
        Ok(if (owned, retained) == (PODS, 0) { Ok(()) } else { Err(format!("{owned} owned, {retained} left over")) })
    })
    .await
}
