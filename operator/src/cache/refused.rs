//! What controllers say about pods that our quotas refused to them: the only trace that such a pod leaves.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, Time},
    },
    jiff::Timestamp,
};
use kube::{Resource, api::ObjectMeta, runtime::watcher};
use serde::{Deserialize, Serialize};

use super::{Amounts, lighten};

/// What precedes the amounts in the API server's words, with the name of our quota.
const REFUSAL: &str = "exceeded quota: gputenancy, requested: ";

/// An event of a controller that could not make a pod; only those that name our quota are kept.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = Event)]
#[serde(rename_all = "camelCase")]
pub struct SlimEvent {
    /// Name, namespace, version.
    pub metadata: ObjectMeta,
    /// The controller.
    #[serde(default)]
    pub regarding: Regarding,
    /// In words; of a kept event only the amounts, as the API server wrote them.
    #[serde(default)]
    pub note: String,
    /// When it was seen, if its reporter is of the newer kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<MicroTime>,
    /// When it was seen last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated_last_timestamp: Option<Time>,
    /// When it was seen last, if it has been seen repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// What an event is about.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Regarding {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A repeated event.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// When it was seen last.
    pub last_observed_time: MicroTime,
}

impl SlimEvent {
    /// Which events the API server shall tell of.
    pub fn selector() -> watcher::Config {
        watcher::Config::default().fields("reason=FailedCreate,type=Warning")
    }

    /// Keeps of a refusal by our quota what did not fit, and of all other events nothing.
    pub fn lighten(&mut self) {
        lighten(self);
        let amounts = self.note.split_once(REFUSAL).and_then(|(_, rest)| rest.split_once(", used: "));
        // a projection is stored and may be projected again
        self.note = amounts.map_or_else(String::new, |(amounts, _)| amounts.to_owned());
    }

    /// Is it a refusal by our quota?
    pub fn is_ours(&self) -> bool {
        !self.note.is_empty()
    }

    /// What did not fit, by quota key, for one pod.
    pub fn requested(&self) -> Amounts {
        let pairs = self.note.split(',').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, amount)| (key.trim().to_owned(), Quantity(amount.trim().to_owned())))
            .collect::<BTreeMap<_, _>>()
    }

    /// When a pod was refused last.
    pub fn at(&self) -> Option<Timestamp> {
        let series = self.series.as_ref().map(|s| s.last_observed_time.0);
        let last = self.deprecated_last_timestamp.as_ref().map(|t| t.0);
        series.max(last).max(self.event_time.as_ref().map(|t| t.0))
    }

    /// Grows with each word about the same thing.
    pub fn version(&self) -> u64 {
        self.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(note: &str) -> SlimEvent {
        let mut event: SlimEvent = serde_json::from_value(json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "web.1", "namespace": "a", "resourceVersion": "42"},
            "regarding": {"kind": "ReplicaSet", "name": "web", "uid": "u-1"}, "reason": "FailedCreate", "type": "Warning",
            "note": note, "eventTime": null,
            "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedLastTimestamp": "2026-01-01T00:00:09Z",
        }))
        .unwrap();
        event.lighten();
        event
    }

    #[test]
    fn a_refusal_by_our_quota_says_what_did_not_fit() {
        for before in [
            "Error creating: ",
            "(combined from similar events): Error creating: ",
            "create Pod web-0 in StatefulSet web failed error: ",
        ] {
            let event = event(&format!(
                "{before}pods \"web-x2k\" is forbidden: exceeded quota: gputenancy, requested: requests.cpu=1500m,requests.nvidia.com/mig-1g.10gb=2, used: requests.cpu=8,requests.nvidia.com/mig-1g.10gb=4, limited: requests.cpu=8,requests.nvidia.com/mig-1g.10gb=4"
            ));
            assert!(event.is_ours());
            let requested: Vec<_> = event.requested().into_iter().map(|(key, q)| format!("{key} {}", q.0)).collect();
            assert_eq!(requested, ["requests.cpu 1500m", "requests.nvidia.com/mig-1g.10gb 2"]);
            assert_eq!((event.at().unwrap().to_string().as_str(), event.version()), ("2026-01-01T00:00:09Z", 42));
        }
    }

    #[test]
    fn other_refusals_are_none_of_ours() {
        for note in [
            "Error creating: pods \"x\" is forbidden: exceeded quota: theirs, requested: pods=1, used: pods=1, limited: pods=1",
            "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"",
            "",
        ] {
            assert!(!event(note).is_ours(), "{note}");
        }
    }
}
