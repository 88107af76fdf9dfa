//! What to write in the tenant's namespace, and how far the control plane is. Pure.

pub mod adoption;
pub mod conditions;
pub mod suspicious;
pub mod upgrade;

use std::collections::BTreeMap;

use gputenancy_cluster::desired::includes;
use gputenancy_crds::{VirtualClusterBackend, VirtualClusterStatus, vcluster};
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::Value;

use crate::{
    host::Live,
    names,
    render::objects::{Kind, Object, Replicas},
};

/// Longest text of a pod in a message, in bytes.
const MOST_TEXT: usize = 400;

/// Identity of an object in the namespace.
pub type Key = (Kind, String);

/// Versions of objects that the API server keeps in another form than the wanted one: applied once, and not again at this version.
pub type Settled = BTreeMap<Key, String>;

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Apply the object; `repairs`: it had been applied before, and was changed or deleted.
    Apply {
        /// The object.
        object: Object,
        /// An event reports it.
        repairs: bool,
    },
    /// Delete an object that is no longer rendered.
    Delete(Key),
    /// Set the replicas of a workload to zero, and change nothing else of it.
    Stop(Key),
}

/// The backend with which objects were written, before the present spec; `None`: nothing was written yet. A status of a release without
/// backends is of [`VirtualClusterBackend::Helm`].
pub fn installed(status: Option<&VirtualClusterStatus>) -> Option<VirtualClusterBackend> {
    let status = status.filter(|s| **s != VirtualClusterStatus::default())?;
    Some(status.backend.unwrap_or_default())
}

/// The writes that make the live objects as wanted. `complete`: all objects of this rendering were applied before, so a difference is a change
/// from outside; otherwise each is applied once, which also removes fields that an earlier rendering had.
pub fn writes(wanted: &[Object], live: &[Live], settled: &Settled, complete: bool) -> Vec<Write> {
    let present: BTreeMap<Key, &Live> = live.iter().map(|l| ((l.kind, l.name.clone()), l)).collect();
    let key = |object: &Object| (object.kind, object.name.clone());
    let as_wanted = |object: &&Object| {
        present.get(&key(object)).is_some_and(|live| {
            includes(&live.content, &object.content)
                || live.version.as_ref().is_some_and(|version| settled.get(&key(object)) == Some(version))
        })
    };
    let applied = wanted
        .iter()
        .filter(|object| !complete || !as_wanted(object))
        .map(|object| Write::Apply { object: object.clone(), repairs: complete });
    let stale = present.keys().filter(|k| !wanted.iter().any(|object| key(object) == **k));
    // the kubeconfig is this program's too, and not rendered
    let stale = stale.filter(|(_, name)| name != names::KUBECONFIG_SECRET);
    applied.chain(stale.map(|k| Write::Delete(k.clone()))).collect()
}

/// What becomes of the replicas: a pause by `vcluster pause` is respected.
pub fn replicas(suspend: bool, live: &[Live]) -> Replicas {
    let paused = |l: &Live| {
        l.kind.is_workload()
            && l.content
                .pointer("/metadata/annotations")
                .and_then(|a| a.get(vcluster::PAUSED))
                .is_some_and(|v| v == "true")
    };
    match (suspend, live.iter().any(paused)) {
        (true, _) => Replicas::Zero,
        (false, true) => Replicas::Kept,
        (false, false) => Replicas::Rendered,
    }
}

/// Workloads that are not scaled to zero.
pub fn unstopped(live: &[Live]) -> impl Iterator<Item = &Live> {
    let replicas = |l: &Live| l.content.pointer("/spec/replicas").and_then(Value::as_i64);
    live.iter().filter(move |l| l.kind.is_workload() && replicas(l) != Some(0))
}

/// State of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlane {
    /// Stopped on purpose.
    Paused,
    /// Not ready; why.
    Starting(String),
    /// All replicas are ready.
    Ready,
}

/// The workload of the control plane, which has the tenant's name: `NAME-etcd` of the chart has the label of the same chart.
fn control_plane_of<'l>(name: &str, live: &'l [Live]) -> Option<&'l Live> {
    live.iter().find(|l| l.kind.is_workload() && l.name == name)
}

/// The version of vCluster that runs, from the label of its chart on the workload: it is written with the workload, before any status.
pub fn running_version(name: &str, live: &[Live]) -> Option<String> {
    let workload = control_plane_of(name, live)?;
    let chart = workload.content.pointer("/metadata/labels")?.get(vcluster::CHART)?.as_str()?;
    chart.strip_prefix("vcluster-").map(str::to_owned)
}

/// The objects with the generations that the API server has given them for the writes of this reconcile: a control plane that was ready before these
/// writes is that of the former spec.
pub fn after_writes(mut live: Vec<Live>, generations: &BTreeMap<Key, i64>) -> Vec<Live> {
    for object in &mut live {
        let generation = generations.get(&(object.kind, object.name.clone()));
        let metadata = object.content.pointer_mut("/metadata").and_then(Value::as_object_mut);
        if let (Some(generation), Some(metadata)) = (generation, metadata) {
            metadata.insert("generation".into(), (*generation).into());
        }
    }
    live
}

/// State of the control plane from its workload and pods.
pub fn control_plane(name: &str, replicas: Replicas, live: &[Live], pods: &[Pod]) -> ControlPlane {
    if replicas != Replicas::Rendered {
        return ControlPlane::Paused;
    }
    let Some(workload) = control_plane_of(name, live) else {
        return ControlPlane::Starting("its workload does not exist yet".into());
    };
    let number = |at: &str| workload.content.pointer(at).and_then(Value::as_i64).unwrap_or(0);
    let wanted = number("/spec/replicas");
    if wanted == 0 {
        return ControlPlane::Starting(format!(
            "{} {name} has no replicas; it gets them when its objects are applied",
            workload.kind.kind
        ));
    }
    let current = number("/status/observedGeneration") >= number("/metadata/generation");
    let updated = number("/status/updatedReplicas");
    // a Deployment keeps the old pod until the new one is ready
    let alone = number("/status/replicas") <= updated;
    if current && number("/status/readyReplicas") >= wanted && updated >= wanted && alone {
        return ControlPlane::Ready;
    }
    let kind = workload.kind.kind;
    ControlPlane::Starting(why(pods).unwrap_or_else(|| {
        if pods.is_empty() {
            format!("it has no pod; see the events of {kind} {name}")
        } else {
            "its pod is not ready yet".into()
        }
    }))
}

/// All pods of the workload's present template have been ready at a time: its controller records that, and keeps it until the template changes.
/// Without replicas it counts as done at once.
pub fn rolled_out(name: &str, live: &[Live]) -> bool {
    let Some(Live { content, .. }) = control_plane_of(name, live) else { return false };
    let number = |at: &str| content.pointer(at).and_then(Value::as_i64).unwrap_or(0);
    let text = |at: &str| content.pointer(at).and_then(Value::as_str);
    let revision = |at: &str| text(at).filter(|revision| !revision.is_empty());
    let conditions = content.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    // a StatefulSet, whose revisions are equal from the beginning; and a Deployment
    let revisions = revision("/status/currentRevision")
        .is_some_and(|now| revision("/status/updateRevision") == Some(now))
        && (number("/metadata/generation") > 1 || number("/status/readyReplicas") > 0);
    let available = conditions.into_iter().any(|c| {
        c.get("type").is_some_and(|t| t == "Progressing")
            && c.get("reason").is_some_and(|r| r == "NewReplicaSetAvailable")
    });
    number("/status/observedGeneration") >= number("/metadata/generation") && (revisions || available)
}

/// Pods of an earlier template that are not ready, where a `StatefulSet` replaces none before they are (`podManagementPolicy: OrderedReady`).
pub fn left_behind(name: &str, live: &[Live], pods: &[Pod], now: Timestamp) -> Vec<Pod> {
    let workload = control_plane_of(name, live);
    let text = |at: &str| workload.and_then(|w| w.content.pointer(at)?.as_str());
    if text("/spec/podManagementPolicy") != Some("OrderedReady") {
        return Vec::new();
    }
    let Some(revision) = text("/status/updateRevision").filter(|revision| !revision.is_empty()) else {
        return Vec::new();
    };
    let earlier = |pod: &&Pod| {
        let hash = pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
        hash.is_some_and(|hash| hash != revision) && ready_for(pod, now).is_none()
    };
    pods.iter().filter(earlier).cloned().collect()
}

/// How long a pod has been ready; `None`: it is not.
pub fn ready_for(pod: &Pod, now: Timestamp) -> Option<SignedDuration> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(now.duration_since(ready.last_transition_time.as_ref()?.0))
}

/// What its pods wait for, in the words of kubelet and scheduler.
fn why(pods: &[Pod]) -> Option<String> {
    pods.iter().find_map(|pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let status = pod.status.as_ref()?;
        let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        let waiting = containers.filter_map(|c| c.state.as_ref()?.waiting.as_ref()).find_map(|w| {
            let reason = w.reason.as_deref().filter(|r| !["PodInitializing", "ContainerCreating"].contains(r))?;
            Some(format!("pod {name}: {reason}: {}", brief(w.message.as_deref().unwrap_or_default())))
        });
        waiting.or_else(|| {
            let conditions = status.conditions.iter().flatten();
            let unscheduled = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
            unscheduled.filter_map(|c| c.message.as_deref()).map(|m| format!("pod {name}: {}", brief(m))).next()
        })
    })
}

/// A text of a pod, shortened: who makes a pod with the labels of the control plane chooses it.
fn brief(text: &str) -> String {
    let text = text.get(..text.floor_char_boundary(MOST_TEXT)).unwrap_or_default();
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::render::objects::KINDS;

    fn kind(name: &str) -> Kind {
        *KINDS.iter().find(|k| k.kind == name).unwrap()
    }

    fn wanted(kind_name: &str, content: Value) -> Object {
        Object { kind: kind(kind_name), name: "team-a".into(), content }
    }

    fn live(kind_name: &str, content: Value) -> Live {
        Live { kind: kind(kind_name), name: "team-a".into(), version: Some("7".into()), content }
    }

    #[test]
    fn nothing_is_written_at_rest() {
        let objects = [wanted("Service", json!({"spec": {"ports": [{"port": 443}]}}))];
        let present = [live("Service", json!({"spec": {"ports": [{"port": 443, "protocol": "TCP"}]}}))];
        assert_eq!(writes(&objects, &present, &Settled::new(), true), []);
    }

    #[test]
    fn changed_missing_and_stale_objects_are_written() {
        let objects = [wanted("Service", json!({"spec": {"a": 1}})), wanted("StatefulSet", json!({"spec": {"b": 1}}))];
        let present = [live("Service", json!({"spec": {"a": 2}})), live("Deployment", json!({}))];
        let done = writes(&objects, &present, &Settled::new(), true);
        let [Write::Apply { object: first, repairs: true }, Write::Apply { object: second, .. }, Write::Delete(stale)] =
            done.as_slice()
        else {
            panic!("{done:?}")
        };
        assert_eq!((first.kind.kind, second.kind.kind, stale.0.kind), ("Service", "StatefulSet", "Deployment"));
    }

    #[test]
    fn object_kept_in_another_form_is_applied_once() {
        let objects = [wanted("Service", json!({"spec": {"a": 1}}))];
        let present = [live("Service", json!({"spec": {"a": "one"}}))];
        let settled = Settled::from([((kind("Service"), "team-a".to_owned()), "7".to_owned())]);
        assert_eq!(writes(&objects, &present, &settled, true), []);
        let older = Settled::from([((kind("Service"), "team-a".to_owned()), "6".to_owned())]);
        assert_eq!(writes(&objects, &present, &older, true).len(), 1);
    }

    #[test]
    fn objects_of_a_new_rendering_are_all_applied_once() {
        let objects = [wanted("Service", json!({"spec": {"a": 1}}))];
        let present = [live("Service", json!({"spec": {"a": 1, "removed": true}}))];
        let done = writes(&objects, &present, &Settled::new(), false);
        assert!(matches!(done.as_slice(), [Write::Apply { repairs: false, .. }]), "{done:?}");
    }

    #[test]
    fn running_version_is_that_of_the_chart() {
        let workload = live("StatefulSet", json!({"metadata": {"labels": {"chart": "vcluster-0.36.1"}}}));
        assert_eq!(running_version("team-a", &[workload]).as_deref(), Some("0.36.1"));
        assert_eq!(running_version("team-a", &[]), None);
    }

    #[test]
    fn store_of_the_control_plane_is_not_the_control_plane() {
        let status = json!({"currentRevision": "a", "updateRevision": "a", "readyReplicas": 1});
        let content = json!({"metadata": {"labels": {"chart": "vcluster-0.36.1"}}, "status": status});
        let etcd = Live { name: "team-a-etcd".into(), ..live("StatefulSet", content) };
        assert_eq!(running_version("team-a", std::slice::from_ref(&etcd)), None);
        assert!(!rolled_out("team-a", std::slice::from_ref(&etcd)));
        let fresh = json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "currentRevision": "a", "updateRevision": "a"}});
        assert!(!rolled_out("team-a", &[etcd, live("StatefulSet", fresh)]), "never ready");
    }

    #[test]
    fn pause_by_a_person_is_respected_and_reported() {
        let paused = live("StatefulSet", json!({"metadata": {"annotations": {"loft.sh/paused": "true"}}}));
        assert_eq!(replicas(false, std::slice::from_ref(&paused)), Replicas::Kept);
        assert_eq!(replicas(true, &[paused]), Replicas::Zero);
        assert_eq!(replicas(false, &[live("StatefulSet", json!({}))]), Replicas::Rendered);
        assert_eq!(control_plane("team-a", Replicas::Kept, &[], &[]), ControlPlane::Paused);
    }

    #[test]
    fn control_plane_is_ready_with_all_replicas_of_its_generation() {
        let state = |status: Value| {
            let workload = json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status});
            control_plane("team-a", Replicas::Rendered, &[live("StatefulSet", workload)], &[])
        };
        assert_eq!(
            state(json!({"observedGeneration": 2, "readyReplicas": 1, "updatedReplicas": 1})),
            ControlPlane::Ready
        );
        let old = state(json!({"observedGeneration": 1, "readyReplicas": 1, "updatedReplicas": 1}));
        assert_eq!(old, ControlPlane::Starting("it has no pod; see the events of StatefulSet team-a".into()));
    }

    #[test]
    fn control_plane_that_was_ready_before_a_write_of_its_spec_is_starting() {
        let status = json!({"observedGeneration": 2, "readyReplicas": 1, "updatedReplicas": 1});
        let workload = json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status});
        let state = |generation| {
            let written = BTreeMap::from([((kind("StatefulSet"), "team-a".to_owned()), generation)]);
            let live = after_writes(vec![live("StatefulSet", workload.clone())], &written);
            control_plane("team-a", Replicas::Rendered, &live, &[])
        };
        assert_eq!(state(2), ControlPlane::Ready, "the write changed a label");
        assert!(matches!(state(3), ControlPlane::Starting(_)));
    }

    #[test]
    fn status_without_a_backend_is_of_helm() {
        assert_eq!(installed(None), None);
        assert_eq!(installed(Some(&VirtualClusterStatus::default())), None);
        let old = VirtualClusterStatus { version: Some("0.36.1".into()), ..VirtualClusterStatus::default() };
        assert_eq!(installed(Some(&old)), Some(VirtualClusterBackend::Helm));
        let external = VirtualClusterStatus { backend: Some(VirtualClusterBackend::External), ..old };
        assert_eq!(installed(Some(&external)), Some(VirtualClusterBackend::External));
    }

    #[test]
    fn deployment_is_not_ready_while_it_keeps_a_pod_of_the_old_template() {
        let workload = |replicas: i64| {
            let status = json!({"readyReplicas": 1, "updatedReplicas": 1, "replicas": replicas});
            live("Deployment", json!({"spec": {"replicas": 1}, "status": status}))
        };
        let state = |replicas| control_plane("team-a", Replicas::Rendered, &[workload(replicas)], &[]);
        assert!(matches!(state(2), ControlPlane::Starting(_)), "{:?}", state(2));
        assert_eq!(state(1), ControlPlane::Ready);
    }

    #[test]
    fn workload_records_that_its_template_was_ready_once() {
        let set = |observed: i64, current: &str| {
            let status = json!({"observedGeneration": observed, "currentRevision": current, "updateRevision": "new"});
            rolled_out("team-a", &[live("StatefulSet", json!({"metadata": {"generation": 2}, "status": status}))])
        };
        assert!(set(2, "new") && !set(2, "old") && !set(1, "new") && !set(2, ""));
        let deployment = |reason: &str| {
            let conditions = json!([{"type": "Available", "reason": "x"}, {"type": "Progressing", "reason": reason}]);
            rolled_out("team-a", &[live("Deployment", json!({"status": {"conditions": conditions}}))])
        };
        assert!(deployment("NewReplicaSetAvailable"));
        assert!(!deployment("ReplicaSetUpdated") && !deployment("ProgressDeadlineExceeded"));
        assert!(!rolled_out("team-a", &[live("StatefulSet", json!({}))]) && !rolled_out("team-a", &[]));
    }

    #[test]
    fn only_unready_pods_of_an_earlier_template_are_in_the_way() {
        let workload = |policy: &str| {
            live("StatefulSet", json!({"spec": {"podManagementPolicy": policy}, "status": {"updateRevision": "b"}}))
        };
        let pod = |name: &str, hash: &str, ready: &str| -> Pod {
            let condition = json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let metadata = json!({"name": name, "labels": {"controller-revision-hash": hash}});
            serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [condition]}})).unwrap()
        };
        let pods = [pod("broken", "a", "False"), pod("ready", "a", "True"), pod("new", "b", "False"), Pod::default()];
        let names = |policy: &str| -> Vec<String> {
            let found = left_behind("team-a", &[workload(policy)], &pods, Timestamp::UNIX_EPOCH);
            found.into_iter().filter_map(|pod| pod.metadata.name).collect()
        };
        assert_eq!(names("OrderedReady"), ["broken"]);
        assert_eq!(names("Parallel"), Vec::<String>::new(), "its controller replaces them by itself");
    }

    #[test]
    fn control_plane_without_replicas_is_not_ready() {
        let workload = live("StatefulSet", json!({"spec": {"replicas": 0}}));
        let ControlPlane::Starting(why) = control_plane("team-a", Replicas::Rendered, &[workload], &[]) else {
            panic!("it counts as ready or paused")
        };
        assert!(why.starts_with("StatefulSet team-a has no replicas"), "{why}");
    }

    #[test]
    fn only_workloads_with_replicas_are_stopped() {
        let all = [
            live("Service", json!({"spec": {}})),
            live("StatefulSet", json!({"spec": {"replicas": 0}})),
            live("Deployment", json!({"spec": {}})),
            live("StatefulSet", json!({"spec": {"replicas": 2}})),
        ];
        let names: Vec<_> = unstopped(&all).map(|l| l.kind.kind).collect();
        assert_eq!(names, ["Deployment", "StatefulSet"]);
    }

    #[test]
    fn waiting_pod_says_why() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "team-a-0"},
            "status": {"containerStatuses": [{"name": "syncer", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]},
        }))
        .unwrap();
        let workload = live("StatefulSet", json!({"spec": {"replicas": 1}}));
        let state = control_plane("team-a", Replicas::Rendered, &[workload], &[pod]);
        assert_eq!(state, ControlPlane::Starting("pod team-a-0: ImagePullBackOff: not found".into()));
    }

    #[test]
    fn pod_is_ready_since_its_condition() {
        let pod: Pod = serde_json::from_value(json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]}}))
        .unwrap();
        let now = "2026-01-01T00:01:30Z".parse().unwrap();
        assert_eq!(ready_for(&pod, now), Some(SignedDuration::from_secs(90)));
        assert_eq!(ready_for(&Pod::default(), now), None);
    }

    #[test]
    fn text_of_a_pod_is_short_and_has_no_control_characters() {
        let text = brief(&format!("\u{1b}[2J{}", "ä".repeat(1 << 16)));
        assert!(text.len() <= MOST_TEXT && text.starts_with(" [2Jä"), "{text}");
    }
}
