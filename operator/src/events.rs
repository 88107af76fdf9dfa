//! Events, one for each transition.
//!
//! Not kube's `Recorder`: it folds a second event with the same reason into the first and keeps the first one's note.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

/// Longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// How an event reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// All in order.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something to tell about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The object.
    pub about: ObjectReference,
    /// How it reads.
    pub tone: Tone,
    /// One word in CamelCase.
    pub reason: String,
    /// What is being done, one word.
    pub action: String,
    /// In words.
    pub note: String,
}

/// Publishes events.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    instance: String,
}

impl Publisher {
    /// Publishes as this replica.
    pub fn new(client: Client, instance: String) -> Self {
        Self { client, instance }
    }

    /// Publishes one event. An event that is lost does no harm, so failure is only logged.
    pub async fn publish(&self, news: News) {
        tracing::info!(reason = news.reason, object = news.about.name, "{}", news.note);
        // events about cluster-scoped objects live in `default`
        let namespace = news.about.namespace.clone().unwrap_or_else(|| "default".into());
        let event = self.event(news, &namespace, Timestamp::now());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(%error, "an event was not published");
        }
    }

    fn event(&self, news: News, namespace: &str, now: Timestamp) -> Event {
        let News { about, tone, reason, action, mut note } = news;
        while note.len() > LONGEST_NOTE {
            note.pop();
        }
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", about.name.clone().unwrap_or_default())),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            action: Some(action),
            event_time: Some(MicroTime(now)),
            note: Some(note),
            reason: Some(reason),
            regarding: Some(about),
            reporting_controller: Some("gputenancy.io/operator".into()),
            reporting_instance: Some(self.instance.chars().take(128).collect()),
            type_: Some(if tone == Tone::Normal { "Normal" } else { "Warning" }.into()),
            ..Event::default()
        }
    }
}
