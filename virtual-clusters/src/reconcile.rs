//! One virtual cluster: render, apply, connect, show the budget, report.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_crds::{
    GpuTenant, VIRTUAL_CLUSTER_FINALIZER, VirtualCluster, VirtualClusterStatus,
    reasons::{self, Reason},
};
use gputenancy_service::events::{EventType, Notice, Publisher};
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    args::{Charts, Values},
    conditions::{self, Facts, Progress},
    decide::{self, ControlPlane, Settled, Write},
    host::{Host, Live},
    inside::{account, connect, connect::Admin, nodes},
    kubeconfig::{Made, Present},
    names,
    render::{RenderError, helm, objects, objects::Object, values, version},
    teardown,
};

/// Interval of the passes that show the budget inside, and of all passes while something is not ready.
const INTERVAL: Duration = Duration::from_secs(4);
/// Interval of the passes that compare all objects, while all is ready.
const FULL_INTERVAL: Duration = Duration::from_secs(30);

/// What all virtual clusters share.
pub struct Context {
    /// Client of this cluster.
    pub client: Client,
    /// Publishes events.
    pub publisher: Publisher,
    /// The supported versions.
    pub charts: Charts,
    /// Values of the platform.
    pub values: Values,
    /// The program `helm`.
    pub helm: PathBuf,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is known of one virtual cluster between passes; without it, as after a restart, all is found again.
#[derive(Clone, Default)]
struct Memory {
    rendered: Option<(String, Arc<Vec<Object>>)>,
    /// The objects of this rendering are all applied.
    complete: Option<String>,
    settled: Settled,
    inside: Option<(Admin, Client)>,
    /// The last complete pass: of which generation, when, and what it found.
    full: Option<(Option<i64>, Instant, Progress)>,
}

impl Context {
    /// The state at the start.
    pub fn new(client: Client, publisher: Publisher, charts: Charts, values: Values, helm: PathBuf) -> Self {
        Self { client, publisher, charts, values, helm, memory: Mutex::default() }
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event about the tenant.
    pub async fn publish(&self, tenant: &GpuTenant, event_type: EventType, reason: Reason, note: String) {
        let notice = Notice { regarding: tenant.object_ref(&()), event_type, reason, action: "Reconcile".into(), note };
        self.publisher.publish(notice).await;
    }
}

/// One pass; returns the time until the next.
pub async fn reconcile(tenant: &GpuTenant, context: &Context) -> kube::Result<Option<Duration>> {
    let finalized = tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER);
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let name = tenant.name_any();
    match &tenant.spec.virtual_cluster {
        Some(_) if deleted && (!finalized || tenant.spec.deletion_protection) => Ok(None),
        Some(cluster) if !deleted => {
            if !finalized {
                set_finalizer(&context.client, tenant, true).await?;
            }
            pass(tenant, cluster, context).await.map(Some)
        }
        _ if !finalized => Ok(None),
        _ => {
            context.memory().remove(&name);
            let after = teardown::run(tenant, context).await?;
            if after.is_none() {
                if !deleted {
                    apply_status(&context.client, &name, None).await?;
                }
                set_finalizer(&context.client, tenant, false).await?;
            }
            Ok(after)
        }
    }
}

async fn pass(tenant: &GpuTenant, cluster: &VirtualCluster, context: &Context) -> kube::Result<Duration> {
    let (name, now) = (tenant.name_any(), Timestamp::now());
    let mut memory = context.memory().get(&name).cloned().unwrap_or_default();
    let old = tenant.status.as_ref().and_then(|s| s.virtual_cluster.clone()).unwrap_or_default();
    let recent = memory.full.clone().filter(|(generation, at, _)| {
        *generation == tenant.metadata.generation && at.elapsed() < FULL_INTERVAL
    });
    let is_ready = conditions::ready(&old).is_some_and(|(_, _, ready)| ready);
    let progress = match (recent, memory.inside.clone()) {
        (Some((_, _, progress)), Some((_, client))) if is_ready => {
            let capacity = nodes::show(&client, &nodes::budget(tenant)).await;
            Progress { capacity: Some(capacity), ..progress }
        }
        _ => {
            let progress = full(tenant, cluster, context, &mut memory).await;
            memory.full = Some((tenant.metadata.generation, Instant::now(), progress.clone()));
            progress
        }
    };
    context.memory().insert(name.clone(), memory);
    let (namespace, server) = (objects::namespace_of(tenant), server(tenant, cluster));
    let facts = Facts { generation: tenant.metadata.generation, namespace: &namespace, server: &server, now };
    let status = conditions::status(&progress, &old, &facts);
    if status != old {
        apply_status(&context.client, &name, Some(&status)).await?;
        let before = conditions::ready(&old).map(|(reason, ..)| reason);
        if let Some((reason, note, ready)) = conditions::ready(&status).filter(|(r, ..)| Some(*r) != before) {
            let quiet = [reasons::READY, reasons::APPLYING, reasons::CONTROL_PLANE_STARTING, reasons::VIRTUAL_CLUSTER_PAUSED];
            let event_type = if ready || quiet.contains(&reason) { EventType::Normal } else { EventType::Warning };
            context.publish(tenant, event_type, reason, format!("virtual cluster: {note}")).await;
        }
    }
    Ok(INTERVAL)
}

/// A complete pass. What fails is in the progress, and is tried again.
async fn full(tenant: &GpuTenant, cluster: &VirtualCluster, context: &Context, memory: &mut Memory) -> Progress {
    let mut progress = Progress::default();
    let host = Host::new(context.client.clone(), &objects::namespace_of(tenant), &tenant.name_any());
    let (key, wanted) = match rendered(tenant, cluster, context, memory).await {
        Ok(rendered) => rendered,
        Err(Failure::Render(error)) => {
            progress.rendered = Some(Err(error));
            return progress;
        }
        Err(Failure::Api(error)) => {
            progress.failed = Some(error);
            return progress;
        }
    };
    let live = match apply(tenant, cluster, context, (&host, memory), (&key, &wanted)).await {
        Ok(live) => live,
        Err(error) => {
            progress.failed = Some(error);
            return progress;
        }
    };
    progress.rendered = Some(Ok(cluster.version.clone()));
    let pods = host.control_plane_pods().await.unwrap_or_default();
    let replicas = decide::replicas(cluster.suspend, &live);
    let state = decide::control_plane(&tenant.name_any(), replicas, &live, &pods);
    if state == ControlPlane::Paused && cluster.suspend {
        // as vcluster pause does: without its control plane nothing ends them inside
        if let Ok(pods) = host.synced_pods().await {
            drop(host.delete_pods(&pods).await);
        }
    }
    let serves = state == ControlPlane::Ready;
    progress.control_plane = Some(state);
    if serves {
        let kubeconfig = kubeconfig(tenant, cluster, &host, memory).await;
        if let (Ok(_), Some((_, client))) = (&kubeconfig, &memory.inside) {
            progress.capacity = Some(nodes::show(client, &nodes::budget(tenant)).await);
        }
        progress.kubeconfig = Some(kubeconfig);
    }
    progress
}

enum Failure {
    Render(RenderError),
    Api(String),
}

/// The objects of the tenant, rendered now or before, with a key that differs for other objects.
async fn rendered(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    memory: &mut Memory,
) -> Result<(String, Arc<Vec<Object>>), Failure> {
    let running = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref()?.version.clone());
    let chart = version::choose(&context.charts, &cluster.version, running.as_deref()).map_err(Failure::Render)?;
    let values = values::values(tenant, cluster, &context.values.0).map_err(Failure::Render)?;
    let info = context.client.apiserver_version().await;
    let info = info.map_err(|e| Failure::Api(format!("reading the version of this cluster: {e}")))?;
    let (name, namespace) = (tenant.name_any(), objects::namespace_of(tenant));
    let key = format!("{} {} {values}", chart.sha256, info.git_version);
    if let Some((present, objects)) = memory.rendered.as_ref().filter(|(present, _)| *present == key) {
        return Ok((present.clone(), objects.clone()));
    }
    let release = helm::Release { name: &name, namespace: &namespace, kube_version: &info.git_version };
    let manifests = helm::template(&context.helm, chart, release, &values).await.map_err(Failure::Render)?;
    let objects = Arc::new(objects::parse(tenant, &manifests).map_err(Failure::Render)?);
    memory.rendered = Some((key.clone(), objects.clone()));
    Ok((key, objects))
}

/// Makes the objects in the namespace as rendered, and returns those that were there before.
async fn apply(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (host, memory): (&Host, &mut Memory),
    (key, rendered): (&str, &[Object]),
) -> Result<Vec<Live>, String> {
    let failed = |error: &kube::Error| match error {
        kube::Error::Api(status) if status.is_forbidden() || status.is_not_found() => {
            format!("waiting for the namespace and its role binding gputenancy-virtual-clusters, which the operator writes: {error}")
        }
        error => format!("the objects of the virtual cluster: {error}"),
    };
    let live = host.applied().await.map_err(|e| failed(&e))?;
    let mut wanted = rendered.to_vec();
    objects::scale(&mut wanted, decide::replicas(cluster.suspend, &live));
    // the scale is part of what was applied
    let key = format!("{key} {:?}", decide::replicas(cluster.suspend, &live));
    let complete = memory.complete.as_deref() == Some(&key);
    let mut repaired = Vec::new();
    for write in decide::writes(&wanted, &live, &memory.settled, complete) {
        match write {
            Write::Apply { object, repairs } => {
                let version = host.apply(&object).await.map_err(|e| failed(&e))?;
                let old = live.iter().find(|l| l.kind == object.kind && l.name == object.name);
                let changed = old.and_then(|o| o.version.clone()) != version;
                if let Some(version) = version {
                    memory.settled.insert((object.kind, object.name.clone()), version);
                }
                if repairs && changed {
                    repaired.push(format!("{} {}", object.kind.kind, object.name));
                }
            }
            Write::Delete((kind, name)) => host.delete(kind, &name).await.map_err(|e| failed(&e))?,
        }
    }
    memory.complete = Some(key);
    if !repaired.is_empty() {
        let note = format!("{} had been changed or deleted and is as rendered again", repaired.join(", "));
        context.publish(tenant, EventType::Warning, reasons::VIRTUAL_CLUSTER_REPAIRED, note).await;
    }
    Ok(live)
}

/// Address of the API server in the team's kubeconfig.
fn server(tenant: &GpuTenant, cluster: &VirtualCluster) -> String {
    match &cluster.expose {
        Some(expose) if expose.port == 443 => format!("https://{}", expose.host),
        Some(expose) => format!("https://{}:{}", expose.host, expose.port),
        None => format!("https://{}.{}.svc", tenant.name_any(), objects::namespace_of(tenant)),
    }
}

/// The kubeconfig in its Secret, made again when it no longer serves.
async fn kubeconfig(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    host: &Host,
    memory: &mut Memory,
) -> Result<Present, String> {
    let name = tenant.name_any();
    let secrets = host.secrets();
    let read = async |secret: &str| {
        secrets.get_opt(secret).await.map_err(|error| format!("reading Secret {secret}: {error}"))
    };
    let admin_secret = names::admin_secret(&name);
    let admin = read(&admin_secret).await?.as_ref().and_then(Admin::of);
    let admin = admin.ok_or_else(|| format!("the syncer has not written its credentials into Secret {admin_secret} yet"))?;
    let client = match &memory.inside {
        Some((known, client)) if *known == admin => client.clone(),
        _ => {
            let service = format!("{name}.{}.svc", objects::namespace_of(tenant));
            let client = connect::client(&admin, &service).await?;
            memory.inside = Some((admin.clone(), client.clone()));
            client
        }
    };
    let account = account::ensure(&client, &cluster.kubeconfig.cluster_role).await?;
    let server = server(tenant, cluster);
    let made = Made { cluster: &name, server: &server, authority: &admin.authority, account: &account };
    let (now, ttl) = (Timestamp::now(), cluster.kubeconfig.ttl.get().unwrap_or(Duration::from_hours(24)));
    let life = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::from_hours(24));
    let present = read(names::KUBECONFIG_SECRET).await?.as_ref().and_then(Present::of);
    if let Some(present) = present.filter(|p| p.serves(&made, life, now)) {
        return Ok(present);
    }
    let token = account::token(&client, ttl).await?;
    let secret = secret(tenant, &made, &token, now);
    let params = PatchParams::apply(names::MANAGER).force();
    let applied = secrets.patch(names::KUBECONFIG_SECRET, &params, &Patch::Apply(&secret)).await;
    let applied = applied.map_err(|error| format!("writing Secret {}: {error}", names::KUBECONFIG_SECRET))?;
    Present::of(&applied).ok_or_else(|| format!("Secret {} was changed meanwhile", names::KUBECONFIG_SECRET))
}

fn secret(tenant: &GpuTenant, made: &Made<'_>, token: &account::Token, now: Timestamp) -> Secret {
    let labels = [
        (gputenancy_crds::names::MANAGED_BY_LABEL, names::MANAGED_BY.to_owned()),
        (gputenancy_crds::names::TENANT_LABEL, tenant.name_any()),
    ];
    let notes =
        [(names::MADE_FOR, made.mark()), (names::ISSUED, now.to_string()), (names::EXPIRES, token.expires.to_string())];
    let owned = |(key, value): (&str, String)| (key.to_owned(), value);
    Secret {
        metadata: ObjectMeta {
            name: Some(names::KUBECONFIG_SECRET.into()),
            labels: Some(labels.map(owned).into()),
            annotations: Some(notes.map(owned).into()),
            ..ObjectMeta::default()
        },
        data: Some([("config".to_owned(), ByteString(made.text(&token.token).into_bytes()))].into()),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// Applies `status.virtualCluster`, and no other field of the status; `None` removes it.
async fn apply_status(client: &Client, name: &str, status: Option<&VirtualClusterStatus>) -> kube::Result<()> {
    let status = status.map_or_else(|| json!({}), |s| json!({"virtualCluster": s}));
    let body = json!({"apiVersion": GpuTenant::api_version(&()), "kind": GpuTenant::kind(&()), "status": status});
    let params = PatchParams::apply(names::STATUS_MANAGER).force();
    Api::<GpuTenant>::all(client.clone()).patch_status(name, &params, &Patch::Apply(body)).await.map(drop)
}

/// Sets or removes this program's finalizer. The version keeps finalizers that others add at the same time.
async fn set_finalizer(client: &Client, tenant: &GpuTenant, wanted: bool) -> kube::Result<()> {
    let mut finalizers = tenant.finalizers().to_vec();
    finalizers.retain(|f| f != VIRTUAL_CLUSTER_FINALIZER);
    if wanted {
        finalizers.push(VIRTUAL_CLUSTER_FINALIZER.into());
    }
    let fields: Value =
        json!({"metadata": {"resourceVersion": tenant.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(names::MANAGER.into()), ..PatchParams::default() };
    match Api::<GpuTenant>::all(client.clone()).patch(&tenant.name_any(), &params, &Patch::Merge(fields)).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

