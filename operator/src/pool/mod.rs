//! The fleet's controller: reads the caches, decides, writes and reports.
//!
//! Data flows one way: `inventory` (caches), `ownership`, `fleet_plan`, `gpu_changes` and `node_specs` (decisions), `write`, `status`.

mod canary;
pub(crate) mod decide;
mod devices;
mod discovery;
pub(crate) mod fleet;
mod fleet_plan;
mod gpu_changes;
pub(crate) mod inventory;
mod labels;
mod mig_manager;
mod node_specs;
mod ownership;
mod profile_status;
mod status;
mod taints;
#[cfg(test)]
mod tests;
mod tolerated;
mod view;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gputenancy_crds::ChangePhase;
use gputenancy_service::events::Publisher;
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    apply::Writer,
    cache::Caches,
    fleet_view::FleetView,
    metrics::Metrics,
    plan::{NodeName, Planner},
};
use decide::{FleetDecision, decide};
use gputenancy_engine::fleet::{Fleet, Refusals};
use inventory::Inventory;
pub(crate) use taints::without_ours;
pub use tolerated::Tolerated;
use write::{FleetWriter, NodeState, Outcome};

/// Debounce: triggers within this time make one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(15);
/// Shortest pause between two reconciles; a part of every step of a change that follows another.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause lasts so many times the decision's duration, so that a large fleet does not take a whole core.
const DUTY_CYCLE: u32 = 4;
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Delay after a reconcile with failed writes; each further one doubles it up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(2);
/// Longest delay after a reconcile with failed writes.
const MAX_RETRY: Duration = Duration::from_mins(1);

/// The fleet's controller.
pub struct Controller {
    caches: Caches,
    writer: FleetWriter,
    view: watch::Sender<Arc<FleetView>>,
    planner: Planner,
    /// What is remembered of writes, by node.
    nodes: BTreeMap<NodeName, NodeState>,
    /// Marks of taints as last seen, by node.
    marks: BTreeMap<String, String>,
    /// Key of the taint that pods of tenants tolerate.
    tolerated: Tolerated,
    /// The pause before the next reconcile.
    pause: Duration,
}

impl Controller {
    /// A controller that publishes the result for tenants in `view`; `home` is the operator's namespace, `layouts` that of the layouts for
    /// NVIDIA's MIG manager.
    pub fn new(
        caches: Caches,
        (home, layouts): (String, String),
        tolerated: Tolerated,
        writer: Writer,
        publisher: Publisher,
        metrics: Arc<Metrics>,
        view: watch::Sender<Arc<FleetView>>,
    ) -> Self {
        Self {
            caches,
            writer: FleetWriter { writer, publisher, metrics, home, layouts },
            view,
            planner: Planner::default(),
            nodes: BTreeMap::new(),
            marks: BTreeMap::new(),
            tolerated,
            pause: MIN_PAUSE,
        }
    }

    /// Reconciles the fleet when something has changed or a deadline comes, until `stop`.
    pub async fn run(mut self, trigger: Arc<Notify>, stop: CancellationToken) {
        let mut wake: Option<Duration> = Some(Duration::ZERO);
        let mut retry = MIN_RETRY;
        let mut ended = Instant::now();
        loop {
            let deadline = async {
                match wake {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // at once after a rest, less often in a stream of triggers
                () = trigger.notified() => tokio::time::sleep(DEBOUNCE.max(self.pause.saturating_sub(ended.elapsed()))).await,
                () = deadline => {}
            }
            let begun = Instant::now();
            let outcome = self.reconcile().await;
            let failed = outcome.failures > 0;
            self.writer.metrics.reconciled("fleet", begun.elapsed().as_secs_f64(), failed);
            ended = Instant::now();
            let retry_at = failed.then_some(retry);
            retry = if failed { (retry * 2).min(MAX_RETRY) } else { MIN_RETRY };
            wake = wait(&outcome, Timestamp::now()).into_iter().chain(retry_at).min();
        }
    }

    /// Decides once and writes the decision.
    async fn reconcile(&mut self) -> Outcome {
        let fleet = fleet::read(&self.caches);
        let begun = Instant::now();
        let mut decision = self.decide(&fleet);
        self.pause = (begun.elapsed() * DUTY_CYCLE).clamp(MIN_PAUSE, MAX_PAUSE);
        let metrics = &self.writer.metrics;
        metrics.changes(decision.phases.iter().map(|p| phase_name(*p)));
        metrics.foreign(decision.conflicting.iter().copied());
        let view = std::mem::take(&mut decision.view);
        self.view.send_if_modified(|old| {
            let differs = **old != view;
            if differs {
                *old = Arc::new(view);
            }
            differs
        });
        let wake = decision.wake;
        let outcome = self.writer.write(&fleet, decision, &mut self.nodes).await;
        Outcome { due: outcome.due.into_iter().chain(wake).min(), ..outcome }
    }

    fn decide(&mut self, fleet: &Fleet) -> FleetDecision {
        write::forget(&mut self.nodes, fleet);
        taints::remember(&mut self.marks, fleet);
        let refusals = self.nodes.values().flat_map(|n| &n.refusals);
        let refusals: Refusals = refusals.map(|(uid, r)| (uid.clone(), r.refusal.clone())).collect();
        let lagging = self.nodes.iter().filter(|(_, n)| n.is_lagging());
        let lagging: BTreeSet<String> = lagging.map(|(name, _)| name.to_string()).collect();
        let inventory = Inventory {
            fleet,
            now: Timestamp::now(),
            refusals: &refusals,
            namespace: &self.writer.home,
            tolerated: &self.tolerated,
            marks: &self.marks,
            lagging: &lagging,
        };
        decide(&inventory, &mut self.planner)
    }
}

/// Time until the next reconcile if nothing changes and nothing has failed.
fn wait(outcome: &Outcome, now: Timestamp) -> Option<Duration> {
    let due = outcome.due.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default().max(MIN_PAUSE));
    due.into_iter().chain(outcome.again.then_some(MIN_PAUSE)).min()
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
