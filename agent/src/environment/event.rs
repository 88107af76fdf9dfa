//! The event that tells a team why its container was stopped.

use gputenancy_crds::GROUP;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::ObjectMeta;

use super::{Answer, Suspect};

/// Longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The event, from the agent of this node.
pub fn event(suspect: &Suspect, variables: &[&str], answer: Answer, node: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", suspect.pod)),
            namespace: Some(suspect.namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(match answer {
            Answer::Stop => "Stop".into(),
            Answer::Tell => "Tell".into(),
        }),
        event_time: Some(MicroTime(now)),
        note: Some(note(suspect, variables, answer)),
        reason: Some("ForbiddenVariable".into()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(suspect.namespace.clone()),
            name: Some(suspect.pod.clone()),
            uid: Some(suspect.uid.clone()),
            field_path: Some(format!("spec.containers{{{}}}", suspect.container)),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(format!("{GROUP}/agent")),
        reporting_instance: Some(node.chars().take(128).collect()),
        type_: Some("Warning".into()),
        ..Event::default()
    }
}

fn note(suspect: &Suspect, variables: &[&str], answer: Answer) -> String {
    let done = match answer {
        Answer::Stop => "the container is stopped each time that it starts",
        Answer::Tell => "the container goes on",
    };
    let mut note = format!(
        "container {} was started with {} by envFrom ({}), which is refused to tenants' pods as it is in a manifest: remove it there; {done}",
        suspect.container,
        variables.join(", "),
        suspect.sources.join(", "),
    );
    while note.len() > LONGEST_NOTE {
        note.pop();
    }
    note
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn suspect() -> Suspect {
        Suspect {
            id: "0123".into(),
            namespace: "team-a".into(),
            pod: "p".into(),
            uid: "u".into(),
            created: None,
            container: "c".into(),
            gpu: true,
            written: BTreeSet::new(),
            sources: vec!["ConfigMap settings".into(), "Secret keys".into()],
        }
    }

    #[test]
    fn the_event_says_which_variable_from_where_and_what_to_do() {
        let event = event(&suspect(), &["LD_AUDIT", "LD_PRELOAD"], Answer::Stop, "gpu-1", Timestamp::UNIX_EPOCH);
        insta::assert_yaml_snapshot!(event);
    }

    #[test]
    fn a_note_is_never_longer_than_the_api_server_takes() {
        let many: Vec<String> = (0..99).map(|i| format!("CUDA_MPS_{i}_überlang")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(note(&suspect(), &many, Answer::Tell).len() <= LONGEST_NOTE);
    }
}
