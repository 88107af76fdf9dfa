//! Nodes without a pod of the agent, and since when: the API server has no time for what is absent.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::{fleet::Fleet, liveness::AgentPod};

/// Since when the agent has had no pod, by node. It counts from the start after a restart of the operator.
#[derive(Debug, Default)]
pub struct AbsentAgents(BTreeMap<String, Timestamp>);

impl AbsentAgents {
    /// Adds the absent pods to the fleet, with the time at which they were first seen absent; forgets those that are back.
    pub fn add_to(&mut self, fleet: &mut Fleet, now: Timestamp) {
        let Some(pods) = &mut fleet.agent_pods else { return };
        self.0.retain(|node, _| fleet.gpu_nodes.contains_key(node) && !pods.contains_key(node));
        for node in fleet.gpu_nodes.keys().filter(|node| !pods.contains_key(*node)) {
            self.0.entry(node.clone()).or_insert(now);
        }
        pods.extend(self.0.iter().map(|(node, since)| (node.clone(), AgentPod::Absent { since: Some(*since) })));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn absence_counts_from_its_first_observation_until_the_pod_returns() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut absent = AbsentAgents::default();
        let mut seen = |second, pods: &[&str]| {
            let node = |name: &str| serde_json::json!({"metadata": {"name": name}, "spec": {}});
            let nodes = ["a", "b"].map(|n| (n.to_owned(), Arc::new(serde_json::from_value(node(n)).unwrap())));
            let pods = pods.iter().map(|n| ((*n).to_owned(), AgentPod::Ready { since: None })).collect();
            let mut fleet = Fleet { gpu_nodes: nodes.into(), agent_pods: Some(pods), ..Fleet::default() };
            absent.add_to(&mut fleet, at(second));
            fleet.agent_pods.unwrap().into_values().collect::<Vec<_>>()
        };
        let gone = |second| AgentPod::Absent { since: Some(at(second)) };
        assert_eq!(seen(1, &["a", "b"]), [AgentPod::Ready { since: None }, AgentPod::Ready { since: None }]);
        assert_eq!(seen(2, &["b"]), [gone(2), AgentPod::Ready { since: None }]);
        assert_eq!(seen(3, &[]), [gone(2), gone(3)]);
        assert_eq!(seen(4, &["a"]), [AgentPod::Ready { since: None }, gone(3)]);
        assert_eq!(seen(5, &[]), [gone(5), gone(3)]);
        let mut unwatched = Fleet::default();
        absent.add_to(&mut unwatched, at(6));
        assert_eq!(unwatched.agent_pods, None);
    }
}
