//! The condition about the tenant's queue.

use std::collections::BTreeMap;

use gputenancy_crds::{QueueUse, QueueingSystem, condition::ConditionUpdate, reasons};

use crate::tenant::observe::Observed;

/// Condition of tenants with profiles of pools with `spec.queueing`.
const QUEUE: &str = "QueueReady";

/// The condition; `None`: the tenant queues for nothing.
pub fn condition(seen: &Observed) -> Option<ConditionUpdate> {
    if let Some(queue) = seen.queues.tenants.get(&seen.name()) {
        let update = if queue.ready { ConditionUpdate::yes } else { ConditionUpdate::no };
        return Some(update(QUEUE, queue.reason, queue.message.clone()));
    }
    let queued = |resource: &String| seen.view.queueing_of(resource) == Some(QueueingSystem::Kueue);
    let profile = seen.tenant.spec.gpus.iter().find(|g| seen.granted(&g.profile).is_ok_and(|r| queued(&r)))?;
    if seen.tenant.spec.virtual_cluster.is_some() {
        let message = format!(
            "pools that offer {} have spec.queueing.system: Kueue, and pods of a virtual cluster have no queue: quotas admit them up to the guarantee, \
             and nothing is borrowed or lent",
            profile.profile
        );
        return Some(ConditionUpdate::yes(QUEUE, reasons::QUOTA_ALONE, message));
    }
    let message = format!(
        "pools that offer {} have spec.queueing.system: Kueue, and the operator writes no queues: set queueing.kueue.enabled=true in the chart's \
         values; until then quotas admit pods up to the guarantee",
        profile.profile
    );
    Some(ConditionUpdate::no(QUEUE, reasons::QUEUEING_DISABLED, message))
}

/// The tenant's jobs; `None`: it queues for nothing.
pub fn in_use(seen: &Observed) -> Option<QueueUse> {
    let queue = seen.queues.tenants.get(&seen.name())?;
    Some(QueueUse { waiting: number(queue.waiting), admitted: number(queue.admitted) })
}

/// Devices of a resource that the tenant borrows, and that others borrow of it.
pub fn shared(seen: &Observed, resource: &str) -> (i32, i32) {
    let queue = seen.queues.tenants.get(&seen.name());
    let of = |devices: &BTreeMap<String, i64>| devices.get(resource).copied().map_or(0, number);
    queue.map_or((0, 0), |queue| (of(&queue.borrowed), of(&queue.lent)))
}

fn number(n: i64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
