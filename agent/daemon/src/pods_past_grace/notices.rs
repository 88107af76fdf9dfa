//! The event about containers that were stopped after the deadline of their pod.

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons;
use k8s_openapi::api::core::v1::ObjectReference;

use super::OverduePod;

/// The event about these containers of a pod.
pub fn notice(pod: &OverduePod, containers: &[&str]) -> Notice {
    Notice {
        regarding: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        },
        event_type: EventType::Warning,
        reason: reasons::STOPPED_AFTER_DEADLINE,
        action: "Stop".into(),
        note: format!(
            "containers {} still ran 30 seconds after the grace period of the deleted pod, which ended at {}, and are killed: the pod keeps its GPU until they end; correct postStart and preStop hooks that do not end",
            containers.join(", "),
            pod.deadline,
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn event_names_containers_deadline_and_remedy() {
        let deadline = "2026-11-27T12:00:00Z".parse().unwrap();
        let (namespace, name, uid) = ("team-a".into(), "p".into(), "u".into());
        let pod = OverduePod { namespace, name, uid, deadline, grace: Duration::from_secs(30) };
        let notice = notice(&pod, &["main", "proxy"]);
        assert_eq!(notice.regarding.uid.as_deref(), Some("u"));
        assert_eq!(
            notice.note,
            "containers main, proxy still ran 30 seconds after the grace period of the deleted pod, which ended at 2026-11-27T12:00:00Z, and are killed: the pod keeps its GPU until they end; correct postStart and preStop hooks that do not end"
        );
    }
}
