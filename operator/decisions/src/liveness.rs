//! Does the agent of a node report? Decided from the Node, the agent's pod and the `GpuNode`, without I/O and clock.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuNodeStatus, condition, reasons};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};

use gputenancy_crds::projection::{SlimAgentPod, SlimCondition, SlimNode};

/// A silent node counts as supply for this time, so that a restart of kubelet or a rolling upgrade of the agent moves no device.
pub const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// A change on a node that has been silent for this time no longer counts for the pool's `maxUnavailable`.
pub const SLOT_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// The agent's pod on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentPod {
    /// There is none.
    Absent {
        /// Since when, as far as it was observed.
        since: Option<Timestamp>,
    },
    /// It is being deleted, and no other one is there.
    Terminating {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// It is not Ready, or has not started yet.
    NotReady {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// It is Ready.
    Ready {
        /// Since when.
        since: Option<Timestamp>,
    },
}

/// State of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// The Node is Ready, and the agent reports.
    Alive,
    /// The Node is absent or not Ready.
    NodeNotReady,
    /// There is no `GpuNode`, or its status is not of an agent that knows the spec.
    NeverReported,
    /// The agent has reported that it stopped.
    AgentStopped,
    /// The agent does not report, and has not said why.
    AgentSilent(Silence),
}

/// Why an agent counts as silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It has no pod on the node.
    PodAbsent,
    /// Its pod is being deleted.
    PodTerminating,
    /// Its pod is not Ready.
    PodNotReady,
    /// The `GpuNode` has the condition `Ready=Unknown`.
    StatusUnknown,
}

/// Whether the agent of a node reports, and since when it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// The state.
    pub state: AgentState,
    /// Since when; `None`: unknown.
    pub since: Option<Timestamp>,
}

impl Liveness {
    /// The Node is Ready, and the agent reports.
    pub fn is_alive(&self) -> bool {
        self.state == AgentState::Alive
    }

    /// Not alive for at least this time. An unknown time counts as long, and so does one of a clock that is far ahead: the time may be of
    /// the node.
    pub fn is_silent_for(&self, limit: SignedDuration, now: Timestamp) -> bool {
        let ahead = self.since.is_some_and(|since| since.duration_since(now) > GRACE_PERIOD);
        !self.is_alive() && (ahead || self.until(limit).is_none_or(|end| end <= now))
    }

    /// When it will have been silent for this time; `None`: it is alive, or the time is unknown.
    pub fn until(&self, limit: SignedDuration) -> Option<Timestamp> {
        self.since.filter(|_| !self.is_alive())?.checked_add(limit).ok()
    }

    /// The observation about an agent that is not alive.
    pub fn cause(&self) -> Option<&'static str> {
        match self.state {
            AgentState::Alive => None,
            AgentState::NodeNotReady => Some("the Node is not Ready"),
            AgentState::NeverReported => Some("its agent has not reported any GPU yet"),
            AgentState::AgentStopped => Some("its agent has stopped"),
            AgentState::AgentSilent(Silence::PodAbsent) => Some("the agent has no pod there"),
            AgentState::AgentSilent(Silence::PodTerminating) => Some("the agent's pod is being deleted"),
            AgentState::AgentSilent(Silence::PodNotReady) => Some("the agent's pod is not Ready"),
            AgentState::AgentSilent(Silence::StatusUnknown) => Some("its GpuNode has the condition Ready=Unknown"),
        }
    }

    /// The remedy for an agent that is not alive.
    pub fn remedy(&self) -> Option<&'static str> {
        match self.state {
            AgentState::Alive => None,
            AgentState::NodeNotReady => Some("repair the node"),
            AgentState::NeverReported | AgentState::AgentSilent(Silence::PodNotReady | Silence::StatusUnknown) => {
                Some("see the events and the log of the pod of DaemonSet gputenancy-agent there")
            }
            AgentState::AgentSilent(Silence::PodTerminating) => {
                Some("it should end within 30 seconds; if it does not, see kubelet there")
            }
            AgentState::AgentStopped | AgentState::AgentSilent(Silence::PodAbsent) => Some(
                "see that DaemonSet gputenancy-agent selects the node: the labels of one entry of the chart value agent.nodeSelectors \
                 and, with agent.gpuOperatorClient, nvidia.com/gpu.deploy.client=true, which the GPU Operator restores after a \
                 driver upgrade",
            ),
        }
    }
}

/// Liveness of one node's agent. `pod`: `None` where the agent's pods are not watched.
pub fn liveness(node: Option<&SlimNode>, pod: Option<AgentPod>, status: Option<&GpuNodeStatus>) -> Liveness {
    let is_ready = |c: &&SlimCondition| c.type_ == condition::READY;
    let node_ready = node.and_then(|n| n.status.conditions.iter().find(is_ready));
    let is_node_ready = node_ready.is_some_and(|c| c.status == "True");
    // before its first report an agent has observed generation -1
    let Some(status) = status.filter(|s| s.observed_generation.is_some_and(|g| g >= 0)) else {
        let state = if is_node_ready { AgentState::NeverReported } else { AgentState::NodeNotReady };
        return Liveness { state, since: None };
    };
    let of_node = (!is_node_ready).then(|| {
        let since = node_ready.and_then(|c| c.last_transition_time.as_ref());
        (AgentState::NodeNotReady, since.map(|t| t.0))
    });
    let of_status = status.conditions.iter().find(|c| is_unknown(c)).map(|c| {
        let stopped = reasons::AGENT_STOPPED == c.reason.as_str();
        let state = if stopped { AgentState::AgentStopped } else { AgentState::AgentSilent(Silence::StatusUnknown) };
        (state, Some(c.last_transition_time.0))
    });
    let of_pod = match pod {
        None | Some(AgentPod::Ready { .. }) => None,
        Some(AgentPod::Absent { since }) => Some((Silence::PodAbsent, since)),
        Some(AgentPod::Terminating { since }) => Some((Silence::PodTerminating, since)),
        Some(AgentPod::NotReady { since }) => Some((Silence::PodNotReady, since)),
    };
    let of_pod = of_pod.map(|(silence, since)| (AgentState::AgentSilent(silence), since));
    // a pod that is there and does not become Ready says more than its predecessor, which has stopped
    let (present, absent) = match pod {
        Some(AgentPod::Absent { .. }) => (None, of_pod),
        _ => (of_pod, None),
    };
    let found: Vec<_> = of_node.into_iter().chain(present).chain(of_status).chain(absent).collect();
    // the first names the cause; the earliest counts, and an unknown time is the earliest
    if let Some((state, _)) = found.first() {
        return Liveness { state: *state, since: found.iter().map(|(_, since)| *since).min().flatten() };
    }
    let of_pod = if let Some(AgentPod::Ready { since }) = pod { since } else { None };
    let of_node = node_ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    Liveness { state: AgentState::Alive, since: of_node.max(of_pod) }
}

/// The agent's pods by node. Of several on one node the best counts: in a rolling upgrade the new one is there while the old one ends.
pub fn agent_pods<'a>(pods: impl Iterator<Item = &'a SlimAgentPod>) -> BTreeMap<String, AgentPod> {
    let mut by_node = BTreeMap::new();
    for (node, pod) in pods.filter_map(|p| Some((p.spec.node_name.clone()?, agent_pod(p)))) {
        let best = by_node.entry(node).or_insert(pod);
        *best = pod.max(*best);
    }
    by_node
}

fn agent_pod(pod: &SlimAgentPod) -> AgentPod {
    let meta = &pod.metadata;
    if let Some(end) = &meta.deletion_timestamp {
        // the time at which it must have ended
        let grace_period = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or_default());
        return AgentPod::Terminating { since: end.0.checked_sub(grace_period).ok() };
    }
    let ready = pod.status.conditions.iter().find(|c| c.type_ == condition::READY);
    if ready.is_some_and(|c| c.status == "True") {
        return AgentPod::Ready { since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0) };
    }
    let since = ready.and_then(|c| c.last_transition_time.as_ref()).or(meta.creation_timestamp.as_ref());
    AgentPod::NotReady { since: since.map(|t| t.0) }
}

fn is_unknown(ready: &Condition) -> bool {
    ready.type_ == condition::READY && ready.status == "Unknown"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn node(ready: &str, since: i64) -> SlimNode {
        let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": at(since)});
        read(json!({"metadata": {"name": "n"}, "status": {"conditions": [ready]}}))
    }

    fn status(generation: i64, ready: &str, reason: &str, since: i64) -> GpuNodeStatus {
        let ready = json!({
            "type": "Ready", "status": ready, "reason": reason, "message": "", "lastTransitionTime": at(since),
        });
        read(json!({"observedGeneration": generation, "conditions": [ready]}))
    }

    #[test]
    fn liveness_names_the_first_cause_and_the_earliest_time() {
        use AgentState::{AgentSilent, AgentStopped, Alive, NeverReported, NodeNotReady};
        let (ready, lost) = (node("True", 1), node("Unknown", 50));
        let (fine, failed) = (status(3, "True", "Ready", 1), status(3, "False", "GpuUnhealthy", 40));
        let (stopped, unknown) = (status(3, "Unknown", "AgentStopped", 60), status(3, "Unknown", "Lost", 70));
        let early = status(-1, "False", "Starting", 1);
        let absent = |second| Some(AgentPod::Absent { since: Some(at(second)) });
        let not_ready = |second| Some(AgentPod::NotReady { since: Some(at(second)) });
        let terminating = Some(AgentPod::Terminating { since: Some(at(80)) });
        let up = Some(AgentPod::Ready { since: Some(at(5)) });
        let timeless: SlimNode = read(json!({"metadata": {"name": "n"}}));
        let cases = [
            (Some(&ready), up, Some(&fine), Alive, Some(5)),
            (Some(&ready), None, Some(&fine), Alive, Some(1)),
            (Some(&ready), up, Some(&failed), Alive, Some(5)),
            (Some(&lost), up, Some(&fine), NodeNotReady, Some(50)),
            (Some(&lost), absent(30), Some(&stopped), NodeNotReady, Some(30)),
            (Some(&timeless), up, Some(&stopped), NodeNotReady, None),
            (None, up, Some(&fine), NodeNotReady, None),
            (Some(&ready), up, None, NeverReported, None),
            (Some(&ready), not_ready(9), Some(&early), NeverReported, None),
            (Some(&lost), None, None, NodeNotReady, None),
            (Some(&ready), None, Some(&stopped), AgentStopped, Some(60)),
            (Some(&ready), absent(90), Some(&stopped), AgentStopped, Some(60)),
            (Some(&ready), not_ready(90), Some(&stopped), AgentSilent(Silence::PodNotReady), Some(60)),
            (Some(&ready), terminating, Some(&stopped), AgentSilent(Silence::PodTerminating), Some(60)),
            (Some(&ready), up, Some(&unknown), AgentSilent(Silence::StatusUnknown), Some(70)),
            (Some(&ready), absent(90), Some(&fine), AgentSilent(Silence::PodAbsent), Some(90)),
            (Some(&ready), Some(AgentPod::Absent { since: None }), Some(&fine), AgentSilent(Silence::PodAbsent), None),
            (Some(&ready), terminating, Some(&fine), AgentSilent(Silence::PodTerminating), Some(80)),
            (Some(&ready), not_ready(20), Some(&failed), AgentSilent(Silence::PodNotReady), Some(20)),
        ];
        for (node, pod, status, state, since) in cases {
            let found = liveness(node, pod, status);
            assert_eq!(found, Liveness { state, since: since.map(at) }, "{node:?} {pod:?} {status:?}");
            assert_eq!(found.is_alive(), found.cause().is_none() && found.remedy().is_none());
        }
    }

    #[test]
    fn silence_without_a_time_counts_as_long() {
        let silent = |since| Liveness { state: AgentState::AgentStopped, since };
        let limit = SignedDuration::from_secs(60);
        assert!(!silent(Some(at(100))).is_silent_for(limit, at(159)));
        assert!(silent(Some(at(100))).is_silent_for(limit, at(160)));
        assert!(silent(None).is_silent_for(limit, at(0)));
        assert!(silent(Some(at(1000))).is_silent_for(limit, at(100)), "a clock that is far ahead");
        assert!(!silent(Some(at(130))).is_silent_for(limit, at(100)), "a clock that is a little ahead");
        assert!(!Liveness { state: AgentState::Alive, since: Some(at(1)) }.is_silent_for(limit, at(900)));
    }

    #[test]
    fn the_best_pod_of_a_node_counts() {
        let pod = |node: Value, meta: Value, ready: Value| -> SlimAgentPod {
            read(json!({"metadata": meta, "spec": {"nodeName": node}, "status": {"conditions": ready}}))
        };
        let ready = |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": at(5)}]);
        let created = json!({"creationTimestamp": at(3)});
        let deleted = json!({"deletionTimestamp": at(40), "deletionGracePeriodSeconds": 30});
        let pods = [
            pod(json!("upgraded"), deleted.clone(), ready("True")),
            pod(json!("upgraded"), created.clone(), ready("True")),
            pod(json!("upgrading"), deleted.clone(), ready("True")),
            pod(json!("upgrading"), created.clone(), ready("False")),
            pod(json!("leaving"), deleted, ready("True")),
            pod(json!("new"), created.clone(), json!([])),
            pod(Value::Null, created, json!([])),
        ];
        let found = agent_pods(pods.iter());
        let expected = [
            ("leaving", AgentPod::Terminating { since: Some(at(10)) }),
            ("new", AgentPod::NotReady { since: Some(at(3)) }),
            ("upgraded", AgentPod::Ready { since: Some(at(5)) }),
            ("upgrading", AgentPod::NotReady { since: Some(at(5)) }),
        ];
        assert_eq!(found, expected.map(|(node, pod)| (node.to_owned(), pod)).into());
    }
}
