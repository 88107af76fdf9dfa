//! Pods with KAI's annotations `gpu-fraction` and `gpu-memory` get the granted fraction of this size, counted by the quota and limited like any other.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

const TEAM: &str = "team";
const HALF: &str = "gputenancy.io/half";

#[tokio::test]
async fn pod_with_an_annotation_of_kai_is_limited_to_its_fraction() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("fraction-annotations", async { halves(&world).await }).await;
}

async fn halves(world: &World) -> Result<()> {
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    let mut team = tenant(TEAM, &[("half", 2)]);
    team["spec"] = merged(team["spec"].take(), sharing);
    let half = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "half"},
        "spec": {
            "device": {"fraction": {"memory": "32Gi", "compute": 50}},
            "support": {"expected": "neighbours", "incident": "less than the part"},
        },
    });
    world.set(&[half, pool("p", "gpu-1", &["half"]), team]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&[annotated("by-part", "gpu-fraction", "0.5"), annotated("by-memory", "gpu-memory", "32768")]).await?;
    for app in ["by-part", "by-memory"] {
        capped(world, app).await?;
    }
    // both devices of the quota are used
    let third = pod(json!({"gpu-fraction": "0.50"}));
    let pods = format!("/api/v1/namespaces/{TEAM}/pods");
    Actor::Admin.check(&world.client, Verb::Create, &pods, &third, Some("exceeded quota")).await?;
    world.kubectl(&["delete", "deployment", "-n", TEAM, "by-part", "by-memory", "--wait=false"]).await?;
    let sizes = "gpu-fraction: \"0.5\" or gpu-memory: \"32768\" (gputenancy.io/half)";
    for annotations in [
        json!({"gpu-fraction": "0.3"}),
        json!({"gpu-memory": "32Gi"}),
        json!({"gpu-fraction": "0.5", "gpu-memory": "32768"}),
        json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}),
        json!({"gpu-fraction": "half a GPU"}),
    ] {
        Actor::Admin.check(&world.client, Verb::Create, &pods, &pod(annotations), Some(sizes)).await?;
    }
    let mut twice = pod(json!({"gpu-fraction": "0.5"}));
    twice["spec"]["containers"][0]["resources"]["limits"] = json!({HALF: "1"});
    Actor::Admin.check(&world.client, Verb::Create, &pods, &twice, Some("are not counted by quotas")).await
}

/// Waits until CUDA shows the fraction in the pod of an application, and looks at what the API server made of the pod.
async fn capped(world: &World, app: &str) -> Result<()> {
    eventually(&format!("32 GiB in {app}"), PATIENCE, || async {
        let deployment = format!("deployment/{app}");
        let exec = ["exec", "-n", TEAM, &deployment, "-c", "work", "--", "/usr/bin/cuda-work", "show"];
        let seen = world.kubectl(&exec).await.unwrap_or_else(|error| error.to_string());
        Ok(if seen.contains("total=32768MiB") { Ok(()) } else { Err(seen) })
    })
    .await?;
    let label = format!("app={app}");
    let text = world.kubectl(&["get", "pods", "-n", TEAM, "-l", &label, "-o", "json"]).await?;
    let pods: Value =
        serde_json::from_str(&text).map_err(|e| Error::Text { what: text.clone(), why: e.to_string() })?;
    let made = &pods["items"][0];
    let containers = &made["spec"]["containers"];
    ensure(
        made["metadata"]["annotations"].as_object().is_none_or(|all| !all.keys().any(|k| k.starts_with("gpu-"))),
        &text,
    )?;
    ensure(
        containers[0]["resources"]["limits"][HALF] == "1" && containers[0]["resources"]["limits"]["cpu"] == "100m",
        &text,
    )?;
    let hidden = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"});
    ensure(containers[0]["env"].is_null() && containers[1]["env"] == json!([hidden]), &text)?;
    ensure(containers[1]["resources"]["limits"][HALF].is_null(), &text)
}

/// A program that holds a part of the memory, and a second container without a GPU.
fn spec() -> Value {
    let mut spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/cuda-work", "allocate", "--count", "1", "--hold"],
        "resources": {"limits": {"cpu": "100m"}},
    }));
    let mut other = spec["containers"][0].clone();
    other["name"] = json!("other");
    other["command"] = json!(["sh", "-c", "sleep 3600"]);
    if let Some(containers) = spec["containers"].as_array_mut() {
        containers.push(other);
    }
    merged(spec, json!({"terminationGracePeriodSeconds": 2}))
}

fn pod(annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "third", "annotations": annotations}, "spec": spec()})
}

fn annotated(app: &str, annotation: &str, size: &str) -> Value {
    let mut deployment = deployment(TEAM, app, 1, &spec());
    deployment["spec"]["template"]["metadata"]["annotations"] = json!({annotation: size});
    deployment
}
