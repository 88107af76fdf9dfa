//! Controllers in exponential backoff after quota refusals retry as soon as the quota has headroom (`budget.wakeControllers`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use e2e::{
    Result, World,
    fixtures::{gated_pod, mig_profile, pool},
    scenario::tenant_ready,
    wait::{PATIENCE, eventually, follow},
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        core::v1::{Event, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::watcher,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TENANT: &str = "wakeup";
const USES: &str = "wakeup-uses";
const WAITS: &str = "wakeup-waits";
const BUDGET: usize = 3;
/// Controllers that wait for one pod each.
const WAITING: [(&str, &str); 3] = [("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")];
/// Kinds whose backoff grows up to 1000 seconds.
const PATIENT: [&str; 2] = ["ReplicaSet", "StatefulSet"];
/// Refused attempts after which the backoff is more than ten minutes: each doubles it from 5 ms.
const REFUSALS: i32 = 18;
/// Updates of the waiting objects, each of which triggers an attempt: fewer than the 25 events that Kubernetes writes about one object.
const TOUCHES: usize = 12;
const TOUCH_INTERVAL: Duration = Duration::from_millis(40);

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

/// Attempts that the quota has refused, by kind of controller.
async fn refusals(world: &World) -> Result<BTreeMap<String, i32>> {
    let events = Api::<Event>::namespaced(world.client.clone(), WAITS);
    let mut counts = BTreeMap::new();
    for event in events.list(&ListParams::default().fields("reason=FailedCreate")).await? {
        // similar events are one with a count
        *counts.entry(event.involved_object.kind.unwrap_or_default()).or_default() += event.count.unwrap_or(1);
    }
    Ok(counts)
}

/// The quota has refused a pod of each controller.
async fn all_refused(world: &World) -> Result<()> {
    eventually("every controller refused", PATIENCE, || async {
        let counts = refusals(world).await?;
        Ok(if counts.len() == WAITING.len() { Ok(()) } else { Err(format!("{counts:?}")) })
    })
    .await
}

/// Triggers attempts until the next one by backoff is more than ten minutes away. `begun`: before the controllers were created.
async fn long_backoff(world: &World, begun: Instant) -> Result<()> {
    let before = begun.elapsed();
    eventually("enough refused attempts", PATIENCE, || async {
        for _ in 0..TOUCHES {
            touch::<ReplicaSet>(world).await?;
            touch::<StatefulSet>(world).await?;
            tokio::time::sleep(TOUCH_INTERVAL).await;
        }
        let counts = refusals(world).await?;
        let enough = PATIENT.iter().all(|kind| counts.get(*kind).is_some_and(|n| *n >= REFUSALS));
        Ok(if enough { Ok(()) } else { Err(format!("{counts:?}")) })
    })
    .await?;
    // a backoff that has begun before the updates is no longer than the time until then, because each is as long as all before it
    tokio::time::sleep(before).await;
    Ok(())
}

async fn touch<K>(world: &World) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api = Api::<K>::namespaced(world.client.clone(), WAITS);
    for object in api.list_metadata(&ListParams::default()).await? {
        let value = json!({"metadata": {"annotations": {"example.com/touch": Timestamp::now().to_string()}}});
        api.patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(value)).await?;
    }
    Ok(())
}

/// Messages of the operator's condition on each `ReplicaSet`. Once its pod is created, the controller of Kubernetes may write its status over the condition.
fn messages(world: &World, tasks: &mut JoinSet<()>) -> Arc<Mutex<BTreeSet<String>>> {
    let seen = Arc::<Mutex<BTreeSet<String>>>::default();
    let to = Arc::clone(&seen);
    let sets = Api::<ReplicaSet>::namespaced(world.client.clone(), WAITS);
    follow(tasks, sets, watcher::Config::default(), move |set| {
        let conditions = set.status.and_then(|status| status.conditions).unwrap_or_default();
        let ours = conditions.into_iter().filter(|c| c.type_ == "gputenancy.io/QuotaAvailable");
        to.lock().unwrap().extend(ours.filter_map(|c| c.message));
    });
    seen
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

        let mut tasks = JoinSet::new();
        let messages = messages(&world, &mut tasks);
        let begun = Instant::now();
        world.set(&WAITING.map(|which| controller(which, WAITS, 1))).await?;
        all_refused(&world).await?;
        long_backoff(&world, begun).await?;
        pods_become(&world, WAITS, 0).await?;

        // by backoff alone the next attempt would be more than ten minutes away
        world.kubectl(&["delete", "deployment", "-n", USES, "deployment", "--wait=false"]).await?;
        pods_become(&world, WAITS, WAITING.len()).await?;
        let wanted =
            "the budget of GpuTenant wakeup has headroom here for a pod with requests.nvidia.com/mig-1g.10gb=1";
        eventually("the condition of the ReplicaSet", PATIENCE, || async {
            let seen = messages.lock().unwrap().clone();
            Ok(if seen.contains(wanted) { Ok(()) } else { Err(format!("{seen:?}")) })
        })
        .await
    };
    world.keeping_evidence("controller-wakeup", body).await;
}
