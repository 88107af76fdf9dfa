//! `PriorityClasses` of a tenant, enforced by a quota, also without admission policies.

use e2e::{
    Error, Result, World,
    fixtures::gated_pod,
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, ResourceQuotaSpec};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

const TENANT: &str = "classes";
const QUOTA: &str = "gputenancy-priority-classes";
/// A namespace of no tenant, where the policies do not apply.
const ELSEWHERE: &str = "classes-elsewhere";
const CLASSES: [&str; 2] = ["classes-own", "classes-other"];

/// The API server's refusal of a pod of this class, if it refuses.
async fn refused(world: &World, class: Option<&str>) -> Result<Option<String>> {
    let mut spec = gated_pod("nvidia.com/gpu", 1);
    spec["containers"][0]["resources"] = json!({});
    spec["priorityClassName"] = json!(class);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}, "spec": spec});
    let pod: Pod = serde_json::from_value(pod).map_err(|e| Error::Wrong(e.to_string()))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    match Api::namespaced(world.client.clone(), ELSEWHERE).create(&dry, &pod).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message)),
        Err(error) => Err(error.into()),
    }
}

/// The operator's quota of `PriorityClasses` in the tenant's namespace.
async fn operator_quota(world: &World) -> Result<Option<ResourceQuotaSpec>> {
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), TENANT);
    Ok(quotas.get_opt(QUOTA).await?.and_then(|q| q.spec))
}

fn tenant(classes: Option<Value>) -> Value {
    let mut spec = json!({"namespaces": [{"name": TENANT}], "deletionProtection": false});
    if let Some(classes) = classes {
        spec["priorityClasses"] = classes;
    }
    json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": TENANT}, "spec": spec})
}

#[tokio::test]
async fn priority_class_quota_admits_only_classes_of_the_tenant() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        let class = |name| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": ELSEWHERE}});
        world
            .set(&[class(CLASSES[0]), class(CLASSES[1]), namespace, account, tenant(Some(json!([CLASSES[0]])))])
            .await?;
        tenant_ready(&world, TENANT).await?;
        let spec = operator_quota(&world).await?.ok_or_else(|| Error::Wrong(format!("no quota {QUOTA}")))?;
        world.set(&[json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA, "namespace": ELSEWHERE}, "spec": spec})]).await?;
        let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), ELSEWHERE);
        eventually("the quota to be enforced", PATIENCE, || async {
            let enforced = quotas.get(QUOTA).await?.status.and_then(|s| s.hard).is_some();
            Ok(if enforced { Ok(()) } else { Err("not yet".into()) })
        })
        .await?;

        let own = (refused(&world, Some(CLASSES[0])).await?, refused(&world, None).await?);
        ensure(own == (None, None), format!("with an allowed class, and without a class: {own:?}"))?;
        let other = refused(&world, Some(CLASSES[1])).await?.unwrap_or_default();
        ensure(other.contains(&format!("exceeded quota: {QUOTA}")), format!("with another class: {other:?}"))?;

        world.set(&[tenant(None)]).await?;
        tenant_ready(&world, TENANT).await?;
        ensure(operator_quota(&world).await?.is_none(), "the quota remains without priorityClasses")
    };
    let outcome = body.await;
    // the cleanup between tests deletes objects of tenants only
    let missing = "--ignore-not-found";
    world.kubectl(&["delete", "namespace", ELSEWHERE, missing]).await.unwrap();
    world.kubectl(&["delete", "priorityclass", CLASSES[0], CLASSES[1], missing]).await.unwrap();
    world.keeping_evidence("classes", async { outcome }).await;
}
