//! Tenants are looked at, several side by side: observe, decide, write, report.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, future, stream::FuturesUnordered};
use gputenancy_crds::GpuTenant;
use tracing::Instrument as _;

use super::{
    TenantError,
    carry::carry_out,
    context::{Context, STEADY},
    decide::{self, Write},
    failed,
    queue::{Name, Outcome, Queue},
    report::{Report, report},
    status, teardown,
};
use crate::apply::has_finalizer;

/// Looks at tenants until the words about them end, and then ends the looks that it has begun.
pub async fn run(context: Context, words: impl Stream<Item = String> + Send, concurrency: u16) {
    let context = Arc::new(context);
    let mut words = pin!(words);
    let (mut queue, mut looks) = (Queue::default(), FuturesUnordered::new());
    loop {
        let mut wakes = None;
        while queue.running() < usize::from(concurrency) {
            let Some(name) = queue.take(Instant::now()) else {
                wakes = queue.wakes();
                break;
            };
            let span = tracing::info_span!("look", tenant = &*name);
            looks.push(look(name, context.clone()).instrument(span));
        }
        tokio::select! {
            word = words.next() => match word {
                Some(word) => context.meant_by(&word).into_iter().for_each(|name| queue.come(name, Instant::now())),
                None => break,
            },
            Some((name, outcome)) = looks.next() => queue.done(&name, outcome, Instant::now()),
            () = at(wakes) => {}
        }
    }
    while looks.next().await.is_some() {}
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => future::pending().await,
    }
}

async fn look(name: Name, context: Arc<Context>) -> (Name, Outcome) {
    let Some(tenant) = context.caches.tenants.get(&name) else {
        tracing::debug!("the tenant has gone");
        return (name, Outcome { at_rest: true, again: None });
    };
    let begun = Instant::now();
    let looked = match tenant {
        Ok(tenant) => one(&tenant, &context).await,
        Err(invalid) => Err(TenantError::Invalid(invalid)),
    };
    let failed = matches!(looked, Err(TenantError::Invalid(_) | TenantError::Write { .. } | TenantError::Outranked(_)));
    context.metrics.reconciled("tenant", begun.elapsed().as_secs_f64(), failed);
    let outcome = looked.unwrap_or_else(|error| {
        if failed {
            tracing::warn!(%error, "the tenant was not reconciled");
        } else {
            tracing::debug!(%error, "looked at again in a moment");
        }
        Outcome { at_rest: failed, again: after(&error, &name) }
    });
    (name, outcome)
}

async fn one(tenant: &GpuTenant, context: &Context) -> Result<Outcome, TenantError> {
    let seen = context.observe(tenant);
    context.caught_up(&seen)?;
    if let Some(namespace) = context.outranked_in(&seen) {
        return Err(TenantError::Outranked(namespace));
    }
    let deleted = tenant.metadata.deletion_timestamp.is_some();
    let writes = if deleted {
        if !has_finalizer(tenant) {
            return Ok(Outcome { at_rest: true, again: None });
        }
        teardown::writes(&seen)
    } else {
        context.writer.set_finalizer(tenant, true).await.map_err(failed("adding the finalizer"))?;
        decide::writes(&seen)
    };
    let nothing_written = writes.is_empty();
    let finishes = writes.iter().any(|w| matches!(w, Write::Finish(_)));
    let mut outcome = Ok(());
    for write in writes {
        outcome = carry_out(&seen, context, write).await;
        if outcome.is_err() {
            break;
        }
    }
    let reported = if finishes {
        context.forget(&seen);
        Report { passes: false, again: None }
    } else {
        let told = outcome.as_ref().err().filter(|e| !matches!(e, TenantError::Lagging(_)));
        report(&seen, context, told).await?
    };
    let ends = seen.refused.next_deadline(seen.now, status::SHOWN_AFTER);
    let ends = ends.and_then(|then| Duration::try_from(then.duration_since(seen.now)).ok());
    let steady = seen.step().1.waits.then_some(STEADY);
    let later = [reported.again, ends, steady, deleted.then_some(Duration::from_secs(30))].into_iter().flatten().min();
    outcome.map(|()| Outcome { at_rest: nothing_written && !reported.passes, again: later })
}

/// When a tenant is looked at again after a failure.
fn after(error: &TenantError, name: &str) -> Option<Duration> {
    // spread by name, so that a burst of failures does not come back as a burst
    let spread = name.bytes().fold(0_u64, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into())) % 1000;
    match error {
        TenantError::Invalid(_) => None,
        TenantError::Lagging(_) => Some(Duration::from_millis(200)),
        TenantError::Write { .. } | TenantError::Outranked(_) => Some(Duration::from_millis(4000 + spread)),
    }
}
