//! What the admission policies cost a pod: creation in a tenant's namespace and elsewhere, with a device and without one, with the
//! policies in force and without, in turns within one run and beside a thousand tenants. Elsewhere is a namespace with the same
//! quota and Pod Security that is no tenant's. Each case twice: creations as people make them, of pods that are not scheduled and that
//! go after each turn; and dry runs, which pass all of admission and are never stored, so that what admission takes is measured alone.

use std::time::{Duration, Instant};

use e2e::{
    Error, Result, World,
    objects::delete_everything,
    product,
    scene::{mig_profile, pod_spec, pool, tenant},
    story::tenant_ready,
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
/// In a turn, one after the other.
const CREATIONS: usize = 56;
/// So many pods with a device the tenant may have, and so many devices there are.
const AT_ONCE: usize = 28;
/// After the policies came or went the API server compiles them: what is measured meanwhile pays for that.
const COMPILED: Duration = Duration::from_secs(5);
/// After pods have gone their controllers have a little to do.
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
    elsewhere(world).await?;
    let outcome = in_turns(world, tenants).await;
    // also after a failure: a cluster without its policies is no one's to keep
    product::install(&world.lab, &[]).await?;
    world.kubectl(&["delete", "namespace", ELSEWHERE, "--ignore-not-found"]).await?;
    outcome?;
    delete_everything(&world.client).await
}

/// A namespace as the tenant's is, which is no tenant's.
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
        Ok(if seen { Ok(()) } else { Err("not in force".into()) })
    })
    .await
}

/// What is created where.
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

/// One turn: each case by itself, so that none pays for what the one before it left the API server to do.
async fn creations(world: &World, times: &mut [Vec<Duration>; CASES.len()]) -> Result<()> {
    for (Case { namespace, device, dry, what: _ }, times) in CASES.iter().zip(times.iter_mut()) {
        let pod = pod(*device);
        for made in 1..=CREATIONS {
            let begun = Instant::now();
            create(world, namespace, &pod, *dry).await?;
            times.push(begun.elapsed());
            // a pod refused by a quota is not measured
            if !dry && made % AT_ONCE == 0 {
                clear(world, namespace).await?;
            }
        }
    }
    Ok(())
}

/// Takes the pods away, and waits until the quota counts none and nothing more is done about them.
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
    // admission is measured, and no scheduler
    spec["schedulingGates"] = json!([{"name": "example.com/never"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}, "spec": spec})
}

async fn create(world: &World, namespace: &str, pod: &Value, dry_run: bool) -> Result<Pod> {
    let pod: Pod =
        serde_json::from_value(pod.clone()).map_err(|e| Error::Text { what: "the pod".into(), why: e.to_string() })?;
    let how = PostParams { dry_run, ..PostParams::default() };
    Ok(Api::namespaced(world.client.clone(), namespace).create(&how, &pod).await?)
}

/// The bindings of our policies: without its binding a policy is asked nothing.
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
            // what comes in a list does not say what it is
            again.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
            again.metadata.resource_version = None;
            again.metadata.uid = None;
            again.metadata.managed_fields = None;
            // as who made it, or the next upgrade of the chart would find another owner
            api.patch(&binding.name_any(), &PatchParams::apply("helm"), &Patch::Apply(&again)).await?;
        }
        in_force(world, true).await
    }
}

/// Waits until a pod that reaches for all devices is refused, and one with a device tolerates nodes with GPUs, or no longer.
async fn in_force(world: &World, wanted: bool) -> Result<()> {
    let mut reaching = pod(false);
    reaching["spec"]["containers"][0]["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    eventually("the policies to come or go", PATIENCE, || async {
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
