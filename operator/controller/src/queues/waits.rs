//! How long jobs have waited for a place in their queue, each measured once. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_decisions::queues::job;
use kube::{ResourceExt as _, api::DynamicObject};

use super::{
    observe::{Observed, has_condition},
    render::PREFIX,
};

/// The jobs whose wait is measured: those that were admitted when they were last seen.
#[derive(Debug, Default)]
pub struct Waits {
    admitted: BTreeSet<String>,
    /// The jobs that were admitted before this replica led are not its own to measure.
    begun: bool,
}

/// The wait of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// The team.
    pub tenant: String,
    /// The first of the resources that it queued for.
    pub resource: String,
    /// From its creation, or from the end of its last eviction, to its admission.
    pub seconds: f64,
}

impl Waits {
    /// The waits of jobs that were admitted since the last call.
    pub fn ended(&mut self, seen: &Observed) -> Vec<Wait> {
        let admitted: BTreeMap<String, &Arc<DynamicObject>> = seen
            .workloads
            .iter()
            .filter(|workload| has_condition(workload, "Admitted"))
            .filter_map(|workload| Some((workload.uid()?, workload)))
            .collect();
        let new = admitted.iter().filter(|(uid, _)| self.begun && !self.admitted.contains(*uid));
        let waits = new.filter_map(|(_, workload)| wait(workload)).collect();
        self.admitted = admitted.into_keys().collect();
        self.begun = true;
        waits
    }
}

fn wait(workload: &DynamicObject) -> Option<Wait> {
    let admission = workload.data.pointer("/status/admission")?;
    let tenant = admission.get("clusterQueue")?.as_str()?.strip_prefix(PREFIX)?.to_owned();
    let resource = admission.pointer("/podSetAssignments/0/flavors")?.as_object()?.keys().next()?.clone();
    let (since, until) = job::wait(workload)?;
    Some(Wait { tenant, resource, seconds: until.duration_since(since).as_secs_f64().max(0.0) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(uid: &str, admitted: &str, requeued: Option<&str>) -> Arc<DynamicObject> {
        let condition = |type_: &str, at: &str| json!({"type": type_, "status": "True", "lastTransitionTime": at});
        let conditions: Vec<Value> =
            [condition("Admitted", admitted)].into_iter().chain(requeued.map(|at| condition("Requeued", at))).collect();
        let flavors = json!({"nvidia.com/mig-1g.10gb": "gput-p"});
        let status = json!({
            "conditions": conditions,
            "admission": {"clusterQueue": "gput-team-a", "podSetAssignments": [{"name": "main", "flavors": flavors}]},
        });
        let metadata = json!({"name": uid, "uid": uid, "creationTimestamp": "2026-11-30T10:00:00Z"});
        let object =
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "status": status});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn each_wait_is_measured_once_and_those_before_this_leader_are_not() {
        let mut waits = Waits::default();
        let mut seen = Observed { workloads: vec![job("old", "2026-11-30T10:00:01Z", None)], ..Observed::default() };
        assert!(waits.ended(&seen).is_empty());
        seen.workloads.push(job("new", "2026-11-30T10:01:30Z", None));
        let resource = "nvidia.com/mig-1g.10gb".to_owned();
        assert_eq!(waits.ended(&seen), [Wait { tenant: "team-a".into(), resource, seconds: 90.0 }]);
        assert!(waits.ended(&seen).is_empty());
        // queued again after a change of its GPU
        seen.workloads.remove(0);
        waits.ended(&Observed::default());
        seen.workloads[0] = job("new", "2026-11-30T10:05:00Z", Some("2026-11-30T10:04:00Z"));
        assert_eq!(waits.ended(&seen).first().map(|wait| wait.seconds), Some(60.0));
    }
}
