//! Decides when something has changed, writes, and publishes what tenants have to know.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use gputenancy_cluster::{desired::version, error::sentence, events::Publisher};
use gputenancy_crds::backoff::Backoff;
use gputenancy_decisions::{
    fleet_view::FleetView,
    queues::{Borrower, fairness},
};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    decide::{Decided, decide},
    notices::{Due, Notices},
    observe::Observed,
    render::Key,
    teams::QueuedTenant,
    view::QueueView,
    waits::{Wait, Waits},
    write::Write,
};
use crate::{
    apply::{Part, Writer},
    cache::{Caches, KueueCaches},
    metrics::Metrics,
};

/// Triggers within this time make one decision.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Until the next decision after failures in a row.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));
/// Until the caches have caught up with a write.
const LAG: Duration = Duration::from_millis(200);
/// An object that the caches do not have for so long has been deleted by others.
const LONGEST_LAG: Duration = Duration::from_secs(30);
/// The pause after a reconcile lasts so many times the reconcile.
const DUTY_CYCLE: u32 = 2;
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Writes at the same time, of objects that do not depend on each other.
const CONCURRENCY: usize = 8;

/// Above so many tenants with queues the waits of jobs have no label for the tenant: a histogram of each would be a large scrape.
const MOST_TENANTS: usize = 200;

/// The controller of queues.
pub struct Controller {
    caches: Caches,
    kueue: KueueCaches,
    /// The fleet as decided last.
    view: watch::Receiver<Arc<FleetView>>,
    /// For tenants.
    publish: watch::Sender<Arc<QueueView>>,
    writer: Writer,
    publisher: Publisher,
    metrics: Arc<Metrics>,
    /// Jobs whose wait is measured.
    waits: Waits,
    /// Transitions of jobs that have their event.
    notices: Notices,
    /// Versions of objects as written last, until the caches have them.
    written: BTreeMap<Key, (u64, Instant)>,
}

/// Result of one reconcile.
enum Outcome {
    /// All is written; the time until an event is due.
    Done(Option<Duration>),
    /// The caches do not have the last writes yet.
    Lags,
    /// A write failed.
    Failed,
}

/// Why the queues could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {}", sentence(&**source))]
struct WriteError {
    doing: String,
    #[source]
    source: Box<kube::Error>,
}

impl Controller {
    /// A controller that follows `view`, and publishes what tenants have to know.
    pub fn new(
        caches: Caches,
        kueue: KueueCaches,
        (view, publish): (watch::Receiver<Arc<FleetView>>, watch::Sender<Arc<QueueView>>),
        (writer, publisher): (Writer, Publisher),
        metrics: Arc<Metrics>,
    ) -> Self {
        let (waits, notices, written) = (Waits::default(), Notices::default(), BTreeMap::new());
        Self { caches, kueue, view, publish, writer, publisher, metrics, waits, notices, written }
    }

    /// Decides and writes until `stop`.
    pub async fn run(mut self, trigger: Arc<Notify>, stop: CancellationToken) {
        let (mut failures, mut again) = (0, None);
        loop {
            let due = async {
                match again {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = due => {}
                () = trigger.notified() => tokio::time::sleep(DEBOUNCE).await,
                changed = self.view.changed() => {
                    // fails only when the fleet's controller has ended
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(DEBOUNCE).await;
                }
            }
            let begun = Instant::now();
            again = match self.reconcile().await {
                Outcome::Done(next) => {
                    failures = 0;
                    next
                }
                Outcome::Lags => Some(LAG),
                Outcome::Failed => {
                    failures += 1;
                    Some(RETRY.after(failures))
                }
            };
            // a large cluster does not take a whole core
            tokio::time::sleep((begun.elapsed() * DUTY_CYCLE).min(MAX_PAUSE)).await;
        }
    }

    /// Decides once and writes.
    async fn reconcile(&mut self) -> Outcome {
        let view = self.view.borrow_and_update().clone();
        if !view.complete {
            return Outcome::Done(None);
        }
        let begun = Instant::now();
        let (caches, kueue) = (self.caches.clone(), self.kueue.clone());
        let (mut waits, mut notices) = (std::mem::take(&mut self.waits), std::mem::take(&mut self.notices));
        let mut written = std::mem::take(&mut self.written);
        // a large cluster takes longer than probes and the lease may wait
        let decided = tokio::task::spawn_blocking(move || {
            let seen = Observed::read(&caches, &kueue, &view);
            written.retain(|key, (version, at)| seen.is_older(key, *version) && at.elapsed() < LONGEST_LAG);
            // decided on an old version of one object, another one could be raised too far
            let decided = written.is_empty().then(|| (decide(&seen), waits.ended(&seen), notices.due(&seen)));
            ((waits, notices, written), decided, seen.tenants)
        });
        let decided =
            decided.await.inspect_err(|error| tracing::error!(%error, "the decision about queues has failed"));
        let Ok((memory, decided, tenants)) = decided else { return Outcome::Failed };
        (self.waits, self.notices, self.written) = memory;
        let Some((Decided { writes, view }, ended, due)) = decided else { return Outcome::Lags };
        self.measure(&ended, &tenants, &view);
        self.publish.send_if_modified(|old| {
            let differs = **old != view;
            if differs {
                *old = Arc::new(view);
            }
            differs
        });
        let outcome = self.write_all(writes).await;
        self.metrics.reconciled("queues", begun.elapsed().as_secs_f64(), outcome.is_err());
        if let Err(error) = &outcome {
            tracing::warn!(%error, "queues not written, retrying");
        }
        let next = self.report(due).await;
        if outcome.is_ok() { Outcome::Done(next) } else { Outcome::Failed }
    }

    /// Publishes events, after the writes: no job waits for them. Answers the time until others are due.
    async fn report(&self, due: Due) -> Option<Duration> {
        join_all(due.events.into_iter().map(|event| self.publisher.publish(event))).await;
        let wait = |at: Timestamp| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
        due.next.map(wait)
    }

    fn measure(&self, ended: &[Wait], tenants: &[QueuedTenant], view: &QueueView) {
        for Wait { tenant, resource, seconds } in ended {
            let tenant = if tenants.len() > MOST_TENANTS { "" } else { tenant };
            self.metrics.queue_waited(tenant, resource, *seconds);
        }
        let borrower = |tenant: &QueuedTenant| {
            let queue = view.tenants.get(&tenant.team.name)?;
            // a team that may not borrow waits for its own devices
            tenant.team.gpus.values().find(|entitlement| entitlement.borrow > 0)?;
            let (borrowed, waits) = (queue.borrowed.values().sum(), queue.waiting > 0);
            Some(Borrower { group: tenant.group.clone(), weight: tenant.weight, borrowed, waits })
        };
        let borrowers: Vec<Borrower> = tenants.iter().filter_map(borrower).collect();
        self.metrics.queue_fairness(fairness(&borrowers));
    }

    /// Writes in order; objects of the same kind that follow each other at the same time.
    async fn write_all(&mut self, writes: Vec<Write>) -> Result<(), WriteError> {
        let mut rest = writes.as_slice();
        while let Some(first) = rest.first() {
            let same = rest.iter().take_while(|write| write.stage() == first.stage()).count();
            let (now, later) = rest.split_at(same);
            let by = &self.writer;
            let each = stream::iter(now.to_vec()).map(|write| async move { perform(by, &write).await });
            let done: Vec<_> = each.buffer_unordered(CONCURRENCY).collect().await;
            for applied in done {
                self.written.extend(applied?.map(|(key, version)| (key, (version, Instant::now()))));
            }
            rest = later;
        }
        Ok(())
    }
}

/// Performs one write; answers the version of an object that was applied.
async fn perform(writer: &Writer, write: &Write) -> Result<Option<(Key, u64)>, WriteError> {
    let (kind, namespace, name) = write.key();
    let failed = |doing: &str| {
        let doing = format!("{doing} {} {name}", kind.name());
        move |source| WriteError { doing, source: Box::new(source) }
    };
    match write {
        Write::Lower(key, object) | Write::Apply(key, object) => {
            let applied = writer.apply_as(Part::Queues, &kind.resource(), (namespace, name), object).await;
            applied.map(|applied| Some((key.clone(), version(&applied)))).map_err(failed("applying"))
        }
        Write::Status(_, fields) => {
            match writer.apply_status_as(Part::Queues, &kind.resource(), (namespace, name), fields).await {
                // decided on an old version: another decision follows its next one
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(None),
                other => other.map(|()| None).map_err(failed("applying the status of")),
            }
        }
        Write::Delete(_) => {
            let deleted = writer.delete_as(&kind.resource(), (namespace, name)).await;
            deleted.map(|()| None).map_err(failed("deleting"))
        }
    }
}
