//! A pool whose devices NVIDIA's own plugin offers, unmodified: only for a change the node is cordoned, and only by us uncordoned.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World,
    objects::{self, Life, ensure, set_guarantee},
    product,
    scene::{mig_profile, pool, tenant},
    story::{pod_events, pool_ready, tenant_ready},
    strike,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, names};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
/// A node that has nothing to do with any of it.
const OTHER: &str = "gpu-2";
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const BIG: &str = "nvidia.com/mig-3g.40gb";

#[tokio::test]
async fn nvidias_plugin_advertises_what_was_carved_and_the_node_is_cordoned_only_meanwhile() {
    let world = World::enter().await.unwrap();
    let body = change_under_nvidias_plugin(&world).await;
    leave(&world).await.unwrap();
    world.keeping_evidence("nvidia-plugin", async { body }).await;
}

/// Nobody's test after this one shall meet the plugin, or a cordon.
async fn leave(world: &World) -> Result<()> {
    world.kubectl(&["delete", "namespace", "nvidia", "--ignore-not-found", "--wait"]).await?;
    world.kubectl(&["uncordon", NODE, OTHER]).await.map(drop)
}

#[tokio::test]
async fn the_operator_killed_under_nvidias_plugin_goes_on_and_lifts_its_cordon_and_no_other() {
    let world = World::enter_real().await.unwrap();
    let body = killed_under_nvidias_plugin(&world).await;
    leave(&world).await.unwrap();
    world.keeping_evidence("nvidia-plugin-killed", async { body }).await;
}

async fn killed_under_nvidias_plugin(world: &World) -> Result<()> {
    let small = two_small_pods(world).await?;
    world.kubectl(&["cordon", OTHER]).await?;
    // one beside the small ones, two where a whole device has to be withdrawn first
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    let halves = |node: &GpuNode| objects::layouts(node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count();
    let carved = |node: &GpuNode| halves(node) == 3;
    let kill = async |phase| {
        // what is cordoned after the kill is so by the one that is killed
        cordoned_by_us(world).await?;
        strike::kill_leader(world).await?;
        let hit = strike::phases(world, NODE).await?;
        ensure(
            cordon(world, NODE).await?.1.is_some(),
            format!("the mark of the cordon outlives the operator in {phase:?}"),
        )?;
        Ok(hit)
    };
    let killed = strike::in_phases(world, NODE, carved, kill).await?;
    // what is held here has no owner, so that phase may be over before the kill hits
    ensure(killed.contains(&ChangePhase::Partitioning), format!("killed in {killed:?}, not while it carves"))?;
    settled(world, BIG, 3).await?;
    world.set(&[sleepers("big", BIG, 3)]).await?;
    world.pods_ready("big", 3).await?;
    have(world, "big", "3g.40gb").await?;
    ensure(objects::running(&world.client, "small").await? == small, "nobody was touched")?;
    have(world, "small", "1g.10gb").await?;
    ensure(cordon(world, OTHER).await? == (true, None), "an administrator's cordon elsewhere stays")
}

async fn cordoned_by_us(world: &World) -> Result<()> {
    eventually("the node is cordoned for the change", PATIENCE, || async {
        let (cordoned, mark) = cordon(world, NODE).await?;
        Ok(if cordoned && mark.is_some() { Ok(()) } else { Err(format!("{cordoned} {mark:?}")) })
    })
    .await
}

/// The plugin, a pool of its devices, and two pods that have one each.
async fn two_small_pods(world: &World) -> Result<BTreeMap<String, Life>> {
    world.set(&plugin()).await?;
    let mut supply = pool("p", NODE, &["mig-1g", "mig-3g"]);
    supply["spec"]["advertiser"] = "NvidiaDevicePlugin".into();
    // in the end no small device is left, though pods use them until then
    supply["spec"]["disruption"]["allowOutage"] = true.into();
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), supply]).await?;
    world.set(&[tenant("small", &[("mig-1g", 2)]), tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    settled(world, SMALL, 2).await?;
    world.set(&[sleepers("small", SMALL, 2)]).await?;
    let small = world.pods_ready("small", 2).await?;
    have(world, "small", "1g.10gb").await?;
    Ok(small)
}

async fn change_under_nvidias_plugin(world: &World) -> Result<()> {
    let small = two_small_pods(world).await?;

    // a guarantee grows: the node is cordoned by us, nobody moves, and the new instance can be had
    set_guarantee(&world.client, "big", "mig-3g", 1).await?;
    cordoned_by_us(world).await?;
    settled(world, BIG, 1).await?;
    world.set(&[sleepers("big", BIG, 1)]).await?;
    world.pods_ready("big", 1).await?;
    have(world, "big", "3g.40gb").await?;
    ensure(objects::running(&world.client, "small").await? == small, "nobody was touched")?;
    ensure(!pod_events(world, "default", "DevicePluginRestarted").await?.is_empty(), "the plugin was started anew")?;

    // an administrator's cordon is not ours to lift
    world.kubectl(&["cordon", NODE]).await?;
    set_guarantee(&world.client, "big", "mig-3g", 2).await?;
    offered(world, BIG, 2).await?;
    pool_ready(world, "p").await?;
    ensure(cordon(world, NODE).await? == (true, None), "an administrator's cordon stays, and is not ours")?;
    world.kubectl(&["uncordon", NODE]).await?;

    // what must go is evicted, and nobody else
    let big = objects::running(&world.client, "big").await?;
    set_guarantee(&world.client, "small", "mig-1g", 0).await?;
    set_guarantee(&world.client, "big", "mig-3g", 4).await?;
    settled(world, BIG, 4).await?;
    ensure(objects::running(&world.client, "small").await?.is_empty(), "owners of what went were evicted")?;
    ensure(objects::running(&world.client, "big").await? == big, "and nobody else")
}

/// NVIDIA's device plugin as a DaemonSet of its usual label. It runs in the node's mount namespace, where the simulated driver
/// and the toolset lie.
fn plugin() -> Vec<Value> {
    let root = product::root();
    let path = |of: &str| root.join(of).display().to_string();
    let (tools, driver) = (path("target/toolset/bin"), "/run/nvidia/driver");
    let script = format!(
        "set -e; mkdir -p /run/device-plugin/mnt; \
         {nvsim} --state {driver}/run/nvsim materialize --root /run/device-plugin --driver-root {driver}; \
         exec {with} /run/device-plugin {tools}/nvidia-device-plugin --mig-strategy=mixed \
         --device-discovery-strategy=nvml --device-list-strategy=envvar --driver-root-ctr-path={driver} \
         --nvidia-driver-root={driver} --nvidia-dev-root=/ --nvidia-cdi-hook-path={tools}/nvidia-cdi-hook",
        nvsim = path("target/debug/nvsim"),
        with = path("integration/nvml-sim/tests/with-driver"),
    );
    let labels = json!({"app": "nvidia-device-plugin-daemonset"});
    let enforce = json!({"pod-security.kubernetes.io/enforce": "privileged"});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nvidia", "labels": enforce}}),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "plugin", "namespace": "nvidia"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "hostPID": true, "terminationGracePeriodSeconds": 5,
                    "nodeSelector": {"kubernetes.io/hostname": NODE}, "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "plugin", "image": "lab.local/busybox:1", "imagePullPolicy": "Never",
                        "command": ["/bin/nsenter", "-t", "1", "-m", "--", "/bin/sh", "-c", script],
                        "securityContext": {"privileged": true},
                    }],
                }},
            },
        }),
    ]
}

/// Pods that hold a device and do nothing with it.
fn sleepers(namespace: &str, resource: &str, replicas: i32) -> Value {
    let labels = json!({"app": "w"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "w", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", "86400"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "resources": {"limits": {resource: "1"}},
            }],
        }}},
    })
}

/// Is a node cordoned, and since when by us?
async fn cordon(world: &World, node: &str) -> Result<(bool, Option<String>)> {
    let node = Api::<Node>::all(world.client.clone()).get(node).await?;
    let mark = node.metadata.annotations.and_then(|all| all.get(names::CORDONED).cloned());
    Ok((node.spec.and_then(|s| s.unschedulable).unwrap_or(false), mark))
}

async fn offered(world: &World, resource: &str, count: i64) -> Result<()> {
    eventually(&format!("{count} of {resource} on offer"), PATIENCE, || async {
        let now = objects::allocatable(&world.client, NODE, resource).await?;
        Ok(if now == count { Ok(()) } else { Err(now.to_string()) })
    })
    .await
}

/// So much is on offer, nothing changes any more, and the node is open.
async fn settled(world: &World, resource: &str, count: i64) -> Result<()> {
    offered(world, resource, count).await?;
    pool_ready(world, "p").await?;
    eventually("the node is open again", PATIENCE, || async {
        let now = cordon(world, NODE).await?;
        Ok(if now == (false, None) { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}

/// The devices that a namespace's pods were given are those of this profile that have an owner in NVML's eyes; the status follows
/// the plugin a moment later.
async fn have(world: &World, namespace: &str, profile: &str) -> Result<()> {
    eventually(&format!("pods of {namespace} have the instances of {profile} that NVML shows"), PATIENCE, || async {
        let (given, held) = (given(world, namespace).await?, held(world, profile).await?);
        Ok(if given == held { Ok(()) } else { Err(format!("given {given:?}, held {held:?}")) })
    })
    .await
}

/// MIG devices that the pods of a namespace were given, as they see it.
async fn given(world: &World, namespace: &str) -> Result<BTreeSet<String>> {
    let mut devices = BTreeSet::new();
    for pod in objects::running(&world.client, namespace).await?.keys() {
        let show = ["exec", "-n", namespace, pod, "--", "/bin/sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"];
        devices.insert(world.kubectl(&show).await?.trim().to_owned());
    }
    Ok(devices)
}

/// MIG devices of a profile that NVML shows and pods own, by `GpuNode.status`.
async fn held(world: &World, profile: &str) -> Result<BTreeSet<String>> {
    let node = objects::gpu_node(&world.client, NODE).await?;
    let instances = node.status.into_iter().flat_map(|s| s.gpus).flat_map(|g| g.instances);
    Ok(instances.filter(|i| i.profile == profile && i.device.owner.is_some()).filter_map(|i| i.uuid).collect())
}
