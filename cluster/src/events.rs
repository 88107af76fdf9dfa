//! Kubernetes events, one for each transition.
//!
//! Not kube's `Recorder`: it folds a second event with the same reason into the first and keeps the first note.

use crate::error::sentence;
use gputenancy_crds::reasons::Reason;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

/// Longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;
/// Longest `reportingInstance` that the API server accepts.
const MAX_INSTANCE: usize = 128;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// As expected.
    Normal,
    /// Needs attention.
    Warning,
}

/// An event to publish about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The object.
    pub regarding: ObjectReference,
    /// Normal or warning.
    pub event_type: EventType,
    /// Why.
    pub reason: Reason,
    /// The action of the program, one word.
    pub action: String,
    /// For people; cut off at the limit of the API server.
    pub note: String,
}

/// Publishes events.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    controller: &'static str,
    instance: String,
}

impl Publisher {
    /// `controller` is a qualified name such as `gputenancy.io/operator`; `instance` the replica or node.
    pub fn new(client: Client, controller: &'static str, instance: impl Into<String>) -> Self {
        Self { client, controller, instance: instance.into() }
    }

    /// Publishes one event. A lost event does no harm, so a failure is only logged.
    pub async fn publish(&self, notice: Notice) {
        let Notice { regarding, reason, note, .. } = &notice;
        tracing::info!(%reason, namespace = regarding.namespace, object = regarding.name, note, "publishing event");
        // events about cluster-scoped objects belong to `default`
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = event(notice, &namespace, (self.controller, &self.instance), Timestamp::now());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(error = sentence(&error), "event not published");
        }
    }
}

fn event(notice: Notice, namespace: &str, (controller, instance): (&str, &str), now: Timestamp) -> Event {
    let Notice { regarding, event_type, reason, action, mut note } = notice;
    note.truncate(note.floor_char_boundary(MAX_NOTE));
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", regarding.name.as_deref().unwrap_or_default())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(action),
        event_time: Some(MicroTime(now)),
        note: Some(note),
        reason: Some(reason.into()),
        regarding: Some(regarding),
        reporting_controller: Some(controller.to_owned()),
        reporting_instance: Some(instance.chars().take(MAX_INSTANCE).collect()),
        type_: Some(format!("{event_type:?}")),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::reasons;

    use super::*;

    #[test]
    fn event_note_is_cut_at_a_character_within_the_limit() {
        let notice = Notice {
            regarding: ObjectReference { name: Some("p".to_owned()), ..ObjectReference::default() },
            event_type: EventType::Warning,
            reason: reasons::FORBIDDEN_VARIABLE,
            action: "Stop".to_owned(),
            note: format!("x{}", "ü".repeat(MAX_NOTE)),
        };
        let event = event(notice, "team-a", ("gputenancy.io/agent", "node"), Timestamp::UNIX_EPOCH);
        assert_eq!(event.note.map(|note| note.len()), Some(MAX_NOTE - 1));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.metadata.generate_name.as_deref(), Some("p-"));
    }
}
