//! The state of each pool's queues. Pure.

use std::collections::BTreeMap;

use gputenancy_crds::reasons::{self, Reason};
use gputenancy_decisions::{fleet_view::PoolView, queues::PoolQueue};

use super::{
    observe::{Observed, has_condition, is_ours},
    render::{self, CHECK, Key},
};
use crate::cache::kueue::Kind;

/// Of every pool with queues, whether Kueue admits jobs for its devices.
pub fn states(seen: &Observed) -> BTreeMap<String, PoolQueue> {
    seen.pools.iter().map(|(name, pool)| (name.clone(), state(seen, name, pool))).collect()
}

fn state(seen: &Observed, name: &str, pool: &PoolView) -> PoolQueue {
    let flavor = render::flavor_name(name, pool);
    let not = |reason: Reason, message: String| PoolQueue { ready: false, reason, message };
    let check: Key = (Kind::AdmissionCheck, String::new(), CHECK.to_owned());
    let levels = (!pool.queueing.topology.is_empty()).then(|| (Kind::Topology, String::new(), flavor.clone()));
    let spare: Key = (Kind::Cohort, String::new(), render::SPARE.to_owned());
    let keys: Vec<Key> =
        levels.into_iter().chain([(Kind::ResourceFlavor, String::new(), flavor), check.clone(), spare]).collect();
    let is_foreign = |key: &&Key| seen.live.get(*key).is_some_and(|live| !is_ours(live));
    if let Some((kind, _, name)) = keys.iter().find(is_foreign) {
        let message = format!(
            "{} {name} was not written by the operator, which leaves it as it is: delete it, or set spec.queueing.system: None",
            kind.name()
        );
        return not(reasons::QUEUE_FOREIGN, message);
    }
    if let Some((kind, _, name)) = keys.iter().find(|key| !seen.live.contains_key(*key)) {
        let message = format!(
            "{} {name} is not written yet: if this stays, see that Kueue 0.16 or later is installed and runs",
            kind.name()
        );
        return not(reasons::QUEUE_PENDING, message);
    }
    if seen.live.get(&check).is_none_or(|live| !has_condition(live, "Active")) {
        let message = format!(
            "AdmissionCheck {CHECK} is not active yet, so that Kueue starts no job: if this stays, read the operator's log"
        );
        return not(reasons::QUEUE_NOT_ACTIVE, message);
    }
    let teams = seen.tenants.iter().filter(|tenant| tenant.team.gpus.keys().any(|r| pool.resources.contains(r)));
    let message = match teams.count() {
        1 => "Kueue admits jobs of one team".to_owned(),
        teams => format!("Kueue admits jobs of {teams} teams"),
    };
    PoolQueue { ready: true, reason: reasons::QUEUED, message }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gputenancy_crds::{Queueing, QueueingSystem, names};
    use kube::api::DynamicObject;
    use serde_json::{Value, json};

    use super::*;

    /// A pool with queues, and these objects of Kueue, with the operator's label or without.
    fn seen(objects: &[(Kind, &str, bool)], status: &Value) -> Observed {
        let queueing = Queueing { system: QueueingSystem::Kueue, topology: Vec::new() };
        let live = objects.iter().map(|(kind, name, ours)| {
            let by = if *ours { names::MANAGED_BY } else { "someone" };
            let metadata = json!({"name": name, "labels": {names::MANAGED_BY_LABEL: by}});
            let object = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind.name(), "metadata": metadata, "status": status,
            });
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            ((*kind, String::new(), (*name).to_owned()), Arc::new(object))
        });
        Observed {
            pools: [("p".to_owned(), PoolView { queueing, ..PoolView::default() })].into(),
            live: live.collect(),
            ..Observed::default()
        }
    }

    fn state_of(objects: &[(Kind, &str, bool)], check: &Value) -> (bool, &'static str) {
        let found = states(&seen(objects, check));
        (found["p"].ready, found["p"].reason.as_str())
    }

    #[test]
    fn pool_is_ready_once_its_objects_are_written_and_the_check_is_active() {
        let all = [
            (Kind::ResourceFlavor, "gput-p", true),
            (Kind::AdmissionCheck, CHECK, true),
            (Kind::Cohort, render::SPARE, true),
        ];
        let active = json!({"conditions": [{"type": "Active", "status": "True"}]});
        assert_eq!(state_of(&[], &json!({})), (false, "QueuePending"), "Kueue is not installed");
        assert_eq!(state_of(&all, &json!({})), (false, "QueueNotActive"));
        assert_eq!(state_of(&all, &active), (true, "Queued"));
    }

    #[test]
    fn object_of_another_writer_is_named() {
        let seen = seen(&[(Kind::ResourceFlavor, "gput-p", false)], &json!({}));
        let state = &states(&seen)["p"];
        assert_eq!((state.ready, state.reason.as_str()), (false, "QueueForeign"));
        assert!(state.message.starts_with("ResourceFlavor gput-p was not written"), "{}", state.message);
    }
}
