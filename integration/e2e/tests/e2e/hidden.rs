//! What a container gets by `envFrom` is not in the pod that the API server judges: the node agent sees it once it has started.

use e2e::{
    Result, World,
    objects::{self, ensure},
    product,
    scene::{mig_profile, pod_spec, pool, tenant},
    story::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use serde_json::{Value, json};

const REASON: &str = "ForbiddenVariable";

fn holder(kind: &str, namespace: &str, name: &str, key: &str, value: &str) -> Value {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, field: {key: value}})
}

/// A pod on the node with GPUs that has none and takes all variables of a `ConfigMap`.
fn idle(namespace: &str, name: &str, map: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "gpu-1"}, "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", "86400"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "envFrom": [{"configMapRef": {"name": map}}],
            }],
        },
    })
}

/// A pod with a GPU that takes all variables of these.
fn with_gpu(name: &str, sources: Value) -> Value {
    let mut spec = pod_spec("nvidia.com/mig-1g.10gb");
    spec["containers"][0]["envFrom"] = sources;
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "t"}, "spec": spec})
}

#[tokio::test]
async fn what_comes_by_env_from_is_told_and_stopped_as_it_would_be_refused_in_a_manifest() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
        world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 3)])]).await?;
        tenant_ready(&world, "t").await?;
        pool_ready(&world, "p").await?;
        stopped(&world).await?;
        told(&world).await
    };
    let outcome = body.await;
    world.kubectl(&["delete", "pod/elsewhere", "configmap/devices", "--now", "--ignore-not-found"]).await.unwrap();
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("hidden", async { outcome }).await;
}

async fn stopped(world: &World) -> Result<()> {
    let greeting = holder("ConfigMap", "t", "greeting", "GREETING", "hello");
    let devices = |namespace| holder("ConfigMap", namespace, "devices", "NVIDIA_VISIBLE_DEVICES", "all");
    world.set(&[devices("t"), devices("default"), greeting]).await?;
    world.set(&[holder("Secret", "t", "keys", "LD_PRELOAD", "/tmp/x.so")]).await?;
    let maps = json!([{"configMapRef": {"name": "greeting"}}, {"configMapRef": {"name": "devices"}}]);
    // CDI says `void` in the variable whatever the ConfigMap says, so a pod with a GPU has nothing that it may not have
    world
        .set(&[idle("t", "quiet", "greeting"), with_gpu("work", maps), idle("default", "elsewhere", "devices")])
        .await?;
    world.pods_ready("t", 2).await?;
    world.pods_ready("default", 1).await?;
    let before = objects::running(&world.client, "t").await?;
    let preloading = with_gpu("preloads", json!([{"secretRef": {"name": "keys"}}]));
    world.set(&[idle("t", "reaches", "devices"), preloading]).await?;
    for (pod, words) in [
        ("reaches", "container c was started with NVIDIA_VISIBLE_DEVICES by envFrom (ConfigMap devices)"),
        ("preloads", "container work was started with LD_PRELOAD by envFrom (Secret keys)"),
    ] {
        event_of(world, pod, words).await?;
        eventually(&format!("{pod} is stopped"), PATIENCE, || async {
            let run = run(world, pod).await?;
            let mut states = run.iter().flat_map(|run| run.last_state.iter().chain(&run.state));
            let ended = states.find_map(|state| state.terminated.as_ref());
            Ok(if ended.is_some() { Ok(()) } else { Err(format!("{run:?}")) })
        })
        .await?;
    }
    // it is stopped again when kubelet has started it again
    eventually("a second event for the second start", PATIENCE, || async {
        let events = pod_events(world, "t", REASON).await?;
        let count = events.iter().filter(|event| event.starts_with("reaches:")).count();
        Ok(if count >= 2 { Ok(()) } else { Err(events.join("; ")) })
    })
    .await?;
    // the others may run for a moment
    let after = objects::running(&world.client, "t").await?;
    let run_on = before.iter().all(|(pod, life)| after.get(pod) == Some(life));
    ensure(run_on, format!("what has nothing to hide runs on: before {before:?}, after {after:?}"))?;
    let events = pod_events(world, "t", REASON).await?;
    let about_others = events.iter().any(|e| !e.starts_with("reaches:") && !e.starts_with("preloads:"));
    ensure(!about_others, format!("nobody else is told anything: {events:?}"))?;
    ensure(pod_events(world, "default", REASON).await?.is_empty(), "what is no tenant's is left alone")?;
    ensure(world.pods_ready("default", 1).await?.values().all(|life| life.restarts == 0), "and runs on")
}

/// With `Tell` nothing is stopped.
async fn told(world: &World) -> Result<()> {
    world.kubectl(&["delete", "pod", "-n", "t", "--all", "--now"]).await?;
    product::install(&world.lab, &["policies.hiddenVariables=Tell"]).await?;
    world.set(&[idle("t", "told", "devices")]).await?;
    event_of(world, "told", "the container goes on").await?;
    let lives = world.pods_ready("t", 1).await?;
    ensure(lives.values().all(|life| life.restarts == 0), format!("it goes on: {lives:?}"))
}

async fn event_of(world: &World, pod: &str, words: &str) -> Result<()> {
    eventually(&format!("an event about {pod}"), PATIENCE, || async {
        let events = pod_events(world, "t", REASON).await?;
        let right = events.iter().any(|event| event.starts_with(&format!("{pod}:")) && event.contains(words));
        Ok(if right { Ok(()) } else { Err(events.join("; ")) })
    })
    .await
}

async fn run(world: &World, pod: &str) -> Result<Option<ContainerStatus>> {
    let pod = Api::<Pod>::namespaced(world.client.clone(), "t").get(pod).await?;
    Ok(pod.status.and_then(|status| status.container_statuses?.into_iter().next()))
}
