//! Events.

use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
    jiff::Timestamp,
};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};

/// Projection of an `Event`, with the fields of `events.k8s.io/v1`. Events of the core API, whose fields have other names, are read too.
/// Everyone with the right to write events chooses all of it.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Event)]
#[serde(rename_all = "camelCase")]
pub struct SlimEvent {
    /// Name, namespace, version.
    #[serde(deserialize_with = "crate::metadata::read")]
    pub metadata: ObjectMeta,
    /// The object.
    #[serde(default, alias = "involvedObject")]
    pub regarding: SlimReference,
    /// Text for people.
    #[serde(default, alias = "message")]
    pub note: String,
    /// Time of the first occurrence.
    #[serde(default, deserialize_with = "crate::metadata::time")]
    event_time: Option<MicroTime>,
    /// Time of the last occurrence, by older components.
    #[serde(default, alias = "lastTimestamp", deserialize_with = "crate::metadata::time")]
    deprecated_last_timestamp: Option<Time>,
    /// Repetitions.
    #[serde(default)]
    series: Option<SlimSeries>,
}

/// The object that an event is about; what is missing is empty.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimReference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

/// Repetitions of an event.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct SlimSeries {
    #[serde(default, deserialize_with = "crate::metadata::time")]
    last_observed_time: Option<MicroTime>,
}

impl SlimEvent {
    /// Time of the last occurrence.
    pub fn at(&self) -> Option<Timestamp> {
        let repeated = self.series.as_ref().and_then(|s| s.last_observed_time.as_ref()).map(|t| t.0);
        let last = self.deprecated_last_timestamp.as_ref().map(|t| t.0);
        repeated.max(last).max(self.event_time.as_ref().map(|t| t.0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_both_apis_read_the_same() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "p", "uid": "u"});
        let metadata = json!({"name": "p.1", "namespace": "a"});
        let series = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:09.000001Z"});
        let core = json!({
            "metadata": metadata, "involvedObject": object, "message": "text", "lastTimestamp": "2026-01-01T00:00:01Z",
            "eventTime": null, "series": series,
        });
        let new = json!({
            "metadata": metadata, "regarding": object, "note": "text", "deprecatedLastTimestamp": "2026-01-01T00:00:01Z",
            "eventTime": null, "series": series,
        });
        let [core, new] = [core, new].map(|event| serde_json::from_value::<SlimEvent>(event).unwrap());
        assert_eq!(core, new);
        assert_eq!((core.note.as_str(), core.regarding.uid.as_str()), ("text", "u"));
        assert_eq!(core.at(), Some("2026-01-01T00:00:09.000001Z".parse().unwrap()));
    }
}
