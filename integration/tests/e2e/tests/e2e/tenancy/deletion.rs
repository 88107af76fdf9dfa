//! Deletion of many tenants with workloads, through an API server restart.

use e2e::{
    Error, Result, World,
    fixtures::{restricted_spec, tenant},
    objects::{condition, ensure},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, condition as kinds, names};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const TENANTS: usize = 100;
/// Namespaces that are deleted before the API server is killed.
const BEFORE: usize = 25;
/// The tenant in whose namespace an object has a finalizer of another controller.
const BLOCKED: &str = "leaving-042";

fn name(i: usize) -> String {
    format!("leaving-{i:03}")
}

/// A pod with minimal resource use.
fn pod(namespace: &str) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "1000000"],
    }));
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "work", "namespace": namespace}, "spec": spec})
}

async fn start_all(world: &World) -> Result<()> {
    let tenants: Vec<Value> = (0..TENANTS).map(|i| tenant(&name(i), &[])).collect();
    world.set(&tenants).await?;
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually("all tenants Ready", PATIENCE, || async {
        let all = api.list(&ListParams::default()).await?.items;
        let ready = |t: &&GpuTenant| t.status.as_ref().is_some_and(|s| kinds::is_true(&s.conditions, kinds::READY));
        let count = all.iter().filter(ready).count();
        Ok(if count == TENANTS { Ok(()) } else { Err(format!("{count} of {TENANTS}")) })
    })
    .await?;
    let pods: Vec<Value> = (0..TENANTS).map(|i| pod(&name(i))).collect();
    world.set(&pods).await?;
    eventually("all pods to run", PATIENCE, || async {
        let count = running_pods(world).await?;
        Ok(if count == TENANTS { Ok(()) } else { Err(format!("{count} of {TENANTS}")) })
    })
    .await
}

/// Running pods of the tenants.
async fn running_pods(world: &World) -> Result<usize> {
    let running = ListParams::default().fields("metadata.name=work,status.phase=Running");
    Ok(Api::<Pod>::all(world.client.clone()).list(&running).await?.items.len())
}

async fn tenant_namespaces(world: &World) -> Result<usize> {
    let ours = ListParams::default().labels(names::TENANT_LABEL);
    Ok(Api::<Namespace>::all(world.client.clone()).list(&ours).await?.items.len())
}

/// Adds or removes a finalizer of another controller.
async fn set_finalizer(world: &World, present: bool) -> Result<()> {
    let finalizers = if present { json!(["example.com/backup"]) } else { Value::Null };
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "backup", "finalizers": finalizers}});
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), BLOCKED);
    if present {
        api.patch("backup", &PatchParams::apply("test"), &Patch::Apply(object)).await?;
    } else {
        api.patch("backup", &PatchParams::default(), &Patch::Merge(object)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn deletion_of_100_tenants_completes_through_api_server_restart() {
    let world = World::enter().await.unwrap();
    let body = async {
        start_all(&world).await?;
        set_finalizer(&world, true).await?;
        let tenants = Api::<GpuTenant>::all(world.client.clone());
        tenants.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        eventually("some namespaces to be deleted", PATIENCE, || async {
            let count = tenant_namespaces(&world).await?;
            Ok(if count + BEFORE <= TENANTS { Ok(()) } else { Err(format!("{count} left")) })
        })
        .await?;
        world.lab.kill_component("kube-apiserver").await?;
        world.lab.apiserver_ready().await?;
        eventually("only the blocked tenant to remain", PATIENCE, || async {
            let left = tenants.list(&ListParams::default()).await?.items;
            let names: Vec<_> = left.iter().filter_map(|t| t.metadata.name.as_deref()).collect();
            Ok(if names == [BLOCKED] { Ok(()) } else { Err(format!("{names:?}")) })
        })
        .await?;
        eventually("the finalizer in the condition", PATIENCE, || async {
            let status = tenants.get(BLOCKED).await?.status.unwrap_or_default();
            let ready = condition(&status.conditions, kinds::READY).cloned();
            let ready = ready.ok_or_else(|| Error::Wrong("no condition Ready".into()))?;
            let named = ["example.com/backup", BLOCKED].iter().all(|words| ready.message.contains(words));
            Ok(if ready.reason == "Deleting" && named { Ok(()) } else { Err(ready.message) })
        })
        .await?;
        set_finalizer(&world, false).await?;
        eventually("the last tenant to be deleted", PATIENCE, || async {
            let left = tenants.list(&ListParams::default()).await?.items.len();
            Ok(if left == 0 { Ok(()) } else { Err(format!("{left} left")) })
        })
        .await?;
        ensure(tenant_namespaces(&world).await? == 0, "a namespace is left")?;
        ensure(running_pods(&world).await? == 0, "a pod is left")?;
        let orphans = world.labelled(names::TENANT_LABEL).await?;
        ensure(orphans.is_empty(), format!("left behind: {orphans:?}"))
    };
    world.keeping_evidence("teardown", body).await;
}
