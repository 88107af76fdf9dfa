//! The jobs of each team that wait, in the order in which Kueue admits them, and those that were suspended for another job.

use std::{cmp::Reverse, collections::BTreeMap};

use gputenancy_decisions::queues::job::{JobCondition, condition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

use crate::{
    cache::kueue::Kind,
    queues::{
        limits::{self, number},
        observe::{Observed, has_condition},
        render::{self, LOCAL_QUEUE},
        teams::QueuedTenant,
    },
};

/// Kueue's condition of a job that is suspended for another one.
const PREEMPTED: &str = "Preempted";
/// A suspension from before this time has no event any more: another replica may have published it.
const STALE: SignedDuration = SignedDuration::from_mins(1);

/// A job of a team.
#[derive(Debug)]
pub(super) struct Job<'s> {
    /// Kueue's object of it.
    pub workload: &'s DynamicObject,
    /// Its uid.
    pub uid: String,
    /// Since when it is in its state.
    pub since: Timestamp,
    /// Its place among the jobs of the team that wait, from 1.
    pub position: usize,
    /// Why it was suspended.
    pub preempted: Option<JobCondition<'s>>,
}

/// The jobs of a team.
#[derive(Debug)]
pub(super) struct TeamJobs<'s> {
    /// The team.
    pub tenant: &'s QueuedTenant,
    /// Devices in use and existing guaranteed ones, by resource of the team.
    pub uses: BTreeMap<&'s str, Uses>,
    /// Those that wait, the next one first.
    pub waiting: Vec<Job<'s>>,
    /// Those that were suspended for another job a short time ago.
    pub suspended: Vec<Job<'s>>,
}

/// What a team uses of a resource, in devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Within the guarantee.
    pub own: i64,
    /// Above it.
    pub borrowed: i64,
    /// Devices of the guarantee that exist.
    pub exist: i64,
}

/// The teams with such jobs.
pub(super) fn teams(seen: &Observed) -> Vec<TeamJobs<'_>> {
    let of_namespace: BTreeMap<&str, usize> = seen
        .tenants
        .iter()
        .enumerate()
        .flat_map(|(at, tenant)| tenant.namespaces.keys().map(move |namespace| (namespace.as_str(), at)))
        .collect();
    let mut jobs: BTreeMap<usize, Vec<&DynamicObject>> = BTreeMap::new();
    for workload in &seen.workloads {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let is_ours = workload.data.pointer("/spec/queueName").is_some_and(|queue| queue == LOCAL_QUEUE);
        if let Some(team) = of_namespace.get(namespace).filter(|_| is_ours && is_open(workload)) {
            jobs.entry(*team).or_default().push(workload);
        }
    }
    jobs.into_iter().filter_map(|(at, jobs)| Some(of_team(seen, seen.tenants.get(at)?, &jobs))).collect()
}

/// Has the job not ended, and is it not taken out of its queue?
fn is_open(workload: &DynamicObject) -> bool {
    let is_active = workload.data.pointer("/spec/active").is_none_or(|active| active.as_bool() != Some(false));
    is_active && !has_condition(workload, "Finished")
}

fn of_team<'s>(seen: &'s Observed, tenant: &'s QueuedTenant, jobs: &[&'s DynamicObject]) -> TeamJobs<'s> {
    let job = |workload: &'s DynamicObject, since: Timestamp, preempted| {
        Some(Job { workload, uid: workload.uid()?, since, position: 0, preempted })
    };
    let waits = jobs.iter().filter_map(|workload| {
        // Kueue has judged it, and has no quota for it
        let reserved = condition(workload, "QuotaReserved").filter(|reserved| !reserved.on)?;
        job(workload, reserved.since, None)
    });
    let mut waiting: Vec<Job<'s>> = waits.collect();
    waiting.sort_by_cached_key(|job| place(job.workload));
    for (at, job) in waiting.iter_mut().enumerate() {
        job.position = at + 1;
    }
    let suspended = jobs.iter().filter_map(|workload| {
        let preempted = condition(workload, PREEMPTED).filter(|preempted| preempted.on)?;
        let is_new = seen.now.duration_since(preempted.since) <= STALE;
        job(workload, preempted.since, Some(preempted)).filter(|_| is_new)
    });
    TeamJobs { tenant, uses: uses(seen, tenant), waiting, suspended: suspended.collect() }
}

/// What Kueue orders jobs of a queue by: their priority, and then the time at which they came. One that was evicted by a check came then.
fn place(workload: &DynamicObject) -> (Reverse<i64>, Timestamp, Option<String>) {
    let priority = workload.data.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or_default();
    let moved = ["AdmissionCheck", "PodsReadyTimeout"];
    let late = |evicted: &JobCondition<'_>| evicted.on && moved.contains(&evicted.reason);
    let created = workload.creation_timestamp().map(|at| at.0).unwrap_or_default();
    let came = condition(workload, "Evicted").filter(late).map_or(created, |evicted| evicted.since);
    (Reverse(priority), came, workload.uid())
}

/// What the team's queue says is in use of each resource.
fn uses<'s>(seen: &'s Observed, tenant: &'s QueuedTenant) -> BTreeMap<&'s str, Uses> {
    let queue = seen.live.get(&(Kind::ClusterQueue, String::new(), render::name(&tenant.team.name)));
    let used = limits::uses(queue.and_then(|queue| queue.data.get("status")));
    let table = limits::table(queue.and_then(|queue| queue.data.get("spec")));
    let of = |resource: &'s String| {
        let used = used.iter().filter(|(cell, _)| cell.resource == *resource).map(|(_, used)| used);
        let (total, borrowed) = used.fold((0, 0), |sum, used| (sum.0 + used.total, sum.1 + used.borrowed));
        let exist = table.iter().filter(|(cell, _)| cell.resource == *resource).map(|(_, limits)| limits.nominal).sum();
        (resource.as_str(), Uses { own: total - borrowed, borrowed, exist })
    };
    tenant.team.gpus.keys().map(of).collect()
}

impl Job<'_> {
    /// Devices that it asks for, of the resources of the team.
    pub fn requests(&self, team: &TeamJobs<'_>) -> BTreeMap<String, i64> {
        let sets = self.workload.data.pointer("/status/resourceRequests").and_then(Value::as_array);
        let resources = sets.into_iter().flatten().filter_map(|set| set.get("resources")?.as_object()).flatten();
        let mut sums = BTreeMap::new();
        for (resource, amount) in resources.filter(|(resource, _)| team.uses.contains_key(resource.as_str())) {
            *sums.entry(resource.clone()).or_default() += number(amount);
        }
        sums.retain(|_, devices| *devices > 0);
        sums
    }
}
