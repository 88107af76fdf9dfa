//! The fleet's controller: reads the caches, decides, writes and reports.
//!
//! `fleet` reads the caches, the decisions are those of [`gputenancy_decisions::pool`], and `write` carries them out.

pub(crate) mod fleet;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gputenancy_cluster::events::Publisher;
use gputenancy_crds::ChangePhase;
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{apply::Writer, cache::Caches, metrics::Metrics, queues::QueueView};
use fleet::{DecidedStatuses, FleetReader};
pub(crate) use gputenancy_decisions::pool::decide::taints::without_ours;
pub use gputenancy_decisions::pool::read::tolerated::Tolerated;
use gputenancy_decisions::{
    fleet::{Fleet, Refusals},
    fleet_view::FleetView,
    pool::{
        decide::taints,
        decision::{FleetDecision, Remembered, decide},
        read::inventory::Inventory,
    },
};
pub use write::Namespaces;
use write::{Finished, FleetWriter, NodeState, ObjectWrite, Target, WriteQueue};

/// Debounce: triggers within this time make one decision.
const DEBOUNCE: Duration = Duration::from_millis(15);
/// Shortest pause between two decisions; a part of every step of a change that follows another.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause lasts so many times the decision's duration, so that a large fleet does not take a whole core.
const DUTY_CYCLE: u32 = 4;
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The fleet's controller: one decision at a time, and a queue of objects to be written.
pub struct Controller {
    caches: Caches,
    writer: Arc<FleetWriter>,
    view: watch::Sender<Arc<FleetView>>,
    /// The queues as decided last.
    queues: watch::Receiver<Arc<QueueView>>,
    memory: Memory,
    queue: WriteQueue,
    /// Key of the taint that pods of tenants tolerate.
    tolerated: Tolerated,
    /// When the last decision ended, and the pause before the next one.
    decided: (Instant, Duration),
}

/// What one decision leaves to the next.
#[derive(Default)]
struct Memory {
    remembered: Remembered,
    /// What is remembered of writes, by Node and `GpuNode`.
    nodes: BTreeMap<Target, NodeState>,
    /// Marks of taints as last seen, by node.
    marks: BTreeMap<String, String>,
    /// The objects.
    fleet: FleetReader,
    /// Statuses as decided last.
    statuses: DecidedStatuses,
}

impl Controller {
    /// A controller that publishes the result for tenants in `view`, and reports the state of `queues` in the statuses of pools.
    pub fn new(
        caches: Caches,
        namespaces: Namespaces,
        tolerated: Tolerated,
        writer: Writer,
        publisher: Publisher,
        metrics: Arc<Metrics>,
        (view, queues): (watch::Sender<Arc<FleetView>>, watch::Receiver<Arc<QueueView>>),
    ) -> Self {
        Self {
            writer: Arc::new(FleetWriter { writer, publisher, metrics, namespaces, kueue: caches.kueue.clone() }),
            caches,
            view,
            queues,
            memory: Memory::default(),
            queue: WriteQueue::default(),
            tolerated,
            decided: (Instant::now(), Duration::ZERO),
        }
    }

    /// Decides when something has changed or is due, and writes, until `stop`; then it completes the writes in progress.
    pub async fn run(mut self, trigger: Arc<Notify>, stop: CancellationToken) {
        let mut next = Some(Instant::now());
        let mut triggered = None;
        loop {
            // a decision takes its time, and after `stop` nothing more begins
            if !stop.is_cancelled() {
                self.queue.start(&self.writer, &self.memory.nodes);
            }
            // a stream of retries is as a stream of triggers
            let (ended, pause) = self.decided;
            let retry = self.queue.retry_at().map(|at| at.max(ended + pause));
            let forced = next.into_iter().chain(retry).min();
            let due = forced.into_iter().chain(triggered).min();
            let timer = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return self.queue.complete().await,
                finished = self.queue.finished() => {
                    if self.note(finished) {
                        next = next.into_iter().chain([self.soonest()]).min();
                    }
                }
                () = timer => {
                    triggered = None;
                    let forced = forced.is_some_and(|at| at <= Instant::now());
                    // otherwise the last decision still holds, and so does its time
                    if let Some(wake) = self.reconcile(forced).await {
                        next = wake;
                    }
                }
                () = trigger.notified() => triggered = triggered.or_else(|| Some(self.soonest())),
            }
        }
    }

    /// Soon after a rest, less often in a stream of triggers.
    fn soonest(&self) -> Instant {
        let (ended, pause) = self.decided;
        (Instant::now() + DEBOUNCE).max(ended + pause)
    }

    /// Notes that writes have ended; true: the fleet has to be decided again.
    fn note(&mut self, finished: Finished) -> bool {
        let Finished { target, outcome, state, seconds } = finished;
        let failed = outcome.failure.is_some();
        self.writer.metrics.reconciled(target.controller(), seconds, failed);
        if target.node().is_some() {
            self.memory.nodes.insert(target.clone(), state);
        }
        self.queue.note(&target, &outcome)
    }

    /// Decides once, and queues the writes; answers when to decide again even if nothing changes. Unless it is `forced`, it decides only if
    /// the caches differ by more than the operator's own statuses.
    async fn reconcile(&mut self, forced: bool) -> Option<Option<Instant>> {
        let begun = Instant::now();
        let (caches, tolerated, home) =
            (self.caches.clone(), self.tolerated.clone(), self.writer.namespaces.home.clone());
        let mut memory = std::mem::take(&mut self.memory);
        // without Kueue in the chart's values there are none
        let queues = self.caches.kueue.is_some().then(|| self.queues.borrow().pools.clone());
        let (failing, writing) = (self.queue.failing(), self.queue.writing());
        // a large fleet takes longer than probes and the lease may wait
        let decided = tokio::task::spawn_blocking(move || {
            let queues_differ = memory.fleet.take_queues(queues);
            let (fleet, differs) = memory.fleet.read(&caches, &memory.statuses, Timestamp::now());
            if !forced && !differs && !queues_differ {
                return (memory, None);
            }
            let mut decision = memory.decide(&fleet, &tolerated, &home, (&failing, &writing));
            memory.statuses = DecidedStatuses::of(&decision);
            let writes = ObjectWrite::of(&fleet, &mut decision);
            let evicted = std::mem::take(&mut decision.evicted);
            (memory, Some((fleet, decision, (writes, evicted))))
        });
        let (memory, decided) = write::unless_panicked(decided.await).await;
        self.memory = memory;
        let Some((fleet, decision, writes)) = decided else {
            self.decided = (Instant::now(), MIN_PAUSE);
            return None;
        };
        let took = begun.elapsed();
        self.decided = (Instant::now(), (took * DUTY_CYCLE).clamp(MIN_PAUSE, MAX_PAUSE));
        let metrics = &self.writer.metrics;
        metrics.reconciled("fleet", took.as_secs_f64(), false);
        tracing::debug!(visited = ?decision.visited, millis = took.as_millis(), "fleet decided");
        metrics.changes(decision.phases.iter().map(|p| phase_name(*p)));
        metrics.foreign(decision.conflicting.iter().copied());
        metrics.stopped_rollouts(decision.stopped_rollouts.iter().map(String::as_str));
        metrics.silent_agents(decision.silent_agents.iter().map(String::as_str));
        metrics.marked_nodes(decision.marked_nodes.iter().map(String::as_str));
        metrics.stranded_slices(decision.stranded.iter().map(|(pool, stranded)| (pool.as_str(), *stranded)));
        metrics.flapping_guarantees(decision.flapping.iter().map(String::as_str));
        self.view.send_if_modified(|old| {
            let differs = **old != decision.view;
            if differs {
                *old = Arc::new(decision.view);
            }
            differs
        });
        self.queue.replace(fleet, writes);
        let wait = |at: Timestamp| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
        Some(decision.wake.map(|at| Instant::now() + wait(at).max(MIN_PAUSE)))
    }
}

impl Memory {
    fn decide(
        &mut self,
        fleet: &Fleet,
        tolerated: &Tolerated,
        home: &str,
        (failing, writing): (&BTreeSet<String>, &BTreeSet<String>),
    ) -> FleetDecision {
        write::forget(&mut self.nodes, fleet);
        taints::remember(&mut self.marks, fleet);
        let refusals = self.nodes.values().flat_map(|n| &n.refusals);
        let refusals: Refusals = refusals.map(|(uid, r)| (uid.clone(), r.refusal.clone())).collect();
        let lagging = self.nodes.iter().filter(|(_, n)| n.is_lagging());
        let lagging: BTreeSet<String> =
            lagging.filter_map(|(target, _)| Some(target.gpu_node()?.to_string())).collect();
        let inventory = Inventory {
            fleet,
            now: Timestamp::now(),
            refusals: &refusals,
            namespace: home,
            tolerated,
            marks: &self.marks,
            lagging: &lagging,
            failing,
            writing,
        };
        decide(&inventory, &mut self.remembered)
    }
}

fn phase_name(phase: ChangePhase) -> &'static str {
    match phase {
        ChangePhase::Noticed => "Noticed",
        ChangePhase::Held => "Held",
        ChangePhase::Evicting => "Evicting",
        ChangePhase::Idle => "Idle",
        ChangePhase::Partitioning => "Partitioning",
        ChangePhase::Canary => "Canary",
        ChangePhase::Verifying => "Verifying",
        ChangePhase::RollingBack => "RollingBack",
        ChangePhase::RolledBack => "RolledBack",
        ChangePhase::Stuck => "Stuck",
    }
}
