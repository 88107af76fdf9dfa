//! Tenants go with all that is theirs, many at once and whatever happens meanwhile.

use e2e::{
    Error, Result, World,
    objects::{condition, ensure},
    scene::tenant,
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
/// As many as go before the API server does.
const BEFORE: usize = 25;
/// The tenant in whose namespace something stays until its owner lets it go.
const HELD: &str = "leaving-042";

fn name(i: usize) -> String {
    format!("leaving-{i:03}")
}

/// A pod as teams run it, which takes nearly nothing.
fn pod(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "work", "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "work", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "1000000"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

async fn all_at_work(world: &World) -> Result<()> {
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
        let count = pods_here(world).await?;
        Ok(if count == TENANTS { Ok(()) } else { Err(format!("{count} of {TENANTS}")) })
    })
    .await
}

/// Pods of the tenants that run.
async fn pods_here(world: &World) -> Result<usize> {
    let running = ListParams::default().fields("metadata.name=work,status.phase=Running");
    Ok(Api::<Pod>::all(world.client.clone()).list(&running).await?.items.len())
}

async fn namespaces_here(world: &World) -> Result<usize> {
    let ours = ListParams::default().labels(names::TENANT_LABEL);
    Ok(Api::<Namespace>::all(world.client.clone()).list(&ours).await?.items.len())
}

/// Somebody else's object whose owner has to let it go first.
async fn hold(world: &World, held: bool) -> Result<()> {
    let finalizers = if held { json!(["example.com/backup"]) } else { Value::Null };
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "backup", "finalizers": finalizers}});
    let api = Api::<ConfigMap>::namespaced(world.client.clone(), HELD);
    if held {
        api.patch("backup", &PatchParams::apply("test"), &Patch::Apply(object)).await?;
    } else {
        api.patch("backup", &PatchParams::default(), &Patch::Merge(object)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_hundred_tenants_at_work_go_with_all_that_is_theirs_though_the_api_server_is_killed_meanwhile() {
    let world = World::enter().await.unwrap();
    let body = async {
        all_at_work(&world).await?;
        hold(&world, true).await?;
        let tenants = Api::<GpuTenant>::all(world.client.clone());
        tenants.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        eventually("some namespaces gone", PATIENCE, || async {
            let count = namespaces_here(&world).await?;
            Ok(if count + BEFORE <= TENANTS { Ok(()) } else { Err(format!("{count} left")) })
        })
        .await?;
        world.lab.kill_component("kube-apiserver").await?;
        world.lab.apiserver_ready().await?;
        eventually("only the tenant that is held", PATIENCE, || async {
            let left = tenants.list(&ListParams::default()).await?.items;
            let names: Vec<_> = left.iter().filter_map(|t| t.metadata.name.as_deref()).collect();
            Ok(if names == [HELD] { Ok(()) } else { Err(format!("{names:?}")) })
        })
        .await?;
        eventually("who holds it is named", PATIENCE, || async {
            let status = tenants.get(HELD).await?.status.unwrap_or_default();
            let ready = condition(&status.conditions, kinds::READY).cloned();
            let ready = ready.ok_or_else(|| Error::Wrong("no condition Ready".into()))?;
            let named = ["example.com/backup", HELD].iter().all(|words| ready.message.contains(words));
            Ok(if ready.reason == "Deleting" && named { Ok(()) } else { Err(ready.message) })
        })
        .await?;
        hold(&world, false).await?;
        eventually("the last tenant gone", PATIENCE, || async {
            let left = tenants.list(&ListParams::default()).await?.items.len();
            Ok(if left == 0 { Ok(()) } else { Err(format!("{left} left")) })
        })
        .await?;
        ensure(namespaces_here(&world).await? == 0, "no namespace is left")?;
        ensure(pods_here(&world).await? == 0, "no pod is left")?;
        let orphans = world.labelled(names::TENANT_LABEL).await?;
        ensure(orphans.is_empty(), format!("left behind: {orphans:?}"))
    };
    world.keeping_evidence("teardown", body).await;
}
