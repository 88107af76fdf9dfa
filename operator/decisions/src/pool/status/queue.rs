//! The condition about the pool's queues.

use std::collections::BTreeMap;

use gputenancy_crds::{
    GpuPool, QueueingSystem,
    condition::ConditionUpdate,
    reasons::{self, Reason},
};
use kube::ResourceExt as _;

use crate::queues::PoolQueue;

/// Condition of pools with `spec.queueing`.
const QUEUE: &str = "QueueReady";

/// The condition; `None`: pods wait in no queue for the pool's devices, or nothing is known of its queues yet.
pub(super) fn condition(pool: &GpuPool, queues: Option<&BTreeMap<String, PoolQueue>>) -> Option<ConditionUpdate> {
    if pool.spec.queueing.system != QueueingSystem::Kueue || pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let Some(queues) = queues else {
        let message = "the operator writes no queues: set queueing.kueue.enabled=true in the chart's values; until then quotas admit \
                       pods up to the guarantee";
        return Some(ConditionUpdate::no(QUEUE, reasons::QUEUEING_DISABLED, message));
    };
    let Some(queue) = queues.get(&pool.name_any()) else { return unchanged(pool) };
    let update = if queue.ready { ConditionUpdate::yes } else { ConditionUpdate::no };
    Some(update(QUEUE, queue.reason, queue.message.clone()))
}

/// The condition as it is: after a start the queues have not been decided yet.
fn unchanged(pool: &GpuPool) -> Option<ConditionUpdate> {
    let old = pool.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == QUEUE)?;
    let reason = Reason::listed(&old.reason)?;
    let status = Some(old.status == "True");
    Some(ConditionUpdate { type_: QUEUE, status, reason, message: old.message.clone() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(queueing: &Value, conditions: &Value) -> GpuPool {
        let selector = json!({"matchLabels": {"x": "y"}});
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"nodeSelector": selector, "profiles": ["small"], "queueing": queueing},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn queue(ready: bool, reason: Reason) -> BTreeMap<String, PoolQueue> {
        [("p".to_owned(), PoolQueue { ready, reason, message: "m".into() })].into()
    }

    #[test]
    fn pool_without_queues_has_no_condition_about_them() {
        assert_eq!(condition(&pool(&json!({}), &json!([])), Some(&queue(true, reasons::QUEUED))), None);
    }

    #[test]
    fn condition_is_that_of_the_queues_and_names_a_chart_without_them() {
        let kueue = pool(&json!({"system": "Kueue"}), &json!([]));
        let ready = condition(&kueue, Some(&queue(true, reasons::QUEUED)));
        assert_eq!(ready, Some(ConditionUpdate::yes(QUEUE, reasons::QUEUED, "m")));
        let foreign = condition(&kueue, Some(&queue(false, reasons::QUEUE_FOREIGN)));
        assert_eq!(foreign, Some(ConditionUpdate::no(QUEUE, reasons::QUEUE_FOREIGN, "m")));
        let disabled = condition(&kueue, None).unwrap();
        assert_eq!((disabled.status, disabled.reason), (Some(false), reasons::QUEUEING_DISABLED));
        assert!(disabled.message.contains("queueing.kueue.enabled=true"), "{disabled:?}");
    }

    #[test]
    fn condition_stays_until_the_queues_are_decided() {
        let old = json!([{
            "type": QUEUE, "status": "True", "reason": "Queued", "message": "as before", "lastTransitionTime": "2026-11-01T08:00:00Z",
        }]);
        let before = pool(&json!({"system": "Kueue"}), &old);
        let kept = condition(&before, Some(&BTreeMap::new()));
        assert_eq!(kept, Some(ConditionUpdate::yes(QUEUE, reasons::QUEUED, "as before")));
        let new = pool(&json!({"system": "Kueue"}), &json!([]));
        assert_eq!(condition(&new, Some(&BTreeMap::new())), None);
    }
}
