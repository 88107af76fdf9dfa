//! Variables by `envFrom` are invisible to admission policies: the agent checks them after a container has started.

use e2e::{
    Result, World,
    fixtures::{merged, mig_profile, pod_spec, pool, restricted_spec, tenant},
    objects::{self, ensure},
    product,
    scenario::{pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use serde_json::{Value, json};

const REASON: &str = "ForbiddenVariable";

fn source(kind: &str, namespace: &str, name: &str, key: &str, value: &str) -> Value {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, field: {key: value}})
}

/// A pod without a GPU on a GPU node, with all variables of a `ConfigMap`.
fn idle(namespace: &str, name: &str, map: &str) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", "86400"],
        "envFrom": [{"configMapRef": {"name": map}}],
    }));
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": "gpu-1"});
    spec["terminationGracePeriodSeconds"] = json!(0);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// A pod with a GPU, with all variables of these sources.
fn with_gpu(name: &str, sources: Value) -> Value {
    let mut spec = pod_spec("nvidia.com/mig-1g.10gb");
    spec["containers"][0]["envFrom"] = sources;
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "t"}, "spec": spec})
}

#[tokio::test]
async fn env_from_forbidden_variable_is_reported_and_stops_the_container() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
        world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 3)])]).await?;
        tenant_ready(&world, "t").await?;
        pool_ready(&world, "p").await?;
        // as before Kubernetes 1.36: a variable of the container would replace that of the ConfigMap
        product::install(&world.lab, &["policies.hideGpus=None"]).await?;
        stopped(&world).await?;
        reported(&world).await
    };
    let outcome = body.await;
    world.kubectl(&["delete", "pod/elsewhere", "configmap/devices", "--now", "--ignore-not-found"]).await.unwrap();
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("env-from", async { outcome }).await;
}

async fn stopped(world: &World) -> Result<()> {
    let greeting = source("ConfigMap", "t", "greeting", "GREETING", "hello");
    let devices = |namespace| source("ConfigMap", namespace, "devices", "NVIDIA_VISIBLE_DEVICES", "all");
    world.set(&[devices("t"), devices("default"), greeting]).await?;
    world.set(&[source("Secret", "t", "keys", "LD_PRELOAD", "/tmp/x.so")]).await?;
    let maps = json!([{"configMapRef": {"name": "greeting"}}, {"configMapRef": {"name": "devices"}}]);
    // in a pod with a GPU, CDI overwrites the variable with `void`, so nothing is forbidden there
    world
        .set(&[idle("t", "quiet", "greeting"), with_gpu("work", maps), idle("default", "elsewhere", "devices")])
        .await?;
    world.pods_ready("t", 2).await?;
    world.pods_ready("default", 1).await?;
    let before = objects::running(&world.client, "t").await?;
    let preloading = with_gpu("preloads", json!([{"secretRef": {"name": "keys"}}]));
    world.set(&[idle("t", "reaches", "devices"), preloading]).await?;
    // the runtime's answer has more than the 4 MiB that gRPC permits by default
    let pad = |map: &str| {
        let data: serde_json::Map<String, Value> =
            ["A", "B", "C"].iter().map(|key| (format!("{map}_{key}"), "<".repeat(120_000).into())).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": map, "namespace": "t"}, "data": data})
    };
    let with = |pod: &str, maps: &[&str]| {
        let mut padded = idle("t", pod, "devices");
        let sources: Vec<Value> = maps.iter().map(|map| json!({"configMapRef": {"name": map}})).collect();
        padded["spec"]["containers"][0]["envFrom"] = json!(sources);
        padded
    };
    world.set(&[pad("pad0"), pad("pad1"), with("padded", &["pad0", "pad1", "devices"])]).await?;
    // more than the runtime sends
    let all = ["pad0", "pad1", "pad2", "pad3", "devices"];
    world.set(&[pad("pad2"), pad("pad3"), with("hidden", &all)]).await?;
    for (pod, words) in [
        ("reaches", "container c was started with NVIDIA_VISIBLE_DEVICES by envFrom (ConfigMap devices)"),
        ("padded", "container c was started with NVIDIA_VISIBLE_DEVICES by envFrom"),
        ("hidden", "container c was started with more variables than can be checked"),
        ("preloads", "container work was started with LD_PRELOAD by envFrom (Secret keys)"),
    ] {
        event_of(world, pod, words).await?;
        is_stopped(world, pod).await?;
    }
    // kubelet restarts the container, and the agent stops it again
    eventually("a second event after the restart", PATIENCE, || async {
        let events = pod_events(world, "t", REASON).await?;
        let count = events.iter().filter(|event| event.starts_with("reaches:")).count();
        Ok(if count >= 2 { Ok(()) } else { Err(events.join("; ")) })
    })
    .await?;
    // other containers keep running
    let after = objects::running(&world.client, "t").await?;
    let run_on = before.iter().all(|(pod, identity)| after.get(pod) == Some(identity));
    ensure(run_on, format!("other containers: before {before:?}, after {after:?}"))?;
    let events = pod_events(world, "t", REASON).await?;
    let bad = ["reaches:", "preloads:", "padded:", "hidden:"];
    let about_others = events.iter().any(|e| !bad.iter().any(|pod| e.starts_with(pod)));
    ensure(!about_others, format!("events about other pods: {events:?}"))?;
    ensure(pod_events(world, "default", REASON).await?.is_empty(), "an event about a pod of no tenant")?;
    ensure(
        world.pods_ready("default", 1).await?.values().all(|identity| identity.restarts == 0),
        "a pod of no tenant was restarted",
    )
}

/// With `Report` containers keep running.
async fn reported(world: &World) -> Result<()> {
    world.kubectl(&["delete", "pod", "-n", "t", "--all", "--now"]).await?;
    product::install(&world.lab, &["policies.hideGpus=None", "policies.hiddenVariables=Report"]).await?;
    world.set(&[idle("t", "reported", "devices")]).await?;
    event_of(world, "reported", "the container keeps running").await?;
    let pods = world.pods_ready("t", 1).await?;
    ensure(pods.values().all(|pod| pod.restarts == 0), format!("restarts: {pods:?}"))
}

/// Pods with decoys, and containers of each.
const DECOYS: (usize, usize) = (5, 20);

/// A pod whose containers have many variables that look forbidden.
fn decoy(name: &str) -> Value {
    let mut pod = idle("t", name, "decoys");
    let mut container = pod["spec"]["containers"][0].clone();
    container["resources"] = json!({"requests": {"cpu": "1m", "memory": "1Mi", "ephemeral-storage": "1Mi"}});
    let containers = (0..DECOYS.1).map(|number| merged(container.clone(), json!({"name": format!("c{number}")})));
    pod["spec"]["containers"] = containers.collect();
    pod
}

/// Links to services, devices that are none, permitted capabilities, and a library in a pod without a GPU.
fn harmless() -> Value {
    let links = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"];
    let names = (0..20).flat_map(|n| links.map(|link| format!("CUDA_MPS_PIPE_DIRECTORY_{n}_{link}")));
    let links: serde_json::Map<String, Value> = names.map(|name| (name, json!("tcp://10.0.0.1:80"))).collect();
    let others = json!({"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_DRIVER_CAPABILITIES": "compute, utility", "LD_PRELOAD": "/x.so",
        "MY_CUDA_VERSION": "12", "NVIDIA_DRIVER_CAPABILITIES_OF": "all"});
    let data = merged(Value::Object(links), others);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "decoys", "namespace": "t"}, "data": data})
}

#[tokio::test]
async fn hundred_decoys_neither_delay_the_stop_of_another_container_nor_are_stopped() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[tenant("t", &[])]).await?;
        tenant_ready(&world, "t").await?;
        product::install(&world.lab, &["policies.hideGpus=None"]).await?;
        among_decoys(&world).await
    };
    let outcome = body.await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("env-from-decoys", async { outcome }).await;
}

async fn among_decoys(world: &World) -> Result<()> {
    // kubelet gives each container links to it
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cuda-mps-control", "namespace": "t"}, "spec": {"ports": [{"port": 80}]}});
    world.set(&[source("ConfigMap", "t", "devices", "NVIDIA_VISIBLE_DEVICES", "all"), harmless(), service]).await?;
    let real = |name: &str| {
        let mut pod = idle("t", name, "devices");
        pod["spec"]["restartPolicy"] = json!("Never");
        pod
    };
    let stopped = async |name: &'static str| {
        event_of(world, name, "container c was started with NVIDIA_VISIBLE_DEVICES by envFrom").await?;
        is_stopped(world, name).await
    };
    // the agent checks containers in the order of their pods' names
    let decoys: Vec<Value> = (0..DECOYS.0).map(|number| decoy(&format!("decoy-{number}"))).collect();
    world.set(&[decoys, vec![real("real-among-starting")]].concat()).await?;
    stopped("real-among-starting").await?;
    let before = world.pods_ready("t", DECOYS.0).await?;
    world.set(&[real("real-among-running")]).await?;
    stopped("real-among-running").await?;
    let after = world.pods_ready("t", DECOYS.0).await?;
    ensure(before == after, format!("decoys: before {before:?}, after {after:?}"))?;
    ensure(after.values().all(|pod| pod.restarts == 0 && pod.started.len() == DECOYS.1), format!("{after:?}"))?;
    let events = pod_events(world, "t", REASON).await?;
    ensure(events.iter().all(|event| event.starts_with("real-")), format!("events about decoys: {events:?}"))
}

async fn is_stopped(world: &World, pod: &str) -> Result<()> {
    eventually(&format!("{pod} is stopped"), PATIENCE, || async {
        let run = container_status(world, pod).await?;
        let mut states = run.iter().flat_map(|run| run.last_state.iter().chain(&run.state));
        let ended = states.find_map(|state| state.terminated.as_ref());
        Ok(if ended.is_some() { Ok(()) } else { Err(format!("{run:?}")) })
    })
    .await
}

async fn event_of(world: &World, pod: &str, words: &str) -> Result<()> {
    eventually(&format!("an event about {pod}"), PATIENCE, || async {
        let events = pod_events(world, "t", REASON).await?;
        let right = events.iter().any(|event| event.starts_with(&format!("{pod}:")) && event.contains(words));
        Ok(if right { Ok(()) } else { Err(events.join("; ")) })
    })
    .await
}

async fn container_status(world: &World, pod: &str) -> Result<Option<ContainerStatus>> {
    let pod = Api::<Pod>::namespaced(world.client.clone(), "t").get(pod).await?;
    Ok(pod.status.and_then(|status| status.container_statuses?.into_iter().next()))
}
