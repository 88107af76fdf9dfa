//! The queue of objects to be written: several at a time, each within a deadline and with a back-off of its own.
//!
//! A decision replaces what waits, so that nothing is written that a later decision no longer wants. An object that is being written is
//! not written again at the same time: once it is done, the fleet is decided again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gputenancy_crds::backoff::Backoff;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::{
    FleetWriter, Outcome,
    object::{Finished, ObjectWrite, Target},
    state::{EvictedPods, NodeState},
};
use gputenancy_crds::ids::PodName;
use gputenancy_decisions::fleet::Fleet;

/// Objects that are written at the same time.
const CONCURRENCY: usize = 32;
/// Delays after failed writes of an object in a row.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));

/// Writes that wait, that are in progress, and that failed.
#[derive(Default)]
pub struct WriteQueue {
    /// The objects that the last decision is about, and when it was made.
    decided: Option<(Arc<Fleet>, Instant)>,
    waiting: BTreeMap<Target, ObjectWrite>,
    in_progress: BTreeSet<Target>,
    /// Objects in progress about which a later decision has more to write.
    outdated: BTreeSet<Target>,
    retries: BTreeMap<Target, Retry>,
    /// Objects in progress in the last decision, which counted all that is wanted of a `GpuNode` among them as begun.
    counted: BTreeSet<Target>,
    /// Objects that were written and need a decision at a later time.
    due: BTreeMap<Target, Instant>,
    running: JoinSet<Finished>,
    evicted: EvictedPods,
}

/// When an object is written again after a failure.
#[derive(Debug)]
struct Retry {
    at: Instant,
    /// Failures in a row.
    failures: u32,
    /// The failure that was reported last.
    failure: String,
}

impl WriteQueue {
    /// Replaces what waits by the writes of a new decision about `fleet`, which evicts these pods.
    pub fn replace(
        &mut self,
        fleet: Arc<Fleet>,
        (writes, evicted): (BTreeMap<Target, ObjectWrite>, BTreeSet<PodName>),
    ) {
        let now = Instant::now();
        // an object that is not to be written for a moment, because another one has its turn, keeps its back-off
        self.retries.retain(|target, r| r.at > now || writes.contains_key(target) || self.in_progress.contains(target));
        self.due.retain(|_, at| *at > now);
        self.decided = Some((fleet, now));
        self.evicted.replace(evicted);
        self.counted.clone_from(&self.in_progress);
        self.waiting = writes;
        self.outdated = self.waiting.keys().filter(|t| self.in_progress.contains(*t)).cloned().collect();
        self.waiting.retain(|target, _| {
            !self.in_progress.contains(target) && self.retries.get(target).is_none_or(|r| r.at <= now)
        });
    }

    /// Starts writes, as many as may be in progress; objects that failed come last.
    pub fn start(&mut self, writer: &Arc<FleetWriter>, nodes: &BTreeMap<Target, NodeState>) {
        while self.in_progress.len() < CONCURRENCY {
            let failures = |target: &Target| self.retries.get(target).map_or(0, |r| r.failures);
            let sound = self.waiting.keys().find(|target| failures(target) == 0);
            let next = sound.or_else(|| self.waiting.keys().min_by_key(|target| failures(target))).cloned();
            let write = next.and_then(|target| self.waiting.remove_entry(&target));
            let Some((decided, (target, write))) = self.decided.as_ref().zip(write) else {
                // the next decision writes the fleet in place unless it is in use
                self.decided = None;
                return;
            };
            let failure = self.retries.get(&target).map(|r| r.failure.clone());
            let state = nodes.get(&target).cloned().unwrap_or_default();
            let (fleet, at) = decided.clone();
            let decided = (fleet, at, self.evicted.clone());
            self.running.spawn(write.run(writer.clone(), decided, state, failure));
            self.in_progress.insert(target);
        }
    }

    /// The next write that ends; waits for ever while none is in progress.
    pub async fn finished(&mut self) -> Finished {
        match self.running.join_next().await {
            Some(ended) => unless_panicked(ended).await,
            None => std::future::pending().await,
        }
    }

    /// Notes that a write has ended; true: the fleet has to be decided again.
    pub fn note(&mut self, target: &Target, outcome: &Outcome) -> bool {
        self.in_progress.remove(target);
        let (outdated, counted) = (self.outdated.remove(target), self.counted.remove(target));
        let failures = self.retries.remove(target).map_or(0, |r| r.failures).saturating_add(1);
        let now = Instant::now();
        if let Some(failure) = &outcome.failure {
            let retry = Retry { at: now + RETRY.after(failures), failures, failure: failure.clone() };
            self.retries.insert(target.clone(), retry);
        }
        match outcome.due {
            Some(due) => drop(self.due.insert(target.clone(), now + due)),
            None => drop(self.due.remove(target)),
        }
        // another node may begin now: in place of one that failed, or because the last decision counted more as begun than has begun
        let makes_room = target.gpu_node().is_some() && (counted || outcome.failure.is_some());
        outdated || outcome.again || makes_room
    }

    /// When the fleet has to be decided again, so that the next object is written again.
    pub fn retry_at(&self) -> Option<Instant> {
        let pending = |target: &Target| self.in_progress.contains(target) || self.waiting.contains_key(target);
        let retries = self.retries.iter().filter(|(target, _)| !pending(target)).map(|(_, r)| r.at);
        retries.chain(self.due.values().copied()).min()
    }

    /// `GpuNode`s whose last write failed and is not yet to be repeated.
    pub fn failing(&self) -> BTreeSet<String> {
        let now = Instant::now();
        let failing = self.retries.iter().filter(|(_, r)| r.at > now);
        failing.filter_map(|(target, _)| Some(target.gpu_node()?.to_string())).collect()
    }

    /// `GpuNode`s that are being written.
    pub fn writing(&self) -> BTreeSet<String> {
        self.in_progress.iter().filter_map(|target| Some(target.gpu_node()?.to_string())).collect()
    }

    /// Waits for the writes in progress, and starts none.
    pub async fn complete(mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

/// The result of a task; a panic goes on, because a bug must end the replica. A task is cancelled only when the program ends.
pub async fn unless_panicked<T>(ended: Result<T, JoinError>) -> T {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => std::future::pending().await,
    }
}
