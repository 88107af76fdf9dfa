//! Reconciles tenants with kube's `Controller`: observe, decide, write, report.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, future, stream};
use gputenancy_crds::GpuTenant;
use kube::runtime::{
    Controller,
    controller::{Action, Config},
};
use tokio_util::sync::CancellationToken;

use super::{
    TenantError,
    carry::carry_out,
    context::{Context, STEADY},
    decide::{self, Write},
    failed,
    report::report,
    status, teardown, tenant_role,
};
use crate::{apply::has_finalizer, cache::Trigger};

/// One change brings several triggers, and a reconcile one for each of its writes.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Until the cache has caught up with a write.
const LAG: Duration = Duration::from_millis(200);
/// Requeue after the first failure in a row; it doubles with each further one.
const MIN_BACKOFF: Duration = Duration::from_secs(2);
/// Longest requeue after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(16);
/// A tenant that is being deleted is checked this often.
const DELETION_INTERVAL: Duration = Duration::from_secs(30);

/// Reconciles the tenants of triggers until `stop`, and then ends those that have begun. A panic of a reconcile ends this too.
pub async fn run(
    context: Context,
    triggers: impl Stream<Item = Trigger> + Send + 'static,
    concurrency: u16,
    stop: CancellationToken,
) {
    let tenants = context.caches.tenants.clone();
    let context = Arc::new(context);
    let of = context.clone();
    // the cache watches tenants already: triggers are the only source
    Controller::for_stream(stream::pending(), tenants)
        .with_config(Config::default().debounce(DEBOUNCE).concurrency(concurrency))
        .reconcile_on(triggers.flat_map(move |trigger| stream::iter(of.tenants_of(trigger))))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, |tenant, error, context| requeue_after_error(&tenant, error, &context), context)
        // errors are logged where they occur
        .for_each(|_| future::ready(()))
        .await;
}

async fn reconcile(tenant: Arc<GpuTenant>, context: Arc<Context>) -> Result<Action, TenantError> {
    let begun = Instant::now();
    let outcome = reconcile_once(&tenant, &context).await;
    let failed = outcome.as_ref().is_err_and(|error| !matches!(error, TenantError::Lagging(_)));
    context.metrics.reconciled("tenant", begun.elapsed().as_secs_f64(), failed);
    match &outcome {
        Ok(_) => _ = context.failures(tenant.metadata.name.as_deref().unwrap_or_default(), false),
        Err(error) if failed => tracing::warn!(%error, "tenant not reconciled, requeueing"),
        Err(error) => tracing::debug!(%error, "cache lags, requeueing tenant"),
    }
    outcome.map(|after| after.map_or_else(Action::await_change, Action::requeue))
}

fn requeue_after_error(tenant: &GpuTenant, error: &TenantError, context: &Context) -> Action {
    Action::requeue(match error {
        TenantError::Lagging(_) => LAG,
        TenantError::Write { .. } | TenantError::Outranked(_) => {
            backoff(context.failures(tenant.metadata.name.as_deref().unwrap_or_default(), true))
        }
    })
}

fn backoff(failures: u32) -> Duration {
    MIN_BACKOFF.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(MAX_BACKOFF)
}

/// One reconcile; returns after which time another is needed though nothing changes.
async fn reconcile_once(tenant: &GpuTenant, context: &Context) -> Result<Option<Duration>, TenantError> {
    let seen = context.observe(tenant);
    context.caught_up(&seen)?;
    if let Some(namespace) = context.outranked_in(&seen) {
        return Err(TenantError::Outranked(namespace));
    }
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let writes = if deleted {
        if !has_finalizer(tenant) {
            return Ok(None);
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
    if !deleted && outcome.is_ok() {
        outcome = tenant_role::reconcile(tenant, context).await;
    }
    let reported = if finishes {
        context.forget(&seen);
        None
    } else {
        let error = outcome.as_ref().err().filter(|e| !matches!(e, TenantError::Lagging(_)));
        report(&seen, context, error).await?
    };
    outcome?;
    let deadline = seen.refused.next_deadline(seen.now, status::SHOWN_AFTER);
    let deadline = deadline.and_then(|then| Duration::try_from(then.duration_since(seen.now)).ok());
    let steady = seen.decide_quotas().1.waits_for_count.then_some(STEADY);
    Ok([reported, deadline, steady, deleted.then_some(DELETION_INTERVAL)].into_iter().flatten().min())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let seconds = [1, 2, 3, 4, 5, 99].map(|failures| backoff(failures).as_secs());
        assert_eq!(seconds, [2, 4, 8, 16, 16, 16]);
    }
}
