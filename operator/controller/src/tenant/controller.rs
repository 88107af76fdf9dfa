//! Reconciles tenants with kube's `Controller`: observe, decide, write, report.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, Stream, StreamExt as _, future, stream};
use gputenancy_crds::{GpuTenant, backoff::Backoff};
use kube::{
    ResourceExt as _,
    runtime::{
        Controller,
        controller::{Action, Config},
        reflector::{ObjectRef, Store},
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    TenantError,
    context::{Context, EARLIER_ACCESS_AGE, SETTLING_TIME},
    decide::{Decided, decide, write::Write},
    execute::execute,
    failed,
    observe::Observed,
    report::report,
    status::{self, earlier_access},
};
use crate::{apply::has_finalizer, cache::Trigger};

/// Triggers are gathered for so long: a change causes several, and each write of a reconcile another.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Until the cache has caught up with a write.
const LAG: Duration = Duration::from_millis(200);
/// Requeue after failures in a row.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(16));
/// Requeue of a tenant that is being deleted.
const DELETION_INTERVAL: Duration = Duration::from_secs(30);

/// Reconciles the tenants of triggers until `stop`, and then completes reconciles in progress. A panic of a reconcile is one of this future.
pub async fn run(
    context: Context,
    triggers: impl Stream<Item = Trigger> + Send + 'static,
    concurrency: u16,
    stop: CancellationToken,
) {
    let tenants = context.caches.tenants.clone();
    let context = Arc::new(context);
    let of = context.clone();
    let requests = triggers.flat_map(move |trigger| stream::iter(of.tenants_of(trigger)));
    reconcile_all(tenants, requests, concurrency, stop, |tenant| reconcile(tenant, context.clone())).await;
}

/// Reconciles the tenants of `requests` with kube's `Controller`.
async fn reconcile_all<F>(
    tenants: Store<GpuTenant>,
    requests: impl Stream<Item = ObjectRef<GpuTenant>> + Send + 'static,
    concurrency: u16,
    stop: CancellationToken,
    mut reconcile: impl FnMut(Arc<GpuTenant>) -> F,
) where
    F: Future<Output = Action> + Send + 'static,
{
    // the cache watches tenants already: `requests` is the only source. Not kube's debounce: each further trigger of a tenant would delay it
    // again, for as long as they come
    Controller::for_stream(stream::pending(), tenants)
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(gather(requests, DEBOUNCE))
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(|tenant, _| reconcile(tenant).map(Ok::<_, Infallible>), |_, error, _| match *error {}, Arc::new(()))
        .for_each(|_| future::ready(()))
        .await;
}

/// Requests as batches, each complete `window` after its first request; a batch has each object once.
fn gather(
    requests: impl Stream<Item = ObjectRef<GpuTenant>> + Send + 'static,
    window: Duration,
) -> impl Stream<Item = ObjectRef<GpuTenant>> + Send + 'static {
    let batches = stream::unfold(Box::pin(requests), move |mut requests| async move {
        let mut batch = HashSet::from([requests.next().await?]);
        let complete = tokio::time::sleep(window);
        let more = async {
            while let Some(request) = requests.next().await {
                batch.insert(request);
            }
        };
        tokio::select! {
            () = complete => {}
            () = more => {}
        }
        Some((stream::iter(batch), requests))
    });
    batches.flatten()
}

async fn reconcile(tenant: Arc<GpuTenant>, context: Arc<Context>) -> Action {
    let (name, begun) = (tenant.name_any(), Instant::now());
    let outcome = reconcile_once(&tenant, &context).await;
    let failed = outcome.as_ref().is_err_and(|error| !matches!(error, TenantError::Lagging(_)));
    context.metrics.reconciled("tenant", begun.elapsed().as_secs_f64(), failed);
    match outcome {
        Ok(after) => {
            context.remember(&name, |memory| memory.failed(false));
            after.map_or_else(Action::await_change, Action::requeue)
        }
        Err(error @ TenantError::Lagging(_)) => {
            tracing::debug!(%error, "cache lags, requeueing tenant");
            Action::requeue(LAG)
        }
        Err(error @ (TenantError::Write { .. } | TenantError::Outranked(_))) => {
            tracing::warn!(%error, "tenant not reconciled, requeueing");
            Action::requeue(RETRY.after(context.remember(&name, |memory| memory.failed(true))))
        }
    }
}

/// One reconcile; returns the time after which another is needed without a trigger.
async fn reconcile_once(tenant: &GpuTenant, context: &Context) -> Result<Option<Duration>, TenantError> {
    let mut seen = context.observe(tenant);
    context.caught_up(&seen)?;
    if let Some(namespace) = context.outranked_in(&seen) {
        return Err(TenantError::Outranked(namespace));
    }
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    if deleted && !has_finalizer(tenant) {
        return Ok(None);
    }
    if !deleted {
        context.writer.set_finalizer(tenant, true).await.map_err(failed("adding the finalizer"))?;
    }
    let decided = decide(&seen);
    let finalizes = decided.writes.iter().any(|w| matches!(w, Write::RemoveFinalizer(_)));
    // what only the status shows is read meanwhile: a slow list must not delay a quota
    let (outcome, access) =
        future::join(execute_all(&seen, &decided, context), context.earlier_access(&seen, &decided.roles)).await;
    seen.foreign_access = access;
    let reported = if finalizes {
        if outcome.is_ok() {
            context.forget(&seen);
        }
        None
    } else {
        let error = outcome.as_ref().err().filter(|e| !matches!(e, TenantError::Lagging(_)));
        report((&seen, &decided), context, error).await?
    };
    outcome?;
    let deadline = seen.refused.next_deadline(seen.now, status::SHOWN_AFTER);
    let deadline = deadline.and_then(|then| Duration::try_from(then.duration_since(seen.now)).ok());
    let settling = decided.quotas.decision.waits_for_count.then_some(SETTLING_TIME);
    let rereads = !deleted
        && (earlier_access::is_unread(&seen, &decided.roles)
            || earlier_access::condition(&seen, &decided.roles).is_some());
    let reread = rereads.then_some(EARLIER_ACCESS_AGE);
    Ok([reported, deadline, settling, reread, deleted.then_some(DELETION_INTERVAL)].into_iter().flatten().min())
}

/// Makes the writes in their order, up to the first that fails.
async fn execute_all(seen: &Observed, decided: &Decided, context: &Context) -> Result<(), TenantError> {
    for write in &decided.writes {
        execute(seen, context, write.clone()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::GpuTenantSpec;
    use kube::runtime::{reflector, watcher::Event};

    use super::*;

    #[tokio::test]
    async fn controller_task_panics_when_a_reconcile_does() {
        let (tenants, mut cache) = reflector::store();
        let tenant = GpuTenant::new("team-a", GpuTenantSpec::default());
        for event in [Event::Init, Event::InitApply(tenant), Event::InitDone] {
            cache.apply_watcher_event(&event);
        }
        let requests = stream::iter([ObjectRef::new("team-a")]).chain(stream::pending());
        let panics = |_| async { panic!("a bug in a reconcile") };
        let task = tokio::spawn(reconcile_all(tenants, requests, 1, CancellationToken::new(), panics));
        let ended = tokio::time::timeout(Duration::from_secs(10), task).await.expect("the task must end");
        assert!(ended.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn tenant_is_reconciled_while_its_triggers_keep_coming() {
        let (tenants, mut cache) = reflector::store();
        let tenant = GpuTenant::new("team-a", GpuTenantSpec::default());
        for event in [Event::Init, Event::InitApply(tenant), Event::InitDone] {
            cache.apply_watcher_event(&event);
        }
        let requests = stream::unfold((), async |()| {
            tokio::time::sleep(DEBOUNCE / 5).await;
            Some((ObjectRef::new("team-a"), ()))
        });
        let reconciled = Arc::new(tokio::sync::Notify::new());
        let notify = reconciled.clone();
        let reconcile = move |_| {
            notify.notify_one();
            future::ready(Action::await_change())
        };
        let task = tokio::spawn(reconcile_all(tenants, requests, 1, CancellationToken::new(), reconcile));
        tokio::time::timeout(Duration::from_secs(10), reconciled.notified()).await.expect("a reconcile");
        task.abort();
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let seconds = [1, 2, 3, 4, 5, 99].map(|failures| RETRY.after(failures).as_secs());
        assert_eq!(seconds, [2, 4, 8, 16, 16, 16]);
    }
}
