//! Reports about a tenant: its status, and events.

use std::time::Duration;

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{
    GpuTenant, GpuTenantStatus, condition,
    reasons::{self, Reason},
};
use kube::{Resource as _, ResourceExt as _};

use super::{
    Context, TenantError,
    decide::{Decided, write::Write},
    failed,
    memory::TenantMemory,
    observe::Observed,
    status::{self, earlier_access::EARLIER_ACCESS},
};

/// A transient state is written once it has lasted for this time: a new tenant would be written at every step.
const MIN_TRANSIENT: Duration = Duration::from_secs(1);

/// Writes the status if it differs, and publishes events for a changed `Ready` reason. A transient state is written once it has lasted for
/// [`MIN_TRANSIENT`]; returns the time until then.
pub(super) async fn report(
    (seen, decided): (&Observed, &Decided),
    context: &Context,
    error: Option<&TenantError>,
) -> Result<Option<Duration>, TenantError> {
    let status = status::status(seen, decided, error.map(ToString::to_string).as_deref());
    let (name, transient) = (seen.name(), error.is_none() && status::is_transient(&status));
    if seen.tenant.status.as_ref() == Some(&status) {
        context.remember(&name, |memory| memory.transient_since = None);
        return Ok(None);
    }
    if transient {
        let lasted = context.remember(&name, TenantMemory::transient_for);
        if let Some(rest) = MIN_TRANSIENT.checked_sub(lasted).filter(|rest| !rest.is_zero()) {
            return Ok(Some(rest));
        }
    } else {
        context.remember(&name, |memory| memory.transient_since = None);
    }
    // that part has another writer
    let own = GpuTenantStatus { virtual_cluster: None, ..status.clone() };
    context.writer.apply_status::<GpuTenant>(&name, &own).await.map_err(failed("writing the status"))?;
    let ready = |s: &GpuTenantStatus| {
        s.conditions
            .iter()
            .find(|c| c.type_ == "Ready")
            .and_then(|c| Some((Reason::listed(&c.reason)?, c.message.clone(), c.status == "True")))
    };
    let suspended = |s: &GpuTenantStatus| condition::is_true(&s.conditions, status::SUSPENDED);
    match (seen.tenant.status.as_ref().is_some_and(suspended), suspended(&status)) {
        (false, true) => {
            let note = "the tenant's namespaces admit no new pods; running pods are not affected".to_owned();
            publish(seen, context, EventType::Normal, reasons::SUSPENDED, note).await;
        }
        (true, false) => {
            let note = "the tenant's namespaces admit new pods within its budget again".to_owned();
            publish(seen, context, EventType::Normal, reasons::RESUMED, note).await;
        }
        _ => {}
    }
    let message =
        |s: &GpuTenantStatus| s.conditions.iter().find(|c| c.type_ == EARLIER_ACCESS).map(|c| c.message.clone());
    if let (None, Some(note)) = (seen.tenant.status.as_ref().and_then(message), message(&status)) {
        publish(seen, context, EventType::Warning, reasons::EARLIER_ACCESS, note).await;
    }
    let before = seen.tenant.status.as_ref().and_then(ready).map(|(reason, ..)| reason);
    if let Some((reason, note, is_ready)) = ready(&status).filter(|(reason, ..)| Some(reason) != before.as_ref()) {
        let stalled = condition::is_true(&status.conditions, condition::STALLED);
        if is_ready || stalled {
            publish(seen, context, if is_ready { EventType::Normal } else { EventType::Warning }, reason, note).await;
        }
    }
    Ok(None)
}

/// The event that reports an executed write: reason and note. Most have none.
pub(super) fn event_of(write: &Write) -> Option<(Reason, String)> {
    match write {
        Write::LabelNamespace { namespace, retained: true } => {
            let name = namespace.name_any();
            let note = format!(
                "namespace {name} is no longer in spec.namespaces: it keeps its data and has a GPU budget of zero; delete it when it is not needed"
            );
            Some((reasons::NAMESPACE_RETAINED, note))
        }
        Write::AdoptNamespace(namespace) => {
            let name = namespace.name_any();
            let note = format!(
                "namespace {name} existed and was adopted, as spec.namespaces says; it is released, not deleted, with the tenant"
            );
            Some((reasons::NAMESPACE_ADOPTED, note))
        }
        Write::ReleaseNamespace { namespace, created: _ } => {
            let note = format!(
                "namespace {namespace} is released: its pods and the owners' own role bindings stay; the tenant's quotas, limit range, grant, role bindings and network policy are deleted"
            );
            Some((reasons::NAMESPACE_RELEASED, note))
        }
        _ => None,
    }
}

/// Publishes an event about the tenant.
pub(super) async fn publish(seen: &Observed, context: &Context, event_type: EventType, reason: Reason, note: String) {
    let regarding = seen.tenant.object_ref(&());
    context.publisher.publish(Notice { regarding, event_type, reason, action: "Reconcile".into(), note }).await;
}
