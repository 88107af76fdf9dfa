//! Time-slices by NVIDIA's unmodified device plugin, which reads the configs of the operator's `ConfigMap`.

use std::{fs, process::Command};

use e2e::{
    Result, World,
    fixtures::{merged, pool, restricted_spec, tenant},
    objects::{self, allocatable, ensure, running},
    product,
    scenario::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::names;
use gputenancy_decisions::plugin::PluginConfig;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::{Value, json};

use super::nvidia_plugin::{clean_up, plugin_with, sleeping_pods};

const NODE: &str = "gpu-1";
const TEAM: &str = "sharers";
const EXEMPT: &str = "kube-system";
const WHOLE: &str = names::WHOLE_GPU_RESOURCE;
const SHARED: &str = names::SHARED_GPU_RESOURCE;
const REPAIRED: &str = "DevicePluginConfigRepaired";

/// The real plugin's answer to a config, on a machine without a driver.
fn parse(config: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, config).unwrap();
    let output = Command::new(product::root().join("target/toolset/bin/nvidia-device-plugin"))
        .arg(format!("--config-file={}", file.display()))
        .arg(format!("--kubelet-socket={}", folder.path().join("kubelet.sock").display()))
        .arg("--device-discovery-strategy=nvml")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn profile(name: &str, device: Value) -> Value {
    let support = json!({"expected": "neighbours on the GPU are noticed", "incident": "a pod does not start although a share is free"});
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": device, "support": support},
    })
}

fn by_plugin(profile: &str) -> Value {
    let mut pool = pool("p", NODE, &[profile]);
    pool["spec"]["advertiser"] = "NvidiaDevicePlugin".into();
    pool
}

fn sharer(guarantees: &[(&str, i32)]) -> Value {
    let mut sharer = tenant(TEAM, guarantees);
    let spec = sharer["spec"].take();
    sharer["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    sharer
}

/// The plugin with the config that the node's label selects when its pod starts. The config manager of NVIDIA's chart does the same
/// with a mounted `ConfigMap`, and also follows the label while the pod runs.
fn plugin() -> Vec<Value> {
    let kubectl = format!(
        "{} --server=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT --token=$TOKEN --insecure-skip-tls-verify \
         --cache-dir=/run/device-plugin/kubectl",
        product::root().join("target/toolset/bin/kubectl").display()
    );
    let before = format!(
        "KEY=$({kubectl} get node {NODE} -o 'jsonpath={{.metadata.labels.nvidia\\.com/device-plugin\\.config}}'); \
         {kubectl} get configmap -n {home} {map} -o go-template=\"{{{{index .data \\\"${{KEY:-default}}\\\"}}}}\" >/run/device-plugin/config.yaml;",
        home = product::NAMESPACE,
        map = names::DEVICE_PLUGIN_CONFIG_MAP,
    );
    let rbac = "rbac.authorization.k8s.io";
    let mut objects = plugin_with(&before, "--config-file=/run/device-plugin/config.yaml");
    objects.extend([
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "plugin-config"},
            "rules": [{"apiGroups": [""], "resources": ["nodes", "configmaps"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "plugin-config"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "plugin-config"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "nvidia"}],
        }),
    ]);
    objects
}

#[tokio::test]
async fn real_plugin_time_slices_a_pool_and_the_rollback_restores_whole_gpus() {
    let world = World::enter().await.unwrap();
    let body = shared_and_back(&world).await;
    clean_up(&world).await.unwrap();
    world.kubectl(&["delete", "clusterrole,clusterrolebinding", "plugin-config", "--ignore-not-found"]).await.unwrap();
    world.keeping_evidence("nvidia-plugin-shares", async { body }).await;
}

async fn shared_and_back(world: &World) -> Result<()> {
    // an earlier test may have left MIG mode on, which this board keeps, and NVIDIA's plugin offers nothing of an empty one
    for gpu in ["0", "1"] {
        world.nvsim(NODE, &["reset", gpu, "--mig-off"]).await?;
    }
    // an agent that has offered whole GPUs in an earlier test keeps their resource registered until it restarts
    for agent in world.agents_on(NODE).await? {
        world.kubectl(&["delete", "pod", "-n", product::NAMESPACE, &agent.name_any()]).await?;
    }
    world.set(&plugin()).await?;
    serves(world, 2, 0).await?;

    world.set(&[profile("turns", json!({"timeSlice": {"replicas": 4}})), profile("gpu", json!({"whole": {}}))]).await?;
    world.set(&[by_plugin("turns"), sharer(&[("turns", 4)])]).await?;
    serves(world, 0, 8).await?;
    pool_ready(world, "p").await?;
    tenant_ready(world, TEAM).await?;
    let four = key(world, 4).await?;
    // another number has another key, and the plugin reads it without help
    world.set(&[profile("turns", json!({"timeSlice": {"replicas": 2}}))]).await?;
    serves(world, 0, 4).await?;
    pool_ready(world, "p").await?;
    let two = key(world, 2).await?;
    ensure(two != four, "another config has the same key")?;

    world.set(&[sleeping_pods(TEAM, SHARED, 3)]).await?;
    world.pods_ready(TEAM, 3).await?;
    owners_of_shares(world, 3).await?;
    two_are_refused(world).await?;
    changes_by_hand_are_repaired(world, &two).await?;

    world.set(&[by_plugin("gpu"), sharer(&[("gpu", 1)])]).await?;
    serves(world, 2, 0).await?;
    pool_ready(world, "p").await?;
    ensure(label(world).await?.is_none(), "the label is still there")?;
    ensure(running(&world.client, TEAM).await?.is_empty(), "a pod with a share still runs")
}

/// Waits until the node offers so many whole GPUs and shares.
async fn serves(world: &World, whole: i64, shared: i64) -> Result<()> {
    eventually(&format!("{whole} {WHOLE} and {shared} {SHARED}"), PATIENCE * 2, || async {
        let now = (allocatable(&world.client, NODE, WHOLE).await?, allocatable(&world.client, NODE, SHARED).await?);
        Ok(if now == (whole, shared) { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
}

async fn label(world: &World) -> Result<Option<String>> {
    let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
    Ok(node.labels().get(names::DEVICE_PLUGIN_CONFIG_LABEL).cloned())
}

fn config_map(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), product::NAMESPACE)
}

/// The key in the label, whose config has so many replicas and whose default is exclusive.
async fn key(world: &World, replicas: usize) -> Result<String> {
    let key = label(world).await?.unwrap_or_default();
    let data = config_map(world).get(names::DEVICE_PLUGIN_CONFIG_MAP).await?.data.unwrap_or_default();
    ensure(data.get(&key) == Some(&PluginConfig::TimeSliced { replicas }.render()), format!("{key}: {data:?}"))?;
    ensure(data.get("default") == Some(&PluginConfig::Exclusive.render()), format!("{data:?}"))?;
    Ok(key)
}

async fn owners_of_shares(world: &World, count: usize) -> Result<()> {
    eventually(&format!("{count} shares with owners in the status"), PATIENCE, || async {
        let node = objects::gpu_node(&world.client, NODE).await?;
        let shares = node.status.into_iter().flat_map(|s| s.gpus).flat_map(|g| g.shares);
        let owned = shares.filter(|s| s.device.owner.is_some()).count();
        Ok(if owned == count { Ok(()) } else { Err(owned.to_string()) })
    })
    .await
}

/// A pod with two shares: the admission policy refuses it for a tenant, and the plugin for others.
async fn two_are_refused(world: &World) -> Result<()> {
    let spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never",
        "command": ["/bin/sleep", "86400"], "resources": {"limits": {SHARED: "2"}},
    }));
    let place = json!({"terminationGracePeriodSeconds": 1, "nodeSelector": {"kubernetes.io/hostname": NODE}});
    let spec = merged(spec, place);
    let pod = |namespace: &str| -> Pod {
        let metadata = json!({"name": "two", "namespace": namespace});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let create = async |namespace: &str| {
        let api = Api::<Pod>::namespaced(world.client.clone(), namespace);
        api.create(&PostParams::default(), &pod(namespace)).await
    };
    let refusal = create(TEAM).await.err().map(|e| e.to_string()).unwrap_or_default();
    ensure(refusal.contains(SHARED), format!("a tenant's pod with two shares: {refusal}"))?;
    // one share is free: kubelet must have two to ask the plugin
    world.kubectl(&["scale", "deployment", "-n", TEAM, "w", "--replicas=2"]).await?;
    owners_of_shares(world, 2).await?;
    let refusal = create("nvidia").await.err().map(|e| e.to_string()).unwrap_or_default();
    ensure(refusal.contains("belongs to no GpuTenant"), format!("a pod of no tenant: {refusal}"))?;
    // a namespace that the chart's default exempts
    create(EXEMPT).await?;
    eventually("the plugin's refusal of two shares", PATIENCE, || async {
        let pod = Api::<Pod>::namespaced(world.client.clone(), EXEMPT).get("two").await?;
        let message = pod.status.and_then(|s| s.message).unwrap_or_default();
        let refused = message.contains("maximum request size for shared resources is 1");
        Ok(if refused { Ok(()) } else { Err(message) })
    })
    .await?;
    world.kubectl(&["delete", "pod", "-n", EXEMPT, "two"]).await.map(drop)
}

async fn changes_by_hand_are_repaired(world: &World, key: &str) -> Result<()> {
    let other = format!("{}=other", names::DEVICE_PLUGIN_CONFIG_LABEL);
    world.kubectl(&["label", "node", NODE, &other, "--overwrite"]).await?;
    let map = names::DEVICE_PLUGIN_CONFIG_MAP;
    let patch = json!({"data": {key: "version: v1\n"}}).to_string();
    world.kubectl(&["patch", "configmap", "-n", product::NAMESPACE, map, "--type=merge", "-p", &patch]).await?;
    let text = PluginConfig::TimeSliced { replicas: 2 }.render();
    eventually("label and ConfigMap as they were", PATIENCE, || async {
        let data = config_map(world).get(map).await?.data.unwrap_or_default();
        let now = (label(world).await?, data.get(key).cloned());
        Ok(if now == (Some(key.to_owned()), Some(text.clone())) { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await?;
    eventually("events about both", PATIENCE, || async {
        let node = pod_events(world, "default", REPAIRED).await?;
        let map = pod_events(world, product::NAMESPACE, REPAIRED).await?;
        let named = node.iter().any(|e| e.contains("to other")) && map.iter().any(|e| e.contains(key));
        Ok(if named { Ok(()) } else { Err(format!("{node:?} {map:?}")) })
    })
    .await
}

/// Tests that need no cluster.
mod offline {
    use super::*;

    #[test]
    fn real_plugin_parses_each_rendered_config() {
        for replicas in [2, 3, 4, 8, 16, 128] {
            let log = parse(&PluginConfig::TimeSliced { replicas }.render());
            assert!(!log.contains("unable to load config") && !log.contains("Ignoring"), "{log}");
            let (_, text) = log.split_once("Running with config:").unwrap();
            let parsed: Value = serde_json::Deserializer::from_str(text).into_iter().next().unwrap().unwrap();
            let resource = json!({"name": WHOLE, "rename": SHARED, "devices": "all", "replicas": replicas});
            let turns = json!({"renameByDefault": true, "failRequestsGreaterThanOne": true, "resources": [resource]});
            assert_eq!((&parsed["sharing"]["timeSlicing"], &parsed["flags"]["migStrategy"]), (&turns, &json!("mixed")));
        }
        let log = parse(&PluginConfig::Exclusive.render());
        let (_, text) = log.split_once("Running with config:").unwrap();
        let parsed: Value = serde_json::Deserializer::from_str(text).into_iter().next().unwrap().unwrap();
        assert_eq!(parsed["sharing"], json!({"timeSlicing": {}}), "exclusive");
        let chart = fs::read_to_string(product::root().join("helm/gputenancy/templates/device-plugin.yaml")).unwrap();
        let lines = PluginConfig::Exclusive.render().trim_end().replace('\n', "\n    ");
        assert!(chart.contains(&format!("  default: |\n    {lines}\n---")), "the chart's default is the operator's");
        // what the operator never renders
        let log = parse(&PluginConfig::TimeSliced { replicas: 1 }.render());
        assert!(log.contains("number of replicas must be >= 2"), "{log}");
    }
}
