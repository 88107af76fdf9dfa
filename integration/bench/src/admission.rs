//! Cost of the admission policies for a pod: creation in a tenant's namespace and in another one with the same quota and Pod
//! Security, with and without a device, with and without the policies, alternating within one run. Each case is measured by
//! creations of unscheduled pods, and by dry runs, which pass admission and are not stored.

use std::time::{Duration, Instant};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pod_spec, pool, tenant},
    objects::delete_everything,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use kube::{
    Api, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        TypeMeta,
    },
};
use serde_json::{Value, json};

use super::many::{become_ready, quantile};

const TURNS: usize = 4;
/// Creations of each case in a round.
const CREATIONS: usize = 56;
/// Guarantee of the tenant, and devices of the pool.
const AT_ONCE: usize = 28;
/// Pause after policies are added or removed, in which the API server compiles them.
const COMPILED: Duration = Duration::from_secs(5);
/// Pause after pods are deleted, for their controllers.
const SETTLED: Duration = Duration::from_secs(1);
const TENANT: &str = "measured";
const ELSEWHERE: &str = "elsewhere";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

/// Prints the median of every case with and without policies, and their ratio.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    delete_everything(&world.client).await?;
    let pools = [pool("p", "gpu-1", &["mig-1g"]), pool("q", "gpu-2", &["mig-1g"])];
    world.set(&[&[mig_profile("mig-1g", "1g.10gb")], &pools[..]].concat()).await?;
    become_ready(world, "bench-", tenants).await?;
    let guaranteed = i32::try_from(AT_ONCE).unwrap_or(i32::MAX);
    world.set(&[tenant(TENANT, &[("mig-1g", guaranteed)])]).await?;
    tenant_ready(world, TENANT).await?;
    product::install(&world.lab, &[&format!("policies.unmanagedNamespaces={{{ELSEWHERE}}}")]).await?;
    elsewhere(world).await?;
    let outcome = in_turns(world, tenants).await;
    // also after a failure
    product::install(&world.lab, &[]).await?;
    world.kubectl(&["delete", "namespace", ELSEWHERE, "--ignore-not-found"]).await?;
    outcome?;
    delete_everything(&world.client).await
}

/// Creates a namespace like the tenant's that belongs to no tenant.
async fn elsewhere(world: &World) -> Result<()> {
    let client = &world.client;
    let of = Api::<Namespace>::all(client.clone()).get(TENANT).await?;
    let security = of.labels().iter().filter(|(key, _)| key.starts_with("pod-security"));
    let labels: serde_json::Map<String, Value> = security.map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let quota = Api::<ResourceQuota>::namespaced(client.clone(), TENANT).list(&ListParams::default()).await?;
    let hard = quota.items.first().and_then(|q| q.spec.as_ref()?.hard.clone());
    world
        .set(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE, "labels": labels}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": ELSEWHERE}}),
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "same", "namespace": ELSEWHERE}, "spec": {"hard": hard}}),
        ])
        .await?;
    let quotas = Api::<ResourceQuota>::namespaced(client.clone(), ELSEWHERE);
    eventually("the other namespace's quota", PATIENCE, || async {
        let seen = quotas.get("same").await?.status.and_then(|s| s.hard).is_some();
        Ok(if seen { Ok(()) } else { Err("not enforced".into()) })
    })
    .await
}

/// A measured case.
struct Case {
    namespace: &'static str,
    device: bool,
    dry: bool,
    what: &'static str,
}

const CASES: [Case; 8] = [
    Case::new(TENANT, true, false, "in a tenant's namespace, with a device"),
    Case::new(TENANT, false, false, "in a tenant's namespace, without"),
    Case::new(ELSEWHERE, true, false, "elsewhere, with a device"),
    Case::new(ELSEWHERE, false, false, "elsewhere, without"),
    Case::new(TENANT, true, true, "dry run in a tenant's namespace, with a device"),
    Case::new(TENANT, false, true, "dry run in a tenant's namespace, without"),
    Case::new(ELSEWHERE, true, true, "dry run elsewhere, with a device"),
    Case::new(ELSEWHERE, false, true, "dry run elsewhere, without"),
];

impl Case {
    const fn new(namespace: &'static str, device: bool, dry: bool, what: &'static str) -> Self {
        Self { namespace, device, dry, what }
    }
}

async fn in_turns(world: &World, tenants: usize) -> Result<()> {
    let bindings = Bindings::of(world).await?;
    let mut with = CASES.map(|_| Vec::new());
    let mut without = CASES.map(|_| Vec::new());
    for _ in 0..TURNS {
        creations(world, &mut with).await?;
        bindings.remove(world).await?;
        creations(world, &mut without).await?;
        bindings.restore(world).await?;
    }
    println!("admission: {tenants} tenants; a pod created {} times a case", with[0].len());
    for ((Case { what, .. }, with), without) in CASES.iter().zip(&with).zip(&without) {
        let (with, without) = (quantile(with, 0.5).as_secs_f64() * 1e3, quantile(without, 0.5).as_secs_f64() * 1e3);
        println!("  {what}: p50 {with:.2} ms with the policies, {without:.2} ms without, ratio {:.2}", with / without);
    }
    Ok(())
}

/// One round: each case by itself, so that none pays for background work of the one before.
async fn creations(world: &World, times: &mut [Vec<Duration>; CASES.len()]) -> Result<()> {
    for (Case { namespace, device, dry, what: _ }, times) in CASES.iter().zip(times.iter_mut()) {
        let pod = pod(*device);
        for made in 1..=CREATIONS {
            let begun = Instant::now();
            create(world, namespace, &pod, *dry).await?;
            times.push(begun.elapsed());
            // creations that a quota refuses are not measured
            if !dry && made % AT_ONCE == 0 {
                clear(world, namespace).await?;
            }
        }
    }
    Ok(())
}

/// Deletes the pods, and waits until the quota counts none and their controllers are done.
async fn clear(world: &World, namespace: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), namespace);
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), namespace);
    eventually("the quota to count no pods", PATIENCE, || async {
        let all = quotas.list(&ListParams::default()).await?.items;
        let used = all.iter().filter_map(|q| q.status.as_ref()?.used.as_ref()?.get("pods")).any(|used| used.0 != "0");
        Ok(if used { Err(format!("pods are counted in {namespace}")) } else { Ok(()) })
    })
    .await?;
    tokio::time::sleep(SETTLED).await;
    Ok(())
}

fn pod(device: bool) -> Value {
    let mut spec = pod_spec(RESOURCE);
    if !device {
        spec["containers"][0]["resources"] = json!({});
    }
    // never scheduled
    spec["schedulingGates"] = json!([{"name": "example.com/never"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}, "spec": spec})
}

async fn create(world: &World, namespace: &str, pod: &Value, dry_run: bool) -> Result<Pod> {
    let pod: Pod =
        serde_json::from_value(pod.clone()).map_err(|e| Error::Text { what: "the pod".into(), why: e.to_string() })?;
    let how = PostParams { dry_run, ..PostParams::default() };
    Ok(Api::namespaced(world.client.clone(), namespace).create(&how, &pod).await?)
}

/// The bindings of the chart's policies: without its binding a policy is not evaluated.
struct Bindings(Vec<(ApiResource, DynamicObject)>);

impl Bindings {
    async fn of(world: &World) -> Result<Self> {
        let mut all = Vec::new();
        for kind in ["ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding"] {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
            let api = Api::<DynamicObject>::all_with(world.client.clone(), &kind);
            let ours = ListParams::default().labels("app.kubernetes.io/part-of=gputenancy");
            all.extend(api.list(&ours).await?.items.into_iter().map(|binding| (kind.clone(), binding)));
        }
        Ok(Self(all))
    }

    async fn remove(&self, world: &World) -> Result<()> {
        for (kind, binding) in &self.0 {
            let api = Api::<DynamicObject>::all_with(world.client.clone(), kind);
            api.delete(&binding.name_any(), &DeleteParams::default()).await?;
        }
        in_force(world, false).await
    }

    async fn restore(&self, world: &World) -> Result<()> {
        for (kind, binding) in &self.0 {
            let api = Api::<DynamicObject>::all_with(world.client.clone(), kind);
            let mut again = binding.clone();
            // list items have no apiVersion and kind
            again.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
            again.metadata.resource_version = None;
            again.metadata.uid = None;
            again.metadata.managed_fields = None;
            // under helm's field manager, or the next upgrade would conflict
            api.patch(&binding.name_any(), &PatchParams::apply("helm"), &Patch::Apply(&again)).await?;
        }
        in_force(world, true).await
    }
}

/// Waits until the policies are, or are not, enforced: a pod with `NVIDIA_VISIBLE_DEVICES=all` is refused, and a pod with a device gets
/// the toleration.
async fn in_force(world: &World, wanted: bool) -> Result<()> {
    let mut reaching = pod(false);
    reaching["spec"]["containers"][0]["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    eventually("the policies to be enforced or removed", PATIENCE, || async {
        let refused = create(world, TENANT, &reaching, true).await.is_err();
        let spec = create(world, TENANT, &pod(true), true).await?.spec.unwrap_or_default();
        let tolerates = spec.tolerations.iter().flatten().any(|t| t.key.as_deref() == Some("nvidia.com/gpu"));
        let both = refused == wanted && tolerates == wanted;
        Ok(if both { Ok(()) } else { Err(format!("refused: {refused}, tolerates: {tolerates}")) })
    })
    .await?;
    tokio::time::sleep(COMPILED).await;
    Ok(())
}
