//! Containers that the library cannot limit: in a sandbox, whose `RuntimeClass` has a handler of that kind, and with musl.

use e2e::{
    Error, Result, World,
    fixtures::{merged, pool, restricted_spec, tenant},
    objects::{self, ensure},
    product,
    scenario::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, Isolation};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const SHARED: &str = "nvidia.com/gpu.shared";
const TEAM: &str = "t";
/// The `RuntimeClass`: one that policies admit, with the handler of gVisor, which the lab maps to runc. The handler decides, not the name.
const CLASS: &str = "nvidia";
/// Prints whether the container has the files of the limit, and holds memory.
const PROGRAM: &str = "if [ -e /run/gputenancy/share/limits ]; then echo limited; else echo unlimited; fi; exec /usr/bin/gpu-work hold --memory 1Gi";

#[tokio::test]
async fn pod_in_a_sandbox_gets_no_library_and_is_reported_or_refused_and_musl_is_reported() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("unserved-containers", async { scenes(&world).await }).await;
}

async fn scenes(world: &World) -> Result<()> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": CLASS}, "handler": "runsc"});
    let mut team = tenant(TEAM, &[("turns", 4)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[class, turns, pool("p", NODE, &["turns"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    let outcome = in_sandbox(world).await;
    world.kubectl(&["delete", "runtimeclass", CLASS]).await?;
    outcome
}

async fn in_sandbox(world: &World) -> Result<()> {
    // one after the other: kubelet does not report which of two pods that start an allocation is for
    world.set(&[pod("plain", None)]).await?;
    world.pods_ready(TEAM, 1).await?;
    world.set(&[pod("boxed", Some(CLASS))]).await?;
    world.pods_ready(TEAM, 2).await?;
    for (name, expected) in [("plain", "limited"), ("boxed", "unlimited")] {
        let log = world.kubectl(&["logs", "-n", TEAM, name]).await?;
        ensure(log.lines().next() == Some(expected), format!("{name}: {log}"))?;
    }
    eventually("the sandbox in GpuNode.status", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, NODE).await?;
        let shares = node.status.into_iter().flat_map(|status| status.gpus).flat_map(|gpu| gpu.shares);
        let found: Vec<_> = shares.filter_map(|share| Some((share.device.owner?.pod, share.sandbox?))).collect();
        Ok(match found.as_slice() {
            [(pod, sandbox)]
                if pod == "boxed" && sandbox.handler == "runsc" && sandbox.enforcement == Isolation::None =>
            {
                Ok(())
            }
            _ => Err(format!("{found:?}")),
        })
    })
    .await?;
    event(world, "SandboxNotLimited", "boxed", &["handler runsc", "nothing limits its memory"]).await?;
    let tenants = Api::<GpuTenant>::all(world.client.clone());
    eventually("None on the tenant, with the handler", PATIENCE, || async {
        let status = tenants.get(TEAM).await?.status.unwrap_or_default();
        let limited = status.conditions.iter().find(|c| c.type_ == "MemoryLimited");
        let named = limited.is_some_and(|c| c.status == "False" && c.message.contains("handler runsc"));
        Ok(if named && status.enforcement == Some(Isolation::None) { Ok(()) } else { Err(format!("{status:?}")) })
    })
    .await?;
    metric(world).await?;
    world.set(&[musl_loader(), musl()]).await?;
    event(world, "ImageWithoutGlibc", "musl", &["has musl and no glibc", "use an image with glibc"]).await?;
    let musl = pod_events(world, TEAM, "ImageWithoutGlibc").await?;
    ensure(musl.iter().all(|note| note.starts_with("musl")), format!("{musl:?}"))?;
    world.kubectl(&["delete", "pod", "-n", TEAM, "musl"]).await?;
    // the pool demands limits: a new pod in a sandbox is refused, and one without runs
    let mut supply = pool("p", NODE, &["turns"]);
    supply["spec"]["enforcement"] = json!({"minimum": "Software"});
    world.set(&[supply]).await?;
    eventually("the minimum on the GpuNode", PATIENCE, || async {
        let minimum = objects::gpu_node(&world.client, NODE).await?.spec.enforcement.minimum;
        Ok(if minimum == Isolation::Software { Ok(()) } else { Err(format!("{minimum}")) })
    })
    .await?;
    world.set(&[pod("refused", Some(CLASS))]).await?;
    eventually("the pod refused", PATIENCE, || async {
        let status = world.kubectl(&["get", "pod", "-n", TEAM, "refused", "-o", "jsonpath={.status}"]).await?;
        let refused = status.contains("UnexpectedAdmissionError") && status.contains("spec.enforcement.minimum");
        Ok(if refused { Ok(()) } else { Err(status) })
    })
    .await?;
    world.set(&[pod("second", None)]).await?;
    eventually("a pod without the class", PATIENCE, || async {
        let phase = world.kubectl(&["get", "pod", "-n", TEAM, "second", "-o", "jsonpath={.status.phase}"]).await?;
        Ok(if phase == "Running" { Ok(()) } else { Err(phase) })
    })
    .await?;
    // the same program goes past the library of a pod that has one
    eventually("the bypass of the pod without the class", PATIENCE, || async {
        let found = pod_events(world, TEAM, "MemoryLimitBypassed").await?;
        Ok(if found.iter().any(|event| event.starts_with("plain: ")) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    let bypasses = pod_events(world, TEAM, "MemoryLimitBypassed").await?;
    let boxed = bypasses.iter().any(|event| event.starts_with("boxed: "));
    ensure(!boxed, format!("a pod in a sandbox bypasses no limit: {bypasses:?}"))
}

async fn metric(world: &World) -> Result<()> {
    let agents = world.agents_on(NODE).await?;
    let agent = agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong("no agent".into()))?;
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    eventually("the container in the agent's metrics", PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let found: Vec<&str> =
            text.lines().filter(|l| l.starts_with("gputenancy_agent_unserved_containers{")).collect();
        let right =
            |line: &&str| line.contains("pod=\"boxed\"") && line.contains("cause=\"sandbox\"") && line.ends_with(" 1");
        Ok(if found.len() == 1 && found.iter().all(right) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

async fn event(world: &World, reason: &str, object: &str, excerpts: &[&str]) -> Result<()> {
    eventually(&format!("event {reason} about {object}"), PATIENCE, || async {
        let notes = pod_events(world, TEAM, reason).await?;
        let has = |note: &String| note.starts_with(object) && excerpts.iter().all(|excerpt| note.contains(excerpt));
        Ok(if notes.iter().any(has) { Ok(()) } else { Err(format!("{notes:?}")) })
    })
    .await
}

/// The file by which musl is found.
fn musl_loader() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "loader", "namespace": TEAM},
        "data": {"ld-musl-x86_64.so.1": "the loader of musl"},
    })
}

/// A pod with a static program and that file, as in an image of Alpine.
fn musl() -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "100000"],
        "resources": {"limits": {SHARED: "1"}},
        "volumeMounts": [{"name": "loader", "mountPath": "/lib/ld-musl-x86_64.so.1", "subPath": "ld-musl-x86_64.so.1"}],
    }));
    let volumes = json!([{"name": "loader", "configMap": {"name": "loader"}}]);
    let more = json!({"terminationGracePeriodSeconds": 1, "volumes": volumes});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "musl", "namespace": TEAM}, "spec": merged(spec, more),
    })
}

fn pod(name: &str, class: Option<&str>) -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["sh", "-c", PROGRAM], "resources": {"limits": {SHARED: "1"}},
    }));
    let more = json!({"terminationGracePeriodSeconds": 2, "runtimeClassName": class, "restartPolicy": "Never"});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TEAM}, "spec": merged(spec, more),
    })
}
