//! The controller of tenants: observe from the caches, decide, write, report.

pub mod amount;
mod budget;
mod call;
mod carry;
mod claims;
mod context;
mod decide;
mod fence;
mod network;
mod observe;
mod pull;
mod render;
mod report;
mod split;
mod standard;
mod status;
mod teardown;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, future};
use kube::{
    ResourceExt as _,
    core::error_boundary::InvalidObject,
    runtime::controller::{self, Action, applier},
};

use crate::{apply::has_finalizer, cache::SlimTenant};
pub(crate) use amount::Amount;
use carry::carry_out;
pub use context::Context;
use context::STEADY;
use decide::Write;
pub use observe::weight_unknown;
use report::report;
pub use split::Weight;
pub use standard::{Standard, StandardError};

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

async fn reconcile(kept: Arc<SlimTenant>, context: Arc<Context>) -> Result<Action, TenantError> {
    let begun = Instant::now();
    let outcome = one(&kept, &context).await;
    let failed =
        matches!(outcome, Err(TenantError::Invalid(_) | TenantError::Write { .. } | TenantError::Outranked(_)));
    context.metrics.reconciled("tenant", begun.elapsed().as_secs_f64(), failed);
    outcome
}

async fn one(kept: &SlimTenant, context: &Context) -> Result<Action, TenantError> {
    let tenant = &kept.whole().map_err(TenantError::Invalid)?;
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
        teardown::writes(&seen)
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

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> TenantError {
    let doing = doing.into();
    move |source| match &source {
        // decided on an old version, or on a namespace's absence that is over
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => TenantError::Lagging(doing),
        _ => TenantError::Write { doing, source: Box::new(source) },
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is the applier's")]
fn error_policy(tenant: Arc<SlimTenant>, error: &TenantError, _: Arc<Context>) -> Action {
    // spread by name, so that a burst of failures does not come back as a burst
    let spread = tenant.name_any().bytes().fold(0_u64, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into())) % 1000;
    match error {
        TenantError::Invalid(_) => Action::await_change(),
        TenantError::Lagging(_) => Action::requeue(Duration::from_millis(200)),
        TenantError::Write { .. } | TenantError::Outranked(_) => Action::requeue(Duration::from_millis(4000 + spread)),
    }
}
