//! Controllers that have been refused for long: told of room when there is some, they come at once and not after their own pauses.

use std::time::Duration;

use e2e::{
    Result, World,
    objects::ensure,
    scene::{mig_profile, pool},
    story::tenant_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::budget::pod;

const TENANT: &str = "called";
const HAS: &str = "called-has";
const WAITS: &str = "called-waits";
const BUDGET: usize = 3;
/// Controllers that wait, each for one pod.
const WAITING: [(&str, &str); 3] = [("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")];
/// How often their objects are touched: each time they try and fail, and pause twice as long as before, from 5 ms on.
const TOUCHES: usize = 18;
/// Pauses that had begun before that are over by then.
const EARLIER: Duration = Duration::from_secs(15);

/// A controller of this kind whose pods count and are never scheduled: what is asked here is admission.
fn controller((version, kind): (&str, &str), namespace: &str, replicas: usize) -> Value {
    let labels = json!({"app": kind.to_lowercase()});
    let mut pod = pod(1);
    if kind == "Job" {
        pod["restartPolicy"] = json!("Never");
    }
    let mut spec = json!({"template": {"metadata": {"labels": labels}, "spec": pod}});
    if kind != "Job" {
        spec["replicas"] = json!(replicas);
        spec["selector"] = json!({"matchLabels": labels});
    }
    if kind == "StatefulSet" {
        spec["serviceName"] = json!("none");
    }
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": kind.to_lowercase(), "namespace": namespace}, "spec": spec})
}

async fn pods_are(world: &World, namespace: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} pods in {namespace}"), PATIENCE, || async {
        let pods = Api::<Pod>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        Ok(if names.len() == count { Ok(()) } else { Err(names.join(", ")) })
    })
    .await
}

/// All of them have been refused by our quota.
async fn all_refused(world: &World) -> Result<()> {
    let events = Api::<Event>::namespaced(world.client.clone(), WAITS);
    eventually("every controller refused", PATIENCE, || async {
        let found = events.list(&ListParams::default().fields("reason=FailedCreate")).await?;
        let mut kinds: Vec<String> = found.iter().filter_map(|e| e.involved_object.kind.clone()).collect();
        kinds.sort();
        kinds.dedup();
        Ok(if kinds.len() == WAITING.len() { Ok(()) } else { Err(kinds.join(", ")) })
    })
    .await
}

#[tokio::test]
async fn controllers_that_have_been_refused_for_long_are_told_of_room_and_come() {
    let world = World::enter().await.unwrap();
    let body = async {
        let tenant = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": TENANT},
            "spec": {
                "namespaces": [{"name": HAS}, {"name": WAITS}], "gpus": [{"profile": "slice", "count": BUDGET}],
                "deletionProtection": false,
            },
        });
        world.set(&[mig_profile("slice", "1g.10gb"), pool("p", "gpu-1", &["slice"]), tenant]).await?;
        tenant_ready(&world, TENANT).await?;
        world.set(&[controller(("apps/v1", "Deployment"), HAS, BUDGET)]).await?;
        pods_are(&world, HAS, BUDGET).await?;

        world.set(&WAITING.map(|which| controller(which, WAITS, 1))).await?;
        all_refused(&world).await?;
        for touch in 0..TOUCHES {
            let value = format!("example.com/touch={touch}");
            let kinds = "replicasets,statefulsets";
            world.kubectl(&["annotate", "--overwrite", "-n", WAITS, kinds, "--all", &value]).await?;
        }
        tokio::time::sleep(EARLIER).await;
        pods_are(&world, WAITS, 0).await?;

        // without a word they would come after ten minutes and more
        world.kubectl(&["delete", "deployment", "-n", HAS, "deployment", "--wait=false"]).await?;
        pods_are(&world, WAITS, WAITING.len()).await?;
        let reasons = "jsonpath={.items[*].status.conditions[?(@.type==\"gputenancy.io/RoomMade\")].message}";
        let said = world.kubectl(&["get", "replicasets", "-n", WAITS, "-o", reasons]).await?;
        let wanted =
            "the budget of GpuTenant called has headroom here for a pod with requests.nvidia.com/mig-1g.10gb=1";
        ensure(said.trim() == wanted, format!("the ReplicaSet says: {said}"))
    };
    world.keeping_evidence("called", body).await;
}
