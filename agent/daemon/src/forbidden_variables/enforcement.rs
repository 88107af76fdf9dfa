//! What follows a violation: an event, and with [`Enforcement::Stop`] the end of the container.

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::reasons;
use k8s_openapi::api::core::v1::ObjectReference;

use super::EnvFromContainer;

/// What happens to a container with forbidden variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Enforcement {
    /// An event is published, and the container is stopped.
    Stop,
    /// An event is published.
    Report,
}

/// The event about forbidden variables of a container.
pub fn notice(container: &EnvFromContainer, variables: &[&str], enforcement: Enforcement) -> Notice {
    let outcome = match enforcement {
        Enforcement::Stop => "the container is stopped each time that it starts",
        Enforcement::Report => "the container keeps running",
    };
    Notice {
        regarding: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(container.namespace.clone()),
            name: Some(container.pod.clone()),
            uid: Some(container.uid.clone()),
            field_path: Some(format!("spec.containers{{{}}}", container.name)),
            ..ObjectReference::default()
        },
        event_type: EventType::Warning,
        reason: reasons::FORBIDDEN_VARIABLE,
        action: format!("{enforcement:?}"),
        note: format!(
            "container {} was started with {} by envFrom ({}), which is refused to tenants' pods as it is in a manifest: remove it there; {outcome}",
            container.name,
            variables.join(", "),
            container.sources.join(", "),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn event_names_container_variables_source_and_remedy() {
        let container = EnvFromContainer {
            id: "0123".into(),
            namespace: "team-a".into(),
            pod: "p".into(),
            uid: "u".into(),
            created: None,
            name: "c".into(),
            gpu: true,
            manifest: BTreeSet::new(),
            sources: vec!["ConfigMap settings".into(), "Secret keys".into()],
        };
        let notice = notice(&container, &["LD_AUDIT", "LD_PRELOAD"], Enforcement::Stop);
        assert_eq!((notice.event_type, notice.action.as_str()), (EventType::Warning, "Stop"));
        assert_eq!(notice.regarding.field_path.as_deref(), Some("spec.containers{c}"));
        assert_eq!(
            notice.note,
            "container c was started with LD_AUDIT, LD_PRELOAD by envFrom (ConfigMap settings, Secret keys), which is refused to tenants' pods as it is in a manifest: remove it there; the container is stopped each time that it starts"
        );
    }
}
