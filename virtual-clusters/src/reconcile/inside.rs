//! What passes do inside a virtual cluster, and on the host because of it.

use std::time::Instant;

use gputenancy_cluster::{error::sentence, events::EventType};
use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend, reasons};
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Client, ResourceExt as _};

use crate::{
    access,
    args::Standard,
    cluster::Priorities,
    context::{Context, Memory},
    decide::{
        self,
        conditions::{CatalogState, Progress},
    },
    host::Host,
    inside::{
        catalog::{self, Classes},
        connect::{Admin, timed},
        nodes::{self, Amounts, Requests},
        objects::Conflict,
        orphans::{self, PodInside},
        pending,
        priorities::{self, Unserved},
        refusals::{self, Refusal},
        refused::refused,
    },
    names,
    render::objects,
};

/// Time that a ready control plane has for the Secret of its administrator, which it writes within seconds.
const SECRET_PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// What a complete pass does inside.
pub(super) async fn complete(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    (host, memory, progress): (&Host, &mut Memory, &mut Progress),
    (control_plane, synced): (&[Pod], &[Pod]),
) {
    let kubeconfig = timed(access::kubeconfig(tenant, cluster, host, memory)).await;
    if kubeconfig.is_err() && cluster.backend != VirtualClusterBackend::External {
        restart_without_secret(tenant, context, host, control_plane).await;
    }
    if let (Ok(_), Some((_, client))) = (&kubeconfig, memory.inside.clone()) {
        // at the same time, so that a slow server takes no longer
        let pods = async { if synced.is_empty() { None } else { Some(timed(orphans::pods(&client)).await) } };
        let (shown, pods) = tokio::join!(Box::pin(show(tenant, &client, context, memory, true)), pods);
        (progress.capacity, progress.catalog) = (Some(shown.capacity), shown.catalog);
        let waiting = pending::waiting(tenant, synced, Timestamp::now());
        if let Err(error) = timed(pending::explain(&client, waiting, &mut memory.waiting)).await {
            // they are tried again
            tracing::debug!(tenant = tenant.name_any(), error, "no events about waiting pods");
        }
        let any = shown.refusals.as_ref().is_some_and(|refusals| !refusals.is_empty());
        let pods = match pods {
            None if any => Some(timed(orphans::pods(&client)).await),
            pods => pods,
        };
        match pods {
            Some(Ok(pods)) => {
                delete_orphans(tenant, context, (host, memory), (synced, &pods)).await;
                let name = tenant.name_any();
                progress.refused = shown.refusals.map(|refusals| refused(&name, &refusals, synced, &pods));
            }
            // the syncer deletes pods, and the quota counts those that it cannot
            Some(Err(error)) => {
                tracing::debug!(tenant = tenant.name_any(), error, "host pods not compared with those inside");
            }
            None => progress.refused = shown.refusals.map(|_| Vec::new()),
        }
    }
    progress.kubeconfig = Some(kubeconfig);
}

/// Deletes host pods whose pod inside was deleted with force, or is gone.
async fn delete_orphans(
    tenant: &GpuTenant,
    context: &Context,
    (host, memory): (&Host, &mut Memory),
    (synced, inside): (&[Pod], &[PodInside]),
) {
    let name = tenant.name_any();
    let (found, seen) = orphans::decide(&name, synced, inside, &memory.orphans, Instant::now());
    memory.orphans = seen;
    let mut deleted = Vec::new();
    for orphan in found {
        match host.delete_orphan(&orphan).await {
            Ok(true) => deleted.push(orphan.name),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(tenant = name, pod = orphan.name, %error, "host pod without a pod inside not deleted");
            }
        }
    }
    if let Some(first) = deleted.first() {
        let more = match deleted.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let note = format!(
            "deleted host pod {first}{more}: inside it was deleted with force, or is gone; it gets its own grace period to end"
        );
        context.publish(tenant, EventType::Normal, reasons::ORPHANED_POD_DELETED, note).await;
    }
}

/// Why `PriorityClasses` inside do nothing.
const NO_EFFECT: &str = "PriorityClasses inside have no effect: the API server inside does not serve MutatingAdmissionPolicy v1. \
     Raise Kubernetes inside to 1.36 or later";

/// What [`show`] has come to.
pub(super) struct Shown {
    /// Number of nodes that show the budget.
    pub capacity: Result<usize, String>,
    /// The catalog; `None`: not compared.
    pub catalog: Option<CatalogState>,
    /// Pods that the quota refuses; `None`: not read.
    pub refusals: Option<Vec<Refusal>>,
}

/// Shows the budget inside; and the catalog, which is compared in complete passes and written when it has changed, as are events about pods
/// that the quota refuses.
pub(super) async fn show(
    tenant: &GpuTenant,
    client: &Client,
    context: &Context,
    memory: &mut Memory,
    complete: bool,
) -> Shown {
    let (budget, catalog) = (nodes::budget(tenant), catalog::text(tenant));
    let capacity = timed(show_budget(tenant, client, context, &budget, &mut memory.requests));
    if !complete && memory.catalog.as_ref() == Some(&catalog) {
        return Shown { capacity: capacity.await, catalog: None, refusals: None };
    }
    let cluster = tenant.spec.virtual_cluster.as_ref();
    let adopted = cluster.is_some_and(|c| c.backend == VirtualClusterBackend::External);
    let conflict = if adopted { Conflict::Keep } else { Conflict::Replace };
    let written = timed(show_catalog(tenant, client, context, (&catalog, conflict), &mut memory.unserved));
    let mut refusals = None;
    let explained = timed(async {
        let found = refusals.insert(refusals::find(client, tenant).await?);
        refusals::explain(client, found).await
    });
    // at the same time, so that a slow server takes no longer
    let (capacity, written, explained) = tokio::join!(capacity, written, explained);
    if let Err(error) = explained {
        // the syncer's own events are there
        tracing::debug!(tenant = tenant.name_any(), error, "no events about refused pods");
    }
    memory.catalog = written.is_ok().then_some(catalog);
    Shown { capacity, catalog: Some(written), refusals }
}

/// Shows the budget inside. The pods of this cluster are listed again when one may have been bound since.
async fn show_budget(
    tenant: &GpuTenant,
    client: &Client,
    context: &Context,
    budget: &Amounts,
    requests: &mut Requests,
) -> Result<usize, String> {
    let (nodes, used) = (nodes::list(client).await?, nodes::used(tenant));
    if requests.outdated(&used, &nodes) {
        let name = tenant.name_any();
        match Host::new(context.client.clone(), &objects::namespace_of(tenant), &name).synced_pods().await {
            Ok(synced) => *requests = Requests::of(&synced, used),
            // the next complete pass reports it
            Err(error) => tracing::debug!(tenant = name, error = sentence(&error), "requests of pods not read again"),
        }
    }
    nodes::show(client, &nodes, budget, requests).await
}

/// The catalog, and the classes that the tenant's pods may name.
async fn show_catalog(
    tenant: &GpuTenant,
    client: &Client,
    context: &Context,
    (text, conflict): (&str, Conflict),
    unserved: &mut Option<Unserved>,
) -> CatalogState {
    let Standard { runtime_classes, priority_classes, .. } = &context.standard;
    let names = || priority_classes.0.iter().chain(tenant.spec.priority_classes.iter().flatten());
    let priority = if names().next().is_none() {
        Priorities::new()
    } else {
        let host = context.cluster.priorities().await;
        let host =
            host.map_err(|error| format!("listing the PriorityClasses of this cluster: {}", sentence(&error)))?;
        priorities::granted(names(), &host)
    };
    let classes = Classes { runtime: &runtime_classes.0, priority: &priority };
    catalog::show(client, text, classes, conflict, unserved).await?;
    Ok(unserved.as_ref().filter(|_| !priority.is_empty()).map(|_| NO_EFFECT))
}

/// The control plane writes its administrator's Secret when it starts. Without the Secret, as after a deletion of the Service that owns it, it
/// is started again.
async fn restart_without_secret(tenant: &GpuTenant, context: &Context, host: &Host, pods: &[Pod]) {
    let (name, now) = (tenant.name_any(), Timestamp::now());
    if pods.is_empty() || !pods.iter().all(|pod| decide::ready_for(pod, now).is_some_and(|time| time > SECRET_PATIENCE))
    {
        return;
    }
    let secret = names::admin_secret(&name);
    let absent = host.secrets().get_opt(&secret).await.is_ok_and(|found| found.as_ref().and_then(Admin::of).is_none());
    if absent && host.delete_pods(pods).await.is_ok() {
        let note = format!("restarted the control plane: Secret {secret} is missing, which it writes when it starts");
        context.publish(tenant, EventType::Warning, reasons::VIRTUAL_CLUSTER_REPAIRED, note).await;
    }
}
