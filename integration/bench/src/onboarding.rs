//! Rate at which tenants become Ready, compared with a bare client that writes the same objects while the operator is stopped: the
//! tenant with finalizer and status, namespace, grant, quota, network policy, limit range, role binding, cluster role with its binding,
//! and event. The client runs
//! twice: with server-side apply, as the operator does, and with plain creation. A tenant is Ready when the quota controller has
//! enforced its quota, so the client's time is printed with and without that wait.

use std::time::Instant;

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool},
    objects::{self, delete_everything},
    product,
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt, TryStreamExt, stream};
use gputenancy_crds::{GpuGrant, GpuTenant, names};
use http::Request;
use k8s_openapi::api::{
    core::v1::{LimitRange, Namespace, Pod, ResourceQuota},
    events::v1::Event,
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{Api, Resource, ResourceExt, api::ListParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    load::Load,
    many::{IN_FLIGHT, become_ready, quantile, until_all},
    rest,
    writes::Writes,
};

/// Onboards the tenants by the operator, then writes copies of its objects with a bare client.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    // the policies permit writes of grants to the operator only
    product::install(&world.lab, &["policies.breakGlassGroups={system:masters}"]).await?;
    delete_everything(&world.client).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;

    let (before, written) = (Load::of(world).await?, Writes::of(world).await?);
    let start = Instant::now();
    let waited = become_ready(world, "bench-", tenants).await?;
    let ours = start.elapsed().as_secs_f64();
    let work = Load::of(world).await?.since(&before);
    let each = Writes::of(world).await?.since(&written, tenants);

    let operators = rest::operators(world).await?;
    let model = Model::of(world, "bench-0000").await?;
    scale_operator(world, 0).await?;
    let applied = bare_client(world, &model, "applied", tenants, Manner::Apply).await;
    let created = bare_client(world, &model, "created", tenants, Manner::Create).await;
    scale_operator(world, 2).await?;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let rate = |seconds: f64| tenants as f64 / seconds;
    println!(
        "onboarding: {tenants} tenants, {} objects each and a status: operator {:.1} tenants/s; {work}",
        model.objects.len(),
        rate(ours)
    );
    let (half, most) = (quantile(&waited, 0.5).as_secs_f64(), quantile(&waited, 0.99).as_secs_f64());
    println!("  writes a tenant: {:.1} ({each})", each.sum());
    println!("  Ready after its application: p50 {half:.1} s, p99 {most:.1} s; memory of the operators: {operators}");
    for (how, bare) in [("applies", applied?), ("creates", created?)] {
        let (written, in_force) = (bare.written, bare.in_force);
        println!(
            "  bare client that {how}, {IN_FLIGHT} tenants in flight: {:.1} tenants/s written, ratio {:.2}; {:.1} with quotas in force, ratio {:.2}; {}",
            rate(written),
            written / ours,
            rate(in_force),
            in_force / ours,
            bare.work
        );
        println!("    writes a tenant: {:.1} ({})", bare.each.sum(), bare.each);
    }
    // the client's copies have no owner
    let labelled = format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY);
    world.kubectl(&["delete", "clusterroles,clusterrolebindings", "-l", &labelled]).await?;
    delete_everything(&world.client).await
}

/// Result of the bare client.
struct Bare {
    /// Seconds until its last write.
    written: f64,
    /// Seconds until its last quota was enforced.
    in_force: f64,
    /// Load of the API server until then.
    work: Load,
    /// Writes per tenant until then.
    each: Writes,
}

/// A client writes the same objects under other names.
async fn bare_client(world: &World, model: &Model, name: &str, tenants: usize, manner: Manner) -> Result<Bare> {
    let (before, each) = (Load::of(world).await?, Writes::of(world).await?);
    let start = Instant::now();
    stream::iter(0..tenants)
        .map(|i| model.write(world, format!("{name}-{i:04}"), manner))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<_>>()
        .await?;
    let written = start.elapsed().as_secs_f64();
    let in_force = |q: &ResourceQuota| {
        let hard = q.spec.as_ref().and_then(|s| s.hard.as_ref());
        q.name_any() == names::QUOTA && hard.is_some() && q.status.as_ref().and_then(|s| s.hard.as_ref()) == hard
    };
    let quotas = Api::<ResourceQuota>::all(world.client.clone());
    until_all(&quotas, &format!("{name}-"), tenants, in_force).await?;
    let in_force = start.elapsed().as_secs_f64();
    let each = Writes::of(world).await?.since(&each, tenants);
    Ok(Bare { written, in_force, work: Load::of(world).await?.since(&before), each })
}

/// How the bare client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// As the operator: server-side apply, except for namespaces and events.
    Apply,
    /// Plain creation, and a merge patch for the status.
    Create,
}

/// Scales the operator and waits.
pub async fn scale_operator(world: &World, replicas: i32) -> Result<()> {
    let deployment = "deployment/gputenancy-operator";
    let count = format!("--replicas={replicas}");
    world.kubectl(&["scale", "-n", product::NAMESPACE, deployment, &count]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let operators = ListParams::default().labels("app.kubernetes.io/name=gputenancy-operator");
    eventually(&format!("{replicas} operators"), PATIENCE, || async {
        let here = pods.list(&operators).await?.items;
        let ready = here.iter().filter(|p| objects::is_ready(p)).count();
        let done = here.len() == ready && i32::try_from(ready).is_ok_and(|n| n == replicas);
        Ok(if done { Ok(()) } else { Err(format!("{ready} of {}", here.len())) })
    })
    .await
}

/// The objects of one tenant, as a template for copies under other names.
struct Model {
    tenant: String,
    status: Value,
    /// All other objects, with the API paths of their collections; the tenant's name is a placeholder.
    objects: Vec<(&'static str, Value)>,
}

impl Model {
    async fn of(world: &World, name: &str) -> Result<Self> {
        let client = &world.client;
        let namespaces = Api::<Namespace>::all(client.clone());
        let grants = Api::<GpuGrant>::namespaced(client.clone(), name);
        let quotas = Api::<ResourceQuota>::namespaced(client.clone(), name);
        let policies = Api::<NetworkPolicy>::namespaced(client.clone(), name);
        let limits = Api::<LimitRange>::namespaced(client.clone(), name);
        let bindings = Api::<RoleBinding>::namespaced(client.clone(), name);
        let events = Api::<Event>::namespaced(client.clone(), "default");
        let all = ListParams::default();
        let tenant = Api::<GpuTenant>::all(client.clone()).get(name).await?;
        // an earlier tenant of this name has events too
        let about = ListParams::default().fields(&format!("regarding.uid={}", tenant.uid().unwrap_or_default()));
        let tenant = bare(&tenant)?;
        let status = tenant["status"].clone();
        let mut objects = vec![("/apis/gputenancy.io/v1alpha1/gputenants", tenant)];
        objects.push(("/api/v1/namespaces", bare(&namespaces.get(name).await?)?));
        for grant in grants.list(&all).await? {
            objects.push(("/apis/gputenancy.io/v1alpha1/namespaces/{}/gpugrants", bare(&grant)?));
        }
        for quota in quotas.list(&all).await? {
            objects.push(("/api/v1/namespaces/{}/resourcequotas", bare(&quota)?));
        }
        for policy in policies.list(&all).await? {
            objects.push(("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", bare(&policy)?));
        }
        for limits in limits.list(&all).await? {
            objects.push(("/api/v1/namespaces/{}/limitranges", bare(&limits)?));
        }
        for binding in bindings.list(&all).await? {
            objects.push(("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings", bare(&binding)?));
        }
        let own = format!("gputenancy-tenant-{name}");
        if let Some(role) = Api::<ClusterRole>::all(client.clone()).get_opt(&own).await? {
            objects.push(("/apis/rbac.authorization.k8s.io/v1/clusterroles", bare(&role)?));
        }
        if let Some(binding) = Api::<ClusterRoleBinding>::all(client.clone()).get_opt(&own).await? {
            objects.push(("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bare(&binding)?));
        }
        for event in events.list(&about).await? {
            objects.push(("/apis/events.k8s.io/v1/namespaces/default/events", bare(&event)?));
        }
        Ok(Self { tenant: name.to_owned(), status, objects })
    }

    /// Writes the objects under another name, in the order of their dependencies.
    async fn write(&self, world: &World, name: String, manner: Manner) -> Result<()> {
        const APPLY: (&str, &str) = ("PATCH", "application/apply-patch+yaml");
        const FORCED: &str = "?fieldManager=bare&force=true";
        for (collection, object) in &self.objects {
            let path = collection.replace("{}", &name);
            let created = ["Namespace", "Event"].iter().any(|kind| object["kind"] == *kind);
            if manner == Manner::Create || created {
                self.send(world, ("POST", "application/json"), &path, object, &name).await?;
            } else {
                let own = object["metadata"]["name"].as_str().unwrap_or_default().replace(&self.tenant, &name);
                self.send(world, APPLY, &format!("{path}/{own}{FORCED}"), object, &name).await?;
            }
        }
        let path = format!("/apis/gputenancy.io/v1alpha1/gputenants/{name}/status");
        if manner == Manner::Create {
            let status = json!({"status": self.status});
            return self.send(world, ("PATCH", "application/merge-patch+json"), &path, &status, &name).await;
        }
        let status = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "status": self.status});
        self.send(world, APPLY, &format!("{path}{FORCED}"), &status, &name).await
    }

    async fn send(
        &self,
        world: &World,
        (method, content): (&str, &str),
        path: &str,
        body: &Value,
        name: &str,
    ) -> Result<()> {
        let body = body.to_string().replace(&self.tenant, name).into_bytes();
        let request = Request::builder().method(method).uri(path).header("Content-Type", content).body(body);
        let request = request.map_err(|e| Error::Text { what: "a request".into(), why: e.to_string() })?;
        world.client.request::<Value>(request).await?;
        Ok(())
    }
}

/// An object without fields that the API server sets.
fn bare<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Result<Value> {
    let mut value =
        serde_json::to_value(object).map_err(|e| Error::Text { what: "an object".into(), why: e.to_string() })?;
    let metadata = &value["metadata"];
    let kept =
        ["name", "namespace", "labels", "annotations", "finalizers"].map(|key| (key.to_owned(), metadata[key].clone()));
    let kept: serde_json::Map<String, Value> = kept.into_iter().filter(|(_, v)| !v.is_null()).collect();
    value["metadata"] = Value::Object(kept);
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    Ok(value)
}
