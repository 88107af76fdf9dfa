//! Controllers in exponential backoff after quota refusals retry as soon as the quota has headroom (`budget.wakeControllers`).

use std::time::Duration;

use e2e::{
    Result, World,
    fixtures::{gated_pod, mig_profile, pool},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

const TENANT: &str = "wakeup";
const USES: &str = "wakeup-uses";
const WAITS: &str = "wakeup-waits";
const BUDGET: usize = 3;
/// Controllers that wait for one pod each.
const WAITING: [(&str, &str); 3] = [("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")];
/// Updates of the waiting objects: each triggers a failing attempt, which doubles the backoff from 5 ms.
const TOUCHES: usize = 18;
/// Longer than every backoff that began before the last update.
const EARLIER: Duration = Duration::from_secs(15);

/// A controller whose pods count towards quotas and are never scheduled.
fn controller((version, kind): (&str, &str), namespace: &str, replicas: usize) -> Value {
    let labels = json!({"app": kind.to_lowercase()});
    let mut pod = gated_pod("nvidia.com/mig-1g.10gb", 1);
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

async fn pods_become(world: &World, namespace: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} pods in {namespace}"), PATIENCE, || async {
        let pods = Api::<Pod>::namespaced(world.client.clone(), namespace).list(&ListParams::default()).await?;
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        Ok(if names.len() == count { Ok(()) } else { Err(names.join(", ")) })
    })
    .await
}

/// The quota has refused a pod of each controller.
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
async fn controller_in_backoff_retries_when_quota_has_headroom() {
    let world = World::enter().await.unwrap();
    let body = async {
        let tenant = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": TENANT},
            "spec": {
                "namespaces": [{"name": USES}, {"name": WAITS}], "gpus": [{"profile": "slice", "count": BUDGET}],
                "deletionProtection": false,
            },
        });
        world.set(&[mig_profile("slice", "1g.10gb"), pool("p", "gpu-1", &["slice"]), tenant]).await?;
        tenant_ready(&world, TENANT).await?;
        world.set(&[controller(("apps/v1", "Deployment"), USES, BUDGET)]).await?;
        pods_become(&world, USES, BUDGET).await?;

        world.set(&WAITING.map(|which| controller(which, WAITS, 1))).await?;
        all_refused(&world).await?;
        for touch in 0..TOUCHES {
            let value = format!("example.com/touch={touch}");
            let kinds = "replicasets,statefulsets";
            world.kubectl(&["annotate", "--overwrite", "-n", WAITS, kinds, "--all", &value]).await?;
        }
        tokio::time::sleep(EARLIER).await;
        pods_become(&world, WAITS, 0).await?;

        // by backoff alone the next attempt would be more than ten minutes away
        world.kubectl(&["delete", "deployment", "-n", USES, "deployment", "--wait=false"]).await?;
        pods_become(&world, WAITS, WAITING.len()).await?;
        let reasons = "jsonpath={.items[*].status.conditions[?(@.type==\"gputenancy.io/QuotaAvailable\")].message}";
        let message = world.kubectl(&["get", "replicasets", "-n", WAITS, "-o", reasons]).await?;
        let wanted =
            "the budget of GpuTenant wakeup has headroom here for a pod with requests.nvidia.com/mig-1g.10gb=1";
        ensure(message.trim() == wanted, format!("condition of the ReplicaSet: {message}"))
    };
    world.keeping_evidence("controller-wakeup", body).await;
}
