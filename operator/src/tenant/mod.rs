//! The controller of tenants: observe from the caches, decide, write, report.

pub mod amount;
mod budget;
mod claims;
mod context;
mod decide;
mod fence;
mod network;
mod observe;
mod render;
mod split;
mod standard;
mod status;
#[cfg(test)]
mod tests;

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, future};
use gputenancy_crds::{GpuGrant, GpuTenant, names};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{LimitRange, Namespace, ResourceQuota},
        networking::v1::NetworkPolicy,
        rbac::v1::RoleBinding,
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    core::error_boundary::InvalidObject,
    runtime::controller::{self, Action, applier},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    apply::{Part, Writer, has_finalizer},
    cache::Guarded,
    events::{News, Tone},
};
pub(crate) use amount::Amount;
pub use context::Context;
use context::{Kept, STEADY, version};
use decide::{Optional, Write};
use observe::Observed;
pub use standard::{Standard, StandardError};

/// What passes within this time is not told: a tenant that is being set up would be written at every step.
const PASSING: Duration = Duration::from_secs(1);
/// Why a tenant could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The object does not match the schema; only an edit can help.
    #[error("the tenant does not match its schema: {0}")]
    Invalid(Box<InvalidObject>),
    /// The API server refused a write.
    #[error("{doing}: {source}")]
    Write {
        /// What was being done.
        doing: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The caches lag behind what is written; says where.
    #[error("{0}: the cache lags behind the API server")]
    Lagging(String),
    /// Another operator leads by now and has written a quota; says of which namespace.
    #[error(
        "the quota of namespace {0} was written by a later leader: this operator writes nothing for the tenant and is about to lose its Lease; if it does not, restart it"
    )]
    Outranked(String),
}

/// Reconciles tenants by name until `names` ends.
pub async fn run(context: Context, names: impl Stream<Item = String> + Send, concurrency: u16) {
    let context = Arc::new(context);
    let store = context.caches.tenants.clone();
    let lister = context.clone();
    let queue = names
        .flat_map(move |name| futures::stream::iter(lister.meant_by(&name)).map(Ok::<_, std::convert::Infallible>));
    let config = controller::Config::default().concurrency(concurrency).debounce(Duration::from_millis(50));
    let reconcile = |tenant, context| Box::pin(reconcile(tenant, context));
    applier(reconcile, error_policy, context, store, queue, config)
        .for_each(|outcome| {
            match outcome {
                Err(controller::Error::ObjectNotFound(tenant)) => tracing::debug!(%tenant, "the tenant has gone"),
                Err(error @ controller::Error::ReconcilerFailed(TenantError::Lagging(_), _)) => {
                    tracing::debug!(%error, "looked at again in a moment");
                }
                Err(error) => tracing::warn!(%error, "a tenant was not reconciled"),
                Ok(_) => {}
            }
            future::ready(())
        })
        .await;
}

async fn reconcile(guarded: Arc<Guarded<GpuTenant>>, context: Arc<Context>) -> Result<Action, TenantError> {
    let begun = Instant::now();
    let outcome = one(&guarded, &context).await;
    let failed =
        matches!(outcome, Err(TenantError::Invalid(_) | TenantError::Write { .. } | TenantError::Outranked(_)));
    context.metrics.reconciled("tenant", begun.elapsed().as_secs_f64(), failed);
    outcome
}

async fn one(guarded: &Guarded<GpuTenant>, context: &Context) -> Result<Action, TenantError> {
    let tenant = guarded.0.as_ref().map_err(|e| TenantError::Invalid(Box::new(e.clone())))?;
    let seen = context.observe(tenant);
    context.caught_up(&seen)?;
    if let Some(namespace) = context.outranked_in(&seen) {
        return Err(TenantError::Outranked(namespace));
    }
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let writes = if deleted {
        if !has_finalizer(tenant) {
            return Ok(Action::await_change());
        }
        decide::teardown(&seen)
    } else {
        context.writer.set_finalizer(tenant, true).await.map_err(failed("adding the finalizer"))?;
        decide::writes(&seen)
    };
    let finishes = writes.iter().any(|w| matches!(w, Write::Finish(_)));
    let mut outcome = Ok(());
    for write in writes {
        outcome = carry_out(&seen, context, write).await;
        if outcome.is_err() {
            break;
        }
    }
    let mut look_again = None;
    if finishes {
        context.forget(&seen);
    } else {
        let told = outcome.as_ref().err().filter(|e| !matches!(e, TenantError::Lagging(_)));
        look_again = report(&seen, context, told).await?;
    }
    let ends = seen.claims.wake(seen.now, status::SHOWN_AFTER);
    let ends = ends.and_then(|then| Duration::try_from(then.duration_since(seen.now)).ok());
    let steady = seen.step().1.waits.then_some(STEADY);
    let later = [look_again, ends, steady, deleted.then_some(Duration::from_secs(30))].into_iter().flatten().min();
    outcome.map(|()| later.map_or_else(Action::await_change, Action::requeue))
}

/// Writes the status if it differs, and tells of a changed `Ready` reason. What passes by itself is written only when it has
/// lasted; the answer is when to look again.
async fn report(
    seen: &Observed,
    context: &Context,
    error: Option<&TenantError>,
) -> Result<Option<Duration>, TenantError> {
    let status = status::status(seen, error.map(ToString::to_string).as_deref());
    let name = seen.name();
    if seen.tenant.status.as_ref() == Some(&status) {
        context.passing().remove(&name);
        return Ok(None);
    }
    if error.is_none() && status::passes(&status) {
        let lasts = context.passing().entry(name.clone()).or_insert_with(Instant::now).elapsed();
        if let Some(rest) = PASSING.checked_sub(lasts).filter(|rest| !rest.is_zero()) {
            return Ok(Some(rest));
        }
    } else {
        context.passing().remove(&name);
    }
    context.writer.apply_status::<GpuTenant>(&name, &status).await.map_err(failed("writing the status"))?;
    let ready = |s: &gputenancy_crds::GpuTenantStatus| {
        s.conditions
            .iter()
            .find(|c| c.type_ == "Ready")
            .map(|c| (c.reason.clone(), c.message.clone(), c.status == "True"))
    };
    let suspended =
        |s: &gputenancy_crds::GpuTenantStatus| gputenancy_crds::condition::is_true(&s.conditions, status::SUSPENDED);
    match (seen.tenant.status.as_ref().is_some_and(suspended), suspended(&status)) {
        (false, true) => {
            let note = "nothing new is admitted in the tenant's namespaces; what runs goes on".to_owned();
            tell(seen, context, Tone::Normal, "Suspended", note).await;
        }
        (true, false) => {
            let note = "the tenant's namespaces admit new work within its budget again".to_owned();
            tell(seen, context, Tone::Normal, "Resumed", note).await;
        }
        _ => {}
    }
    let before = seen.tenant.status.as_ref().and_then(ready).map(|(reason, ..)| reason);
    if let Some((reason, note, is_ready)) = ready(&status).filter(|(reason, ..)| Some(reason) != before.as_ref()) {
        let stalled = gputenancy_crds::condition::is_true(&status.conditions, gputenancy_crds::condition::STALLED);
        if is_ready || stalled {
            tell(seen, context, if is_ready { Tone::Normal } else { Tone::Warning }, &reason, note).await;
        }
    }
    Ok(None)
}

async fn tell(seen: &Observed, context: &Context, tone: Tone, reason: &str, note: String) {
    let about = seen.tenant.object_ref(&());
    context.publisher.publish(News { about, tone, reason: reason.into(), action: "Reconcile".into(), note }).await;
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> TenantError {
    let doing = doing.into();
    move |source| match &source {
        // decided on an old version, or on a namespace's absence that is over
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => TenantError::Lagging(doing),
        _ => TenantError::Write { doing, source: Box::new(source) },
    }
}

async fn carry_out(seen: &Observed, context: &Context, write: Write) -> Result<(), TenantError> {
    let writer = &context.writer;
    match write {
        Write::Create(namespace) => {
            let doing = format!("creating namespace {}", namespace.name_any());
            writer.create(Part::Tenant, &*namespace).await.map(drop).map_err(failed(doing))
        }
        Write::Label { namespace, retained } => {
            let name = namespace.name_any();
            let fields = json!({"metadata": {"labels": namespace.metadata.labels, "annotations": namespace.metadata.annotations.clone().unwrap_or_default()}});
            let doing = format!("labelling namespace {name}");
            writer.apply_fields::<Namespace>(Part::Tenant, &name, fields).await.map_err(failed(doing))?;
            if retained {
                let note = format!(
                    "namespace {name} is no longer listed: it keeps its data and gets no GPUs; delete it when nothing in it is needed"
                );
                tell(seen, context, Tone::Normal, "NamespaceRetained", note).await;
            }
            Ok(())
        }
        Write::Adopt(namespace) => {
            let name = namespace.name_any();
            let meta = &namespace.metadata;
            let fields = json!({"metadata": {"labels": meta.labels, "resourceVersion": meta.resource_version}});
            let doing = format!("adopting namespace {name}");
            writer.apply_fields::<Namespace>(Part::Tenant, &name, fields).await.map_err(failed(doing))?;
            let note = format!(
                "namespace {name} existed and was adopted, as spec.namespaces says; when the tenant goes it is let go, not deleted"
            );
            tell(seen, context, Tone::Normal, "NamespaceAdopted", note).await;
            Ok(())
        }
        Write::Network(policy) => put(context, Kept::Network, &*policy).await,
        Write::Limits(limits) => put(context, Kept::Limits, &*limits).await,
        Write::Remove { what, namespace } => match what {
            Optional::Network => take::<NetworkPolicy>(writer, &namespace, render::NETWORK).await,
            Optional::Limits => take::<LimitRange>(writer, &namespace, render::LIMITS).await,
            Optional::Viewers => take::<RoleBinding>(writer, &namespace, render::VIEWERS).await,
        },
        Write::Grant(grant) => put(context, Kept::Grant, &*grant).await,
        Write::Quota(mut quota) => {
            let namespace = quota.namespace().unwrap_or_default();
            let doing = format!("applying the quota of namespace {namespace}");
            let decided_on = if quota.metadata.uid.is_some() { version(&*quota) } else { 0 };
            let stamp = context.fence().begin(&seen.name(), &namespace, decided_on);
            quota.metadata.annotations = Some([(render::STAMP.to_owned(), stamp.to_string())].into());
            let applied = writer.apply(Part::Tenant, &*quota).await.map_err(failed(doing))?;
            context.fence().done(&seen.name(), &namespace, version(&applied));
            context.note(Kept::Quota, namespace, &applied);
            Ok(())
        }
        Write::Binding { binding, anew } => {
            let (namespace, name) = (binding.namespace().unwrap_or_default(), binding.name_any());
            if anew {
                take::<RoleBinding>(writer, &namespace, &name).await?;
            }
            put(context, if name == render::VIEWERS { Kept::Viewers } else { Kept::Binding }, &*binding).await
        }
        Write::Revoke(namespace) => take::<GpuGrant>(writer, &namespace, names::GRANT).await,
        Write::Delete { namespace, uid } => {
            let doing = format!("deleting namespace {namespace}");
            writer.delete(&Api::<Namespace>::all(writer.client()), &namespace, uid).await.map_err(failed(doing))
        }
        Write::Release { namespace, made } => release(writer, &namespace, made).await,
        Write::Finish(farewell) => {
            if let Some(note) = farewell {
                tell(seen, context, Tone::Warning, "DeletionBlocked", note).await;
            }
            writer.set_finalizer(&seen.tenant, false).await.map_err(failed("removing the finalizer"))
        }
    }
}

/// Applies an object and remembers which version has to be seen.
async fn put<K>(context: &Context, kept: Kept, object: &K) -> Result<(), TenantError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let namespace = object.namespace().unwrap_or_default();
    let doing = format!("applying the {} of namespace {namespace}", kept.words());
    let applied = context.writer.apply(Part::Tenant, object).await.map_err(failed(doing))?;
    context.note(kept, namespace, &applied);
    Ok(())
}

/// Deletes an object of ours.
async fn take<K>(writer: &Writer, namespace: &str, name: &str) -> Result<(), TenantError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let doing = format!("deleting {} {name} of namespace {namespace}", K::kind(&()));
    writer.delete(&Api::<K>::namespaced(writer.client(), namespace), name, None).await.map_err(failed(doing))
}

/// Takes what is ours off a namespace that stays: access first, and the labels by which it is found last.
async fn release(writer: &Writer, namespace: &str, made: bool) -> Result<(), TenantError> {
    take::<RoleBinding>(writer, namespace, render::OWNERS).await?;
    take::<RoleBinding>(writer, namespace, render::VIEWERS).await?;
    take::<ResourceQuota>(writer, namespace, render::QUOTA).await?;
    take::<LimitRange>(writer, namespace, render::LIMITS).await?;
    take::<NetworkPolicy>(writer, namespace, render::NETWORK).await?;
    take::<GpuGrant>(writer, namespace, names::GRANT).await?;
    let mut labels = json!({names::TENANT_LABEL: null, render::RETAINED_FROM: null});
    if let (true, Some(labels)) = (made, labels.as_object_mut()) {
        labels.insert(names::MANAGED_BY_LABEL.into(), Value::Null);
    }
    let (fields, doing) = (json!({"metadata": {"labels": labels}}), format!("releasing namespace {namespace}"));
    writer.merge(&Api::<Namespace>::all(writer.client()), namespace, &fields).await.map(drop).map_err(failed(doing))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is the applier's")]
fn error_policy(tenant: Arc<Guarded<GpuTenant>>, error: &TenantError, _: Arc<Context>) -> Action {
    // spread by name, so that a burst of failures does not come back as a burst
    let spread = tenant.name_any().bytes().fold(0_u64, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into())) % 1000;
    match error {
        TenantError::Invalid(_) => Action::await_change(),
        TenantError::Lagging(_) => Action::requeue(Duration::from_millis(200)),
        TenantError::Write { .. } | TenantError::Outranked(_) => Action::requeue(Duration::from_millis(4000 + spread)),
    }
}
