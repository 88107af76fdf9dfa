//! The fleet's controller: snapshot, plan, step the change machine of every GPU, write, report.

mod ask;
mod budget;
mod canary;
mod devices;
mod discovery;
pub(crate) mod fleet;
mod hands;
mod labels;
mod managed;
pub(crate) mod pass;
mod plugin;
mod pods;
mod profile_status;
mod repair;
mod status;
mod taint;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, GpuProfile, names, reasons};
use gputenancy_service::events::{EventType, Notice, Publisher};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    apply::{Part, Writer},
    cache::Caches,
    fleet_view::FleetView,
    metrics::Metrics,
    plan::{NodeName, Planner},
};
use gputenancy_engine::{
    change::ChangeDecision,
    fleet::{Fleet, Refusals},
    mig_manager::MigConfigError,
};
use labels::Labels;
use pass::{Inputs, NodeWork, Pass};
use repair::{Repair, Repairs};
pub use taint::Tolerated;
pub(crate) use taint::without_ours;

/// News of one moment are looked at together.
const BURST: Duration = Duration::from_millis(15);
/// Between the end of a pass and the next: it is a part of every step of every change that comes right after another.
const WINDOW: Duration = Duration::from_millis(50);
/// The pause is so many times as long as the decision took at least, so that a large fleet does not take a whole core.
const LEISURE: u32 = 4;
/// No pause is longer, however slow the API server is.
const LONGEST_WINDOW: Duration = Duration::from_secs(1);
/// A pass that takes longer than this is given up and begun again.
const LONGEST_PASS: Duration = Duration::from_mins(1);
/// What one node's writes may take: a slow answer about one node must not keep the others waiting.
const LONGEST_NODE: Duration = Duration::from_secs(15);
/// Time until the next pass after one that failed; each further failure doubles it up to [`LONGEST_PASS`].
const RETRY: Duration = Duration::from_secs(2);

/// Why a pass ended early; what was written stays, and the next pass goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The API server refused a write.
    #[error("{doing}: {source}")]
    Write {
        /// What was being done.
        doing: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer about one node in time.
    #[error("writing what concerns node {node} took longer than {} s", LONGEST_NODE.as_secs())]
    SlowNode {
        /// The node.
        node: NodeName,
    },
    /// The layouts for NVIDIA's MIG manager cannot be written down.
    #[error(transparent)]
    Layouts(#[from] MigConfigError),
    /// Several things failed; the others were done.
    #[error("{count} writes failed, the others were done; the first: {first}")]
    Many {
        /// How many.
        count: usize,
        /// The first.
        first: Box<FleetError>,
    },
    /// The API server is slow or silent.
    #[error("a pass over the fleet took longer than {} s", LONGEST_PASS.as_secs())]
    Slow,
}

/// The fleet's controller.
pub struct Controller {
    caches: Caches,
    writer: Writer,
    publisher: Publisher,
    metrics: Arc<Metrics>,
    view: watch::Sender<Arc<FleetView>>,
    planner: Planner,
    refusals: Refusals,
    /// What the API server said last about a pod that may not be evicted, and what that means: by the pod's uid.
    explained: BTreeMap<String, (String, String)>,
    /// Generation of each agreement that we wrote last: the cache has to reach it before the node is looked at again.
    written: BTreeMap<String, i64>,
    /// Labels of nodes as written last.
    labelled: Repairs<Labels>,
    /// The operator's taints of nodes as written last.
    tainted: Repairs<Option<String>>,
    /// Marks of taints as last seen, by node.
    marks: BTreeMap<String, String>,
    /// Our own namespace.
    home: String,
    /// Namespace of the layouts for NVIDIA's MIG manager.
    namespace: String,
    /// Key of the taint that pods of tenants tolerate.
    tolerated: Tolerated,
    /// The pause before the next pass.
    window: Duration,
    /// This pass has learnt something that no watch will tell.
    look_again: bool,
}

impl Controller {
    /// A controller that publishes what it finds in `view`; `home` is our own namespace, `namespace` that of the layouts for NVIDIA's MIG
    /// manager.
    pub fn new(
        caches: Caches,
        (home, namespace): (String, String),
        tolerated: Tolerated,
        writer: Writer,
        publisher: Publisher,
        metrics: Arc<Metrics>,
        view: watch::Sender<Arc<FleetView>>,
    ) -> Self {
        Self {
            home,
            namespace,
            tolerated,
            caches,
            writer,
            publisher,
            metrics,
            view,
            planner: Planner::default(),
            refusals: Refusals::new(),
            explained: BTreeMap::new(),
            written: BTreeMap::new(),
            labelled: Repairs::default(),
            tainted: Repairs::default(),
            marks: BTreeMap::new(),
            window: WINDOW,
            look_again: false,
        }
    }

    /// Passes over the fleet whenever something changed or a deadline comes, until told to stop.
    pub async fn run(mut self, wake: Arc<Notify>, stop: CancellationToken) {
        let mut again: Option<Duration> = Some(Duration::ZERO);
        let mut retry = RETRY;
        let mut ended = std::time::Instant::now();
        loop {
            let alarm = async {
                match again {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // after a rest at once, in a stream of news only now and then
                () = wake.notified() => tokio::time::sleep(BURST.max(self.window.saturating_sub(ended.elapsed()))).await,
                () = alarm => {}
            }
            let begun = std::time::Instant::now();
            let outcome = tokio::time::timeout(LONGEST_PASS, self.once()).await.unwrap_or(Err(FleetError::Slow));
            self.metrics.reconciled("fleet", begun.elapsed().as_secs_f64(), outcome.is_err());
            ended = std::time::Instant::now();
            again = match outcome {
                Ok(wake) => {
                    retry = RETRY;
                    wake
                }
                Err(error) => {
                    tracing::warn!(%error, "the pass over the fleet did not get everything done");
                    let after = retry;
                    retry = (retry * 2).min(LONGEST_PASS);
                    Some(after)
                }
            };
        }
    }

    /// One pass; answers when to look again.
    async fn once(&mut self) -> Result<Option<Duration>, FleetError> {
        let fleet = fleet::read(&self.caches);
        let lagging = self.lagging(&fleet);
        self.forget(&fleet);
        let inputs = Inputs {
            now: Timestamp::now(),
            marks: &self.marks,
            refusals: &self.refusals,
            namespace: &self.home,
            tolerated: &self.tolerated,
            lagging: &lagging,
        };
        let begun = std::time::Instant::now();
        let Pass {
            nodes,
            strays,
            labels,
            taints,
            asks,
            mig_configs,
            view,
            pools,
            profiles,
            finished,
            phases,
            foreign,
            wake,
            spared,
        } = pass::pass(&fleet, &mut self.planner, &inputs);
        self.window = (begun.elapsed() * LEISURE).clamp(WINDOW, LONGEST_WINDOW);
        self.metrics.changes(phases.iter().map(|p| phase_name(*p)));
        self.metrics.foreign(foreign.into_iter());
        self.view.send_if_modified(|old| {
            let differs = **old != view;
            if differs {
                *old = Arc::new(view);
            }
            differs
        });
        // what fails on one object is no reason to leave the others: errors are collected
        let mut faults: Vec<FleetError> = Vec::new();
        for pool in fleet.pools.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
            let added = self.writer.set_finalizer(pool, true).await;
            faults.extend(added.map_err(failed("adding the finalizer of a pool")).err());
        }
        if let Some(configs) = mig_configs {
            faults.extend(self.publish(&configs).await.err());
        }
        let mut repairs = Vec::new();
        for (node, wanted) in labels {
            repairs.push(self.label(&fleet, &node, wanted).await);
        }
        for (name, node) in &fleet.gpu_nodes {
            faults.extend(self.label_pool(&fleet, name, node).await.err());
        }
        let mut undone = BTreeSet::new();
        for (node, retaint) in taints {
            repairs.push(self.retaint(&fleet, &node, retaint).await);
        }
        let mut wake = wake;
        for repair in repairs {
            match repair {
                Ok(due) => wake = wake.into_iter().chain(due).min(),
                Err(error) => faults.push(error),
            }
        }
        for (node, work) in nodes {
            let worked = tokio::time::timeout(LONGEST_NODE, self.work(&fleet, &node, work)).await;
            if worked.as_ref().is_ok_and(Result::is_ok) {
                continue;
            }
            undone.insert(node.to_string());
            faults.extend(worked.unwrap_or(Err(FleetError::SlowNode { node })).err());
        }
        // a verdict is forgotten only when what follows from it stands
        for (pod, stray) in strays.into_iter().filter(|(_, stray)| !undone.contains(&stray.node)) {
            faults.extend(self.dismiss(&pod, stray).await.err());
        }
        for (node, ask) in asks {
            faults.extend(self.ask(&fleet, &node, ask).await.err());
        }
        for (pod, uid) in spared {
            faults.extend(self.spare(&fleet, &pod, &uid).await.err());
        }
        for (name, status) in pools {
            faults.extend(self.report(&fleet, &name, &status).await.err());
        }
        for (name, status) in profiles {
            let written = self.writer.apply_status::<GpuProfile>(&name, &status).await;
            faults.extend(written.map_err(failed(format!("writing the status of profile {name}"))).err());
        }
        for pool in fleet.pools.iter().filter(|p| finished.contains(&p.name_any())) {
            let removed = self.writer.set_finalizer(pool, false).await;
            faults.extend(removed.map_err(failed("removing the finalizer of a pool")).err());
        }
        all_done(faults)?;
        if std::mem::take(&mut self.look_again) {
            return Ok(Some(WINDOW));
        }
        Ok(wake.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default().max(WINDOW)))
    }

    /// Drops what is remembered of objects that are gone.
    fn forget(&mut self, fleet: &Fleet) {
        let uids: BTreeSet<String> = fleet.pods.values().filter_map(|p| p.uid()).collect();
        self.refusals.retain(|uid, _| uids.contains(uid));
        self.explained.retain(|uid, _| uids.contains(uid));
        self.labelled.retain(|node| fleet.nodes.contains_key(node));
        self.tainted.retain(|node| fleet.nodes.contains_key(node));
        taint::remember(&mut self.marks, fleet);
    }

    fn lagging(&mut self, fleet: &Fleet) -> BTreeSet<String> {
        self.written.retain(|node, generation| {
            fleet.gpu_nodes.get(node).is_some_and(|n| n.metadata.generation.is_some_and(|g| g < *generation))
        });
        self.written.keys().cloned().collect()
    }

    /// Writes a node's labels; answers when they may be repaired if that is later.
    async fn label(&mut self, fleet: &Fleet, node: &NodeName, wanted: Labels) -> Result<Option<Timestamp>, FleetError> {
        let contested = match self.labelled.decide(node, &wanted, Timestamp::now()) {
            Repair::At(due) => return Ok(Some(due)),
            Repair::Now { contested } => contested,
        };
        let fields = json!({"metadata": {"labels": wanted}});
        if contested {
            let conflicts = self.writer.conflicts::<Node>(Part::Pool, node.as_str(), fields.clone()).await;
            let cause = conflicts.map_err(failed(format!("labelling node {node}")))?;
            let cause = cause.unwrap_or_else(|| "another client removes them".to_owned());
            self.report_contest(fleet, node, format!("labels of node {node}: {cause}")).await;
        }
        let applied = self.writer.apply_fields::<Node>(Part::Pool, node.as_str(), fields).await;
        let applied = applied.map_err(failed(format!("labelling node {node}")))?;
        let unwanted: Map<String, Value> =
            labels::unwanted(applied.labels(), &wanted).map(|label| (label.to_owned(), Value::Null)).collect();
        if !unwanted.is_empty() {
            let api = Api::<Node>::all(self.writer.client());
            let removed = self.writer.merge(&api, node.as_str(), &json!({"metadata": {"labels": unwanted}})).await;
            removed.map_err(failed(format!("removing labels of node {node}")))?;
        }
        self.labelled.written(node, wanted, Timestamp::now());
        Ok(None)
    }

    /// Another client keeps changing what the operator writes on a node.
    async fn report_contest(&self, fleet: &Fleet, node: &NodeName, what: String) {
        tracing::warn!(%node, what, "another client keeps changing a node");
        let Some(gpu_node) = fleet.gpu_nodes.get(node.as_str()) else { return };
        let (regarding, reason) = (gpu_node.object_ref(&()), reasons::FIELD_CONFLICT);
        let message = format!("{what}; repaired with increasing delay: stop that client from changing them");
        let (event_type, action) = (EventType::Warning, "Repair".into());
        self.publisher.publish(Notice { regarding, event_type, reason, action, note: message }).await;
    }

    /// Copies the pool's name from the Node to its `GpuNode`, for a column of `kubectl get gpunodes`.
    async fn label_pool(&self, fleet: &Fleet, name: &str, node: &GpuNode) -> Result<(), FleetError> {
        let pool = fleet.nodes.get(name).and_then(|n| n.labels().get(names::POOL_LABEL));
        if pool == node.labels().get(names::POOL_LABEL) {
            return Ok(());
        }
        let labels: BTreeMap<&str, &String> = pool.map(|pool| (names::POOL_LABEL, pool)).into_iter().collect();
        let fields = json!({"metadata": {"uid": node.uid(), "labels": labels}});
        let applied = self.writer.apply_fields::<GpuNode>(Part::PoolLabel, name, fields).await;
        applied.map(|_| ()).map_err(failed(format!("labelling the GpuNode of node {name}")))
    }

    /// Writes the agreement first: what follows is only true once it stands.
    async fn work(&mut self, fleet: &Fleet, node: &NodeName, work: NodeWork) -> Result<(), FleetError> {
        let Some(agreement) = fleet.gpu_nodes.get(node.as_str()) else { return Ok(()) };
        if let Some(spec) = work.spec {
            let fields = json!({"metadata": {"uid": agreement.uid()}, "spec": spec});
            let applied = self.writer.apply_fields::<GpuNode>(Part::Pool, node.as_str(), fields).await;
            let applied = applied.map_err(failed(format!("writing the agreement of node {node}")))?;
            if let Some(generation) = applied.metadata.generation {
                self.written.insert(node.to_string(), generation);
            }
        }
        self.plugin(fleet, node, work.plugin).await?;
        for ChangeDecision { evictions, notices, canaries, events, .. } in work.decisions {
            for event in events {
                self.metrics.event(event.reason);
                let event_type = if event.warning { EventType::Warning } else { EventType::Normal };
                let regarding = agreement.object_ref(&());
                let (reason, action) = (event.reason, "Change".into());
                self.publisher.publish(Notice { regarding, event_type, reason, action, note: event.message }).await;
            }
            // in this order: kubelet ends a pod that it has just looked at, for its new annotation, up to a second later
            for eviction in evictions {
                self.evict(fleet, eviction).await?;
            }
            for notice in notices {
                self.notify(fleet, notice).await?;
            }
            for canary in canaries {
                self.start_canary(node, canary).await?;
            }
        }
        Ok(())
    }

    /// Writes a pool's status and tells of a new reason of `Ready`, and of other owners that come and go.
    async fn report(
        &self,
        fleet: &Fleet,
        name: &str,
        status: &gputenancy_crds::GpuPoolStatus,
    ) -> Result<(), FleetError> {
        let written = self.writer.apply_status::<GpuPool>(name, status).await;
        written.map_err(failed(format!("writing the status of pool {name}")))?;
        let Some(pool) = fleet.pools.iter().find(|p| p.name_any() == name) else { return Ok(()) };
        let before = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        for (event_type, reason, note) in status::news(before, &status.conditions) {
            let (regarding, action) = (pool.object_ref(&()), "Reconcile".into());
            self.publisher.publish(Notice { regarding, event_type, reason, action, note }).await;
        }
        Ok(())
    }
}

fn all_done(faults: Vec<FleetError>) -> Result<(), FleetError> {
    let count = faults.len();
    match faults.into_iter().next() {
        None => Ok(()),
        Some(only) if count == 1 => Err(only),
        Some(first) => Err(FleetError::Many { count, first: Box::new(first) }),
    }
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> FleetError {
    let doing = doing.into();
    move |source| FleetError::Write { doing, source: Box::new(source) }
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
