//! Pools with NVIDIA's unmodified device plugin: the operator cordons the node for a change and removes only its own cordon.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World,
    fixtures::{deployment, mig_profile, pool, restricted_spec, tenant},
    interrupt,
    objects::{self, PodIdentity, ensure, set_guarantee},
    product,
    scenario::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{ChangePhase, GpuNode, names};
use k8s_openapi::{
    api::core::v1::Node,
    jiff::{SignedDuration, Timestamp},
};
use kube::Api;
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
/// A node outside of the pool.
const OTHER: &str = "gpu-2";
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const BIG: &str = "nvidia.com/mig-3g.40gb";
/// Time within which the end of the plugin has to be reported: kubelet's own report of the node takes ten seconds of it.
const REPORTED: SignedDuration = SignedDuration::from_secs(60);

#[tokio::test]
async fn nvidia_plugin_node_is_cordoned_only_during_a_change() {
    let world = World::enter().await.unwrap();
    let body = change_under_nvidias_plugin(&world).await;
    clean_up(&world).await.unwrap();
    world.keeping_evidence("nvidia-plugin", async { body }).await;
}

/// Removes plugin and cordons for the next test.
pub(crate) async fn clean_up(world: &World) -> Result<()> {
    world.kubectl(&["delete", "namespace", "nvidia", "--ignore-not-found", "--wait"]).await?;
    world.kubectl(&["uncordon", NODE, OTHER]).await.map(drop)
}

#[tokio::test]
async fn nvidia_plugin_cordon_survives_operator_restart_and_is_removed() {
    let world = World::enter_realtime().await.unwrap();
    let body = killed_under_nvidias_plugin(&world).await;
    clean_up(&world).await.unwrap();
    world.keeping_evidence("nvidia-plugin-killed", async { body }).await;
}

async fn killed_under_nvidias_plugin(world: &World) -> Result<()> {
    let small = two_small_pods(world).await?;
    world.kubectl(&["cordon", OTHER]).await?;
    // one device fits beside the small ones; two need devices withdrawn first
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    let halves = |node: &GpuNode| objects::layouts(node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count();
    let done = |node: &GpuNode| halves(node) == 3;
    let kill = async |phase| {
        // a cordon after the kill is from the killed operator
        cordoned_by_operator(world).await?;
        interrupt::kill_leader(world).await?;
        let hit = interrupt::phases(world, NODE).await?;
        ensure(cordon(world, NODE).await?.1.is_some(), format!("no cordon annotation after the kill in {phase:?}"))?;
        Ok(hit)
    };
    let killed = interrupt::in_phases(world, NODE, done, kill).await?;
    // withdrawn devices have no owner here, so phase Held can end before the kill
    ensure(killed.contains(&ChangePhase::Partitioning), format!("killed in {killed:?}, not in Partitioning"))?;
    advertised_and_uncordoned(world, BIG, 3).await?;
    world.set(&[sleeping_pods("big", BIG, 3)]).await?;
    world.pods_ready("big", 3).await?;
    owners_match(world, "big", "3g.40gb").await?;
    ensure(objects::running(&world.client, "small").await? == small, "a pod was disturbed")?;
    owners_match(world, "small", "1g.10gb").await?;
    ensure(cordon(world, OTHER).await? == (true, None), "the administrator's cordon of another node was changed")
}

async fn cordoned_by_operator(world: &World) -> Result<()> {
    eventually("the operator's cordon", PATIENCE, || async {
        let (cordoned, mark) = cordon(world, NODE).await?;
        Ok(if cordoned && mark.is_some() { Ok(()) } else { Err(format!("{cordoned} {mark:?}")) })
    })
    .await
}

/// Starts the plugin, a pool, and two pods with one device each.
async fn two_small_pods(world: &World) -> Result<BTreeMap<String, PodIdentity>> {
    world.set(&plugin()).await?;
    let mut supply = pool("p", NODE, &["mig-1g", "mig-3g"]);
    supply["spec"]["advertiser"] = "NvidiaDevicePlugin".into();
    // the last change removes all small devices while pods use them
    supply["spec"]["disruption"]["allowOutage"] = true.into();
    // an administrator's cordon neither ends a change nor is removed by one
    supply["spec"]["health"] = json!({"cordons": "Ignore"});
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), supply]).await?;
    world.set(&[tenant("small", &[("mig-1g", 2)]), tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    advertised_and_uncordoned(world, SMALL, 2).await?;
    world.set(&[sleeping_pods("small", SMALL, 2)]).await?;
    let small = world.pods_ready("small", 2).await?;
    owners_match(world, "small", "1g.10gb").await?;
    Ok(small)
}

async fn change_under_nvidias_plugin(world: &World) -> Result<()> {
    let small = two_small_pods(world).await?;

    // a grown guarantee: the node is cordoned, no pod is evicted, and the new device is allocatable
    set_guarantee(&world.client, "big", "mig-3g", 1).await?;
    cordoned_by_operator(world).await?;
    advertised_and_uncordoned(world, BIG, 1).await?;
    world.set(&[sleeping_pods("big", BIG, 1)]).await?;
    world.pods_ready("big", 1).await?;
    owners_match(world, "big", "3g.40gb").await?;
    ensure(objects::running(&world.client, "small").await? == small, "a pod was disturbed")?;
    ensure(!pod_events(world, "default", "DevicePluginRestarted").await?.is_empty(), "the plugin was not restarted")?;

    // an administrator's cordon stays
    world.kubectl(&["cordon", NODE]).await?;
    set_guarantee(&world.client, "big", "mig-3g", 2).await?;
    advertised(world, BIG, 2).await?;
    pool_ready(world, "p").await?;
    ensure(cordon(world, NODE).await? == (true, None), "the administrator's cordon was changed or marked")?;
    world.kubectl(&["uncordon", NODE]).await?;

    // only owners of removed instances are evicted
    let big = objects::running(&world.client, "big").await?;
    set_guarantee(&world.client, "small", "mig-1g", 0).await?;
    set_guarantee(&world.client, "big", "mig-3g", 4).await?;
    advertised_and_uncordoned(world, BIG, 4).await?;
    ensure(objects::running(&world.client, "small").await?.is_empty(), "an owner of a removed instance still runs")?;
    ensure(objects::running(&world.client, "big").await? == big, "another pod was evicted")?;

    // without the plugin the node is not Ready, and the message says what is missing
    world.kubectl(&["delete", "daemonset", "-n", "nvidia", "--all", "--wait"]).await?;
    let ended = Timestamp::now();
    let excerpts = &["NVIDIA's device plugin"];
    world.condition_becomes::<GpuNode>(NODE, "PluginReady", "False", "DevicePluginDown", excerpts).await?;
    let conditions = objects::gpu_node(&world.client, NODE).await?.status.unwrap_or_default().conditions;
    let since = objects::condition(&conditions, "PluginReady").map(|c| c.last_transition_time.0.duration_since(ended));
    ensure(since.is_some_and(|s| s <= REPORTED), format!("the plugin that ended is reported after {since:?}"))?;
    world.condition_becomes::<GpuNode>(NODE, "Ready", "False", "DevicePluginDown", excerpts).await
}

/// NVIDIA's device plugin as a `DaemonSet` of its usual label. It runs in the node's mount namespace, which has the
/// simulated driver and the toolset.
fn plugin() -> Vec<Value> {
    plugin_with("", "--mig-strategy=mixed")
}

/// As [`plugin`], with these options; `before` is run first, with the token of the pod's service account in `TOKEN`.
pub(crate) fn plugin_with(before: &str, options: &str) -> Vec<Value> {
    let root = product::root();
    let path = |of: &str| root.join(of).display().to_string();
    let (tools, driver) = (path("target/toolset/bin"), "/run/nvidia/driver");
    let script = format!(
        "set -e; mkdir -p /run/device-plugin/mnt; {before} \
         {nvsim} --state {driver}/run/nvsim materialize --root /run/device-plugin --driver-root {driver}; \
         exec {with} /run/device-plugin {tools}/nvidia-device-plugin {options} \
         --device-discovery-strategy=nvml --device-list-strategy=envvar --driver-root-ctr-path={driver} \
         --nvidia-driver-root={driver} --nvidia-dev-root=/ --nvidia-cdi-hook-path={tools}/nvidia-cdi-hook",
        nvsim = path("target/debug/nvsim"),
        with = path("integration/sim/nvml-sim/tests/with-driver"),
    );
    let enter = "export TOKEN=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token); \
                 exec /bin/nsenter -t 1 -m -- /bin/sh -c \"$0\"";
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
                        "command": ["/bin/sh", "-c", enter, script],
                        "securityContext": {"privileged": true},
                    }],
                }},
            },
        }),
    ]
}

/// Pods that own a device without using it.
pub(crate) fn sleeping_pods(namespace: &str, resource: &str, replicas: i64) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "w", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", "86400"],
        "resources": {"limits": {resource: "1"}},
    }));
    spec["terminationGracePeriodSeconds"] = json!(1);
    deployment(namespace, "w", replicas, &spec)
}

/// Is a node cordoned, and the operator's annotation, if any.
async fn cordon(world: &World, node: &str) -> Result<(bool, Option<String>)> {
    let node = Api::<Node>::all(world.client.clone()).get(node).await?;
    let mark = node.metadata.annotations.and_then(|all| all.get(names::CORDONED).cloned());
    Ok((node.spec.and_then(|s| s.unschedulable).unwrap_or(false), mark))
}

async fn advertised(world: &World, resource: &str, count: i64) -> Result<()> {
    eventually(&format!("{count} allocatable {resource}"), PATIENCE, || async {
        let now = objects::allocatable(&world.client, NODE, resource).await?;
        Ok(if now == count { Ok(()) } else { Err(now.to_string()) })
    })
    .await
}

/// Waits until the devices are allocatable, the pool is Ready, and the node is schedulable.
async fn advertised_and_uncordoned(world: &World, resource: &str, count: i64) -> Result<()> {
    advertised(world, resource, count).await?;
    pool_ready(world, "p").await?;
    eventually("the node to be uncordoned", PATIENCE, || async {
        let now = cordon(world, NODE).await?;
        Ok(if now == (false, None) { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}

/// Waits until `GpuNode.status` lists owners for exactly the devices that the pods of a namespace see; it lags the plugin a bit.
async fn owners_match(world: &World, namespace: &str, profile: &str) -> Result<()> {
    eventually(&format!("owners of {profile} are the pods of {namespace}"), PATIENCE, || async {
        let (visible, owned) = (visible_devices(world, namespace).await?, owned_devices(world, profile).await?);
        Ok(if visible == owned { Ok(()) } else { Err(format!("visible {visible:?}, owned {owned:?}")) })
    })
    .await
}

/// MIG devices that the pods of a namespace see.
async fn visible_devices(world: &World, namespace: &str) -> Result<BTreeSet<String>> {
    let mut devices = BTreeSet::new();
    for pod in objects::running(&world.client, namespace).await?.keys() {
        let show = ["exec", "-n", namespace, pod, "--", "/bin/sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"];
        devices.insert(world.kubectl(&show).await?.trim().to_owned());
    }
    Ok(devices)
}

/// MIG devices of a profile that have an owner in `GpuNode.status`.
async fn owned_devices(world: &World, profile: &str) -> Result<BTreeSet<String>> {
    let node = objects::gpu_node(&world.client, NODE).await?;
    let instances = node.status.into_iter().flat_map(|s| s.gpus).flat_map(|g| g.instances);
    Ok(instances
        .filter(|i| i.profile == profile && i.device.as_ref().is_some_and(|d| d.owner.is_some()))
        .filter_map(|i| i.uuid)
        .collect())
}
