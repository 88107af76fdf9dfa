//! What people are told of a tenant: its status, and events.

use std::time::Duration;

use gputenancy_crds::{
    GpuTenant, GpuTenantStatus, condition,
    reasons::{self, Reason},
};
use gputenancy_service::events::{EventType, Notice};
use kube::{Resource as _, ResourceExt as _};

use super::{Context, TenantError, decide::Write, failed, observe::Observed, status};

/// What passes within this time is not told: a tenant that is being set up would be written at every step.
const PASSING: Duration = Duration::from_secs(1);

/// Writes the status if it differs, and tells of a changed `Ready` reason. A transient state is written only when it has
/// lasted; returns after which time that is.
pub(super) async fn report(
    seen: &Observed,
    context: &Context,
    error: Option<&TenantError>,
) -> Result<Option<Duration>, TenantError> {
    let status = status::status(seen, error.map(ToString::to_string).as_deref());
    let (name, passes) = (seen.name(), error.is_none() && status::passes(&status));
    if seen.tenant.status.as_ref() == Some(&status) {
        context.has_passed(&name);
        return Ok(None);
    }
    if passes {
        if let Some(rest) = PASSING.checked_sub(context.passes_for(&name)).filter(|rest| !rest.is_zero()) {
            return Ok(Some(rest));
        }
    } else {
        context.has_passed(&name);
    }
    context.writer.apply_status::<GpuTenant>(&name, &status).await.map_err(failed("writing the status"))?;
    let ready = |s: &GpuTenantStatus| {
        s.conditions
            .iter()
            .find(|c| c.type_ == "Ready")
            .and_then(|c| Some((Reason::listed(&c.reason)?, c.message.clone(), c.status == "True")))
    };
    let suspended = |s: &GpuTenantStatus| condition::is_true(&s.conditions, status::SUSPENDED);
    match (seen.tenant.status.as_ref().is_some_and(suspended), suspended(&status)) {
        (false, true) => {
            let note = "nothing new is admitted in the tenant's namespaces; what runs goes on".to_owned();
            tell(seen, context, EventType::Normal, reasons::SUSPENDED, note).await;
        }
        (true, false) => {
            let note = "the tenant's namespaces admit new work within its budget again".to_owned();
            tell(seen, context, EventType::Normal, reasons::RESUMED, note).await;
        }
        _ => {}
    }
    let before = seen.tenant.status.as_ref().and_then(ready).map(|(reason, ..)| reason);
    if let Some((reason, note, is_ready)) = ready(&status).filter(|(reason, ..)| Some(reason) != before.as_ref()) {
        let stalled = condition::is_true(&status.conditions, condition::STALLED);
        if is_ready || stalled {
            tell(seen, context, if is_ready { EventType::Normal } else { EventType::Warning }, reason, note).await;
        }
    }
    Ok(None)
}

/// What is told of a write that has been carried out: a reason and a sentence. Most are nobody's business.
pub(super) fn news(write: &Write) -> Option<(Reason, String)> {
    match write {
        Write::Label { namespace, retained: true } => {
            let name = namespace.name_any();
            let note = format!(
                "namespace {name} is no longer listed: it keeps its data and gets no GPUs; delete it when nothing in it is needed"
            );
            Some((reasons::NAMESPACE_RETAINED, note))
        }
        Write::Adopt(namespace) => {
            let name = namespace.name_any();
            let note = format!(
                "namespace {name} existed and was adopted, as spec.namespaces says; when the tenant goes it is let go, not deleted"
            );
            Some((reasons::NAMESPACE_ADOPTED, note))
        }
        Write::Release { namespace, made: _ } => {
            let note = format!(
                "namespace {namespace} is let go: it stays with all that runs there and with role bindings that owners made, and the tenant's limits, grant, bindings and network policy are gone from it"
            );
            Some((reasons::NAMESPACE_RELEASED, note))
        }
        _ => None,
    }
}

/// Tells of it in an event about the tenant.
pub(super) async fn tell(seen: &Observed, context: &Context, event_type: EventType, reason: Reason, note: String) {
    let regarding = seen.tenant.object_ref(&());
    context.publisher.publish(Notice { regarding, event_type, reason, action: "Reconcile".into(), note }).await;
}
