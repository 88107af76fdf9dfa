//! Executes the writes of a step, and says what they have led to.

use std::collections::BTreeMap;

use gputenancy_cluster::{error::sentence, events::EventType};
use gputenancy_crds::{GpuTenant, VirtualCluster, reasons};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{
    observe::Inside,
    step::{InsideOrder, Step, UpgradeOrder},
};
use crate::{
    access::{self, Access},
    context::Context,
    decide::{Key, Write, conditions::InsideOutcome},
    host::{Host, HostError, Live},
    inside::{
        catalog::{self, CatalogError, Classes},
        connect::{CallError, timed},
        nodes,
        orphans::Orphan,
        pending, refusals,
        refused::refused,
    },
    memory::Memory,
    tenant::apply_status,
};

/// Why `PriorityClasses` inside do nothing.
const NO_EFFECT: &str = "PriorityClasses inside have no effect: the API server inside does not serve MutatingAdmissionPolicy v1. \
     Raise Kubernetes inside to 1.36 or later";

/// What the writes to this cluster have led to.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Generations of the objects that were applied.
    pub generations: BTreeMap<Key, i64>,
    /// Something was written, whose result is awaited.
    pub any: bool,
    /// The objects could not be written.
    pub objects: Option<HostError>,
    /// Pods could not be deleted.
    pub pods: Option<HostError>,
}

/// The writes to this cluster. A failure among the objects leaves the rest of them out; pods are deleted all the same.
pub(super) async fn host(
    tenant: &GpuTenant,
    context: &Context,
    host: &Host,
    (step, live): (&Step, &[Live]),
    memory: &mut Memory,
) -> Written {
    let mut written = Written::default();
    let recorded = match &step.upgrade {
        Some(order) => record_upgrade(tenant, context, order, memory).await,
        None => Ok(()),
    };
    written.objects = match recorded {
        Ok(()) => objects(tenant, context, host, (step, live), (memory, &mut written)).await.err(),
        Err(error) => Some(error),
    };
    if let Some(note) = step.suspicious.clone() {
        context.publish(tenant, EventType::Warning, reasons::SUSPICIOUS_POD, note).await;
    }
    written.any |= !step.pods.is_empty();
    match (host.delete_pods(&step.pods).await, &step.restarts_for) {
        (Err(error), _) => written.pods = Some(host.refused(error)),
        (Ok(()), Some(secret)) => {
            let note =
                format!("restarted the control plane: Secret {secret} is missing, which it writes when it starts");
            context.publish(tenant, EventType::Warning, reasons::VIRTUAL_CLUSTER_REPAIRED, note).await;
        }
        (Ok(()), None) => {}
    }
    delete_orphans(tenant, context, host, &step.orphans).await;
    written
}

/// Writes the state of the upgrade into the status.
async fn record_upgrade(
    tenant: &GpuTenant,
    context: &Context,
    order: &UpgradeOrder,
    memory: &mut Memory,
) -> Result<(), HostError> {
    let UpgradeOrder { status, upgrade, advice } = order;
    let applied = apply_status(&context.client, &tenant.name_any(), Some(status)).await;
    applied.map_err(|error| HostError::Upgrade(Box::new(error)))?;
    memory.upgrade.clone_from(upgrade);
    if let Some(advice) = advice.clone() {
        context.publish(tenant, EventType::Normal, reasons::UPGRADE_STARTED, advice).await;
    }
    Ok(())
}

/// Makes the objects in the namespace as rendered.
async fn objects(
    tenant: &GpuTenant,
    context: &Context,
    host: &Host,
    (step, live): (&Step, &[Live]),
    (memory, written): (&mut Memory, &mut Written),
) -> Result<(), HostError> {
    let mut repaired = Vec::new();
    // until the last write: after a failure some objects are of this rendering, and others of the one before
    if !step.writes.is_empty() && step.completes != memory.complete {
        memory.complete = None;
    }
    for write in &step.writes {
        written.any = true;
        match write {
            Write::Apply { object, repairs } => {
                let applied = host.apply(object).await.map_err(|error| host.refused(error))?;
                let key = (object.kind, object.name.clone());
                let old = live.iter().find(|l| l.kind == object.kind && l.name == object.name);
                let changed = old.and_then(|o| o.version.clone()) != applied.resource_version;
                if let Some(version) = applied.resource_version {
                    memory.settled.insert(key.clone(), version);
                }
                if let Some(generation) = applied.generation {
                    written.generations.insert(key, generation);
                }
                if *repairs && changed {
                    context.metrics.repaired(object.kind.kind);
                    repaired.push(format!("{} {}", object.kind.kind, object.name));
                }
            }
            Write::Delete((kind, name)) => host.delete(*kind, name).await.map_err(|error| host.refused(error))?,
            Write::Stop((kind, name)) => host.stop(*kind, name).await.map_err(|error| host.refused(error))?,
        }
    }
    if let Some(key) = &step.completes {
        memory.complete = Some(key.clone());
    }
    if !repaired.is_empty() {
        let note = format!(
            "restored {}, which had been changed or deleted; change spec.virtualCluster instead",
            repaired.join(", ")
        );
        context.publish(tenant, EventType::Warning, reasons::VIRTUAL_CLUSTER_REPAIRED, note).await;
    }
    Ok(())
}

/// Deletes pods of the namespace whose pod inside was deleted with force, or is gone.
async fn delete_orphans(tenant: &GpuTenant, context: &Context, host: &Host, orphans: &[Orphan]) {
    let mut deleted = Vec::new();
    for orphan in orphans {
        match host.delete_orphan(orphan).await {
            Ok(true) => deleted.push(orphan.name.as_str()),
            Ok(false) => {}
            Err(error) => {
                let (tenant, pod, error) = (tenant.name_any(), &orphan.name, sentence(&error));
                tracing::warn!(tenant, pod, error, "host pod without a pod inside not deleted");
            }
        }
    }
    let Some(first) = deleted.first() else { return };
    let more = match deleted.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let note = format!(
        "deleted host pod {first}{more}: inside it was deleted with force, or is gone; it gets its own grace period to end"
    );
    context.publish(tenant, EventType::Normal, reasons::ORPHANED_POD_DELETED, note).await;
}

/// The writes inside, with what was read there before. Without a kubeconfig nothing else is written.
pub(super) async fn inside(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    (context, host): (&Context, &Host),
    (inside, order, synced): (Inside, &InsideOrder, &[Pod]),
    (memory, now): (&mut Memory, Timestamp),
) -> InsideOutcome {
    let Inside { client, admin, account, nodes, refusals, pods, priorities, .. } = inside;
    let access = Access { tenant, cluster, authority: &admin.authority, account: &account };
    let kubeconfig = timed(access::execute(&access, &order.kubeconfig, (host, &client), now)).await;
    let kubeconfig = match kubeconfig {
        Ok(issued) => Ok(issued),
        Err(error) => return InsideOutcome::unreachable(error),
    };
    let capacity = async {
        let nodes = nodes?;
        match &order.requests {
            Some(requests) => timed(nodes::show(&client, &nodes, &order.budget, requests)).await,
            None => Ok(nodes.count()),
        }
    };
    let unserved = &mut memory.unserved;
    let catalog = timed(async {
        let priority = priorities?;
        let classes = Classes { runtime: &context.standard.runtime_classes.0, priority: &priority };
        catalog::show(&client, &order.catalog, classes, order.conflict, unserved).await?;
        Ok::<_, CatalogError>(unserved.as_ref().filter(|_| !priority.is_empty()).map(|_| NO_EFFECT))
    });
    let explained = timed(async {
        let refused = refusals::explain(&client, &order.refusals).await;
        pending::explain(&client, order.waiting.clone(), &mut memory.waiting).await.and(refused)
    });
    // at the same time, so that a slow server takes no longer
    let (capacity, catalog, explained): (_, _, Result<(), CallError>) = tokio::join!(capacity, catalog, explained);
    let tenant_name = tenant.name_any();
    if let Err(error) = explained {
        // they are tried again, and the syncer's own events are there
        tracing::debug!(tenant = tenant_name, %error, "no events about refused or waiting pods");
    }
    memory.connection = Some((admin, client));
    let refused = match (refusals, pods) {
        (Ok(refusals), Some(Ok(pods))) => Some(refused(&tenant_name, &refusals.all, synced, &pods)),
        (Ok(_), None) => Some(Vec::new()),
        (Err(error), _) => {
            tracing::debug!(tenant = tenant_name, %error, "pods that the quota refuses not read");
            None
        }
        // the syncer deletes pods, and the quota counts those that it cannot
        (_, Some(Err(error))) => {
            tracing::debug!(tenant = tenant_name, %error, "host pods not compared with those inside");
            None
        }
    };
    InsideOutcome { kubeconfig, capacity: Some(capacity), catalog: Some(catalog), refused }
}
