//! What the queues of teams say is in use. Pure.

use std::collections::BTreeMap;

use gputenancy_decisions::queues::{Shares, Uses, lent};
use kube::api::DynamicObject;
use serde_json::Value;

use super::{limits, observe::Observed, render, view::TenantQueue};
use crate::cache::kueue::Kind;

/// By team.
pub struct Usage<'s> {
    queues: BTreeMap<String, &'s DynamicObject>,
    uses: Uses,
    lent: BTreeMap<(String, String), i64>,
}

impl<'s> Usage<'s> {
    /// Reads the statuses of the queues.
    pub fn of(seen: &'s Observed, shares: &Shares) -> Self {
        let queue = |team: &String| {
            let key = (Kind::ClusterQueue, String::new(), render::name(team));
            Some((team.clone(), &**seen.live.get(&key)?))
        };
        let queues: BTreeMap<String, &DynamicObject> =
            seen.tenants.iter().filter_map(|tenant| queue(&tenant.team.name)).collect();
        let uses: Uses =
            queues.iter().map(|(team, queue)| (team.clone(), limits::uses(queue.data.get("status")))).collect();
        let lent = lent(&shares.teams, &shares.spare, &uses);
        Self { queues, uses, lent }
    }

    /// Adds what the team and others use.
    pub fn fill_in(&self, team: &str, queue: &mut TenantQueue) {
        for (cell, used) in self.uses.get(team).into_iter().flatten().filter(|(_, used)| used.borrowed > 0) {
            *queue.borrowed.entry(cell.resource.clone()).or_default() += used.borrowed;
        }
        let lent = self.lent.iter().filter(|((name, _), _)| name == team);
        queue.lent = lent.map(|((_, resource), n)| (resource.clone(), *n)).collect();
        let status = self.queues.get(team).and_then(|queue| queue.data.get("status"));
        let count = |field| status.and_then(|status| status.get(field)).and_then(Value::as_i64).unwrap_or_default();
        queue.waiting = count("pendingWorkloads");
        queue.admitted = count("admittedWorkloads");
    }
}
