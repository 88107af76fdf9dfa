//! The event about a container with variables that admission would have refused.

use gputenancy_crds::reasons;
use gputenancy_service::events::{EventType, Notice};
use k8s_openapi::api::core::v1::ObjectReference;

use super::{Answer, Suspect};

/// The event about these variables of a container.
pub fn notice(suspect: &Suspect, variables: &[&str], answer: Answer) -> Notice {
    let (action, outcome) = match answer {
        Answer::Stop => ("Stop", "the container is stopped each time that it starts"),
        Answer::Tell => ("Tell", "the container goes on"),
    };
    Notice {
        regarding: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(suspect.namespace.clone()),
            name: Some(suspect.pod.clone()),
            uid: Some(suspect.uid.clone()),
            field_path: Some(format!("spec.containers{{{}}}", suspect.container)),
            ..ObjectReference::default()
        },
        event_type: EventType::Warning,
        reason: reasons::FORBIDDEN_VARIABLE,
        action: action.into(),
        note: format!(
            "container {} was started with {} by envFrom ({}), which is refused to tenants' pods as it is in a manifest: remove it there; {outcome}",
            suspect.container,
            variables.join(", "),
            suspect.sources.join(", "),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn event_names_container_variables_source_and_remedy() {
        let suspect = Suspect {
            id: "0123".into(),
            namespace: "team-a".into(),
            pod: "p".into(),
            uid: "u".into(),
            created: None,
            container: "c".into(),
            gpu: true,
            written: BTreeSet::new(),
            sources: vec!["ConfigMap settings".into(), "Secret keys".into()],
        };
        let notice = notice(&suspect, &["LD_AUDIT", "LD_PRELOAD"], Answer::Stop);
        assert_eq!((notice.event_type, notice.action.as_str()), (EventType::Warning, "Stop"));
        assert_eq!(notice.regarding.field_path.as_deref(), Some("spec.containers{c}"));
        assert_eq!(
            notice.note,
            "container c was started with LD_AUDIT, LD_PRELOAD by envFrom (ConfigMap settings, Secret keys), which is refused to tenants' pods as it is in a manifest: remove it there; the container is stopped each time that it starts"
        );
    }
}
