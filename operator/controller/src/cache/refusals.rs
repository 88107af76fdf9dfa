//! Refusals of pods by the operator's quotas, read from events of the pods' controllers: the API has no other record of them.
//!
//! Tenants can write events, so every field is validated, and the number of entries is bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use gputenancy_cluster::watch::{LONGEST_DELAY, Restarts, events};
use gputenancy_crds::{
    projection::{SlimEvent, SlimReference},
    quantity::Amount,
    quota_refusal::{self, QuotaAmounts},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, runtime::watcher};
use tokio::sync::watch;

use crate::object_name::ObjectName;

/// Longest text of amounts. Notes of Kubernetes' controllers have at most 1 KiB.
const MAX_AMOUNTS: usize = 1024;
/// Longest uid: Kubernetes writes 36 characters.
const MAX_UID: usize = 64;
/// Longest `apiVersion` and `kind`: a DNS name, a slash and a label.
const MAX_TYPE: usize = 320;
/// Most controllers of one namespace, more than are expected to wait. The oldest are dropped; those controllers retry without being woken.
const MAX_PER_NAMESPACE: usize = 500;
/// Most controllers of all namespaces: 16 MiB if every entry has the largest size. The namespace with the most entries drops its oldest.
const MAX_IN_ALL: usize = 8192;
/// Time between two log lines about dropped entries.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The latest refusal of a controller's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRefusal {
    /// Uid of the controller.
    pub uid: String,
    /// The controller.
    pub controller: ControllerRef,
    /// Resource version of the event; grows with each report.
    pub version: u64,
    /// Time of the refusal.
    pub at: Timestamp,
    /// Name of the event.
    event: String,
    /// `key=amount,key=amount`, as the API server wrote it.
    amounts: String,
}

/// Type and name of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: ObjectName,
}

impl QuotaRefusal {
    /// Reads an event; `None`: it reports no refusal by the operator's quota, or has a field that no controller writes.
    fn read(event: &SlimEvent) -> Option<Self> {
        let amounts = quota_refusal::QuotaRefusal::parse(&event.note)?.requested.text();
        let SlimReference { api_version, kind, name, uid } = &event.regarding;
        let is_uid =
            !uid.is_empty() && uid.len() <= MAX_UID && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_uid || api_version.len().max(kind.len()) > MAX_TYPE || amounts.len() > MAX_AMOUNTS {
            return None;
        }
        Some(Self {
            uid: uid.clone(),
            controller: ControllerRef {
                api_version: api_version.clone(),
                kind: kind.clone(),
                name: ObjectName::parse(name)?,
            },
            version: event.metadata.resource_version.as_deref()?.parse().ok()?,
            // a team may write any time into its events, and one to come would never be old
            at: event.at()?.min(Timestamp::now()),
            event: event.metadata.name.clone()?,
            amounts: amounts.to_owned(),
        })
    }

    /// Requests of one pod for the resources that the quota refused, by quota key.
    pub fn requested(&self) -> BTreeMap<String, Amount> {
        let amounts = QuotaAmounts::of_text(&self.amounts).all();
        let positive = amounts.filter(|(_, amount)| *amount > Amount::default());
        positive.map(|(key, amount)| (key.to_owned(), amount)).collect()
    }
}

/// A bounded store of the latest refusal of each controller.
#[derive(Clone)]
pub struct Refusals {
    entries: Arc<Mutex<Entries>>,
    ready: watch::Receiver<bool>,
}

impl Refusals {
    /// Starts the watch, in a task that ends with the runtime; calls `changed` with each namespace whose refusals have changed.
    pub fn start(client: &Client, changed: impl Fn(String) + Send + 'static) -> Self {
        let config = watcher::Config::default().fields("reason=FailedCreate,type=Warning");
        let mut events = Box::pin(events(Api::<SlimEvent>::all(client.clone()), config, LONGEST_DELAY));
        let (listed, ready) = watch::channel(false);
        let refusals = Self { entries: Arc::default(), ready };
        let (entries, mut relisted) = (refusals.entries.clone(), Entries::default());
        tokio::spawn(async move {
            let mut restarts = Restarts::new("events");
            while let Some(event) = events.next().await {
                let namespaces: BTreeSet<String> = match restarts.note(event) {
                    Some(watcher::Event::Apply(event)) => lock(&entries).apply(&event).into_iter().collect(),
                    Some(watcher::Event::Delete(event)) => lock(&entries).delete(&event).into_iter().collect(),
                    Some(watcher::Event::Init) => {
                        relisted = Entries::default();
                        continue;
                    }
                    Some(watcher::Event::InitApply(event)) => {
                        relisted.apply(&event);
                        continue;
                    }
                    Some(watcher::Event::InitDone) => {
                        let new = std::mem::take(&mut relisted);
                        let mut namespaces: BTreeSet<String> = new.namespaces.keys().cloned().collect();
                        let old = std::mem::replace(&mut *lock(&entries), new);
                        namespaces.extend(old.namespaces.into_keys());
                        listed.send_replace(true);
                        namespaces
                    }
                    None => continue,
                };
                namespaces.into_iter().for_each(&changed);
            }
        });
        refusals
    }

    /// Waits for the first list.
    pub async fn wait_until_ready(&self) {
        // fails only when the runtime ends
        drop(self.ready.clone().wait_for(|ready| *ready).await);
    }

    /// The refusals of a namespace, one for each controller.
    pub fn of(&self, namespace: &str) -> Vec<QuotaRefusal> {
        lock(&self.entries).namespaces.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}

fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The refusals by namespace and by uid of the controller.
#[derive(Default)]
struct Entries {
    namespaces: BTreeMap<String, BTreeMap<String, QuotaRefusal>>,
    count: usize,
    logged: Option<Instant>,
}

impl Entries {
    /// Inserts the refusal of an event; returns the namespace if it changed.
    fn apply(&mut self, event: &SlimEvent) -> Option<String> {
        let namespace = event.metadata.namespace.clone()?;
        let refusal = QuotaRefusal::read(event)?;
        let here = self.namespaces.entry(namespace.clone()).or_default();
        if here.get(&refusal.uid).is_some_and(|known| known.version >= refusal.version) {
            return None;
        }
        self.count += usize::from(here.insert(refusal.uid.clone(), refusal).is_none());
        if here.len() > MAX_PER_NAMESPACE {
            self.drop_oldest(&namespace);
        } else if self.count > MAX_IN_ALL {
            let largest = self.namespaces.iter().max_by_key(|(_, refusals)| refusals.len());
            let largest = largest.map_or_else(String::new, |(name, _)| name.clone());
            self.drop_oldest(&largest);
        }
        Some(namespace)
    }

    /// Removes the refusal of a deleted event; returns the namespace if it changed.
    fn delete(&mut self, event: &SlimEvent) -> Option<String> {
        let (namespace, name) = (event.metadata.namespace.clone()?, event.metadata.name.as_ref()?);
        let here = self.namespaces.get(&namespace)?;
        let uid = here.values().find(|refusal| refusal.event == *name)?.uid.clone();
        self.remove(&namespace, &uid);
        Some(namespace)
    }

    fn drop_oldest(&mut self, namespace: &str) {
        let here = self.namespaces.get(namespace).into_iter().flat_map(BTreeMap::values);
        let Some(uid) = here.min_by_key(|refusal| refusal.version).map(|oldest| oldest.uid.clone()) else { return };
        self.remove(namespace, &uid);
        if self.logged.is_none_or(|then| then.elapsed() >= LOG_INTERVAL) {
            self.logged = Some(Instant::now());
            tracing::warn!(namespace, kept = self.count, "too many refused controllers, dropping the oldest");
        }
    }

    fn remove(&mut self, namespace: &str, uid: &str) {
        let Some(here) = self.namespaces.get_mut(namespace) else { return };
        self.count -= usize::from(here.remove(uid).is_some());
        if here.is_empty() {
            self.namespaces.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOTE: &str = "Error creating: pods \"web-x2k\" is forbidden: exceeded quota: gputenancy, requested: requests.cpu=1500m,requests.nvidia.com/mig-1g.10gb=2, used: requests.cpu=8,requests.nvidia.com/mig-1g.10gb=4, limited: requests.cpu=8,requests.nvidia.com/mig-1g.10gb=4";

    fn event(edit: impl FnOnce(&mut Value)) -> SlimEvent {
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "web.1", "namespace": "a", "resourceVersion": "42"},
            "regarding": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1"},
            "reason": "FailedCreate", "type": "Warning", "note": NOTE, "eventTime": null,
            "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedLastTimestamp": "2026-01-01T00:00:09Z",
        });
        edit(&mut event);
        serde_json::from_value(event).unwrap()
    }

    fn numbered(namespace: &str, number: usize) -> SlimEvent {
        event(|e| {
            e["metadata"] =
                json!({"name": format!("web.{number}"), "namespace": namespace, "resourceVersion": number.to_string()});
            e["regarding"]["uid"] = json!(format!("u-{number}"));
        })
    }

    #[test]
    fn refusal_by_the_operators_quota_is_read_with_amounts_time_and_version() {
        for before in ["", "(combined from similar events): ", "create Pod web-0 in StatefulSet web failed error: "] {
            let refusal = QuotaRefusal::read(&event(|e| e["note"] = json!(format!("{before}{NOTE}")))).unwrap();
            let requested: Vec<_> =
                refusal.requested().into_iter().map(|(key, q)| format!("{key} {}", q.decimal())).collect();
            assert_eq!(requested, ["requests.cpu 1.5", "requests.nvidia.com/mig-1g.10gb 2"]);
            assert_eq!((refusal.at.to_string().as_str(), refusal.version), ("2026-01-01T00:00:09Z", 42));
            assert_eq!(refusal.controller.name.as_str(), "web");
        }
    }

    #[test]
    fn time_to_come_is_now() {
        let forged =
            QuotaRefusal::read(&event(|e| e["deprecatedLastTimestamp"] = json!("2099-01-01T00:00:00Z"))).unwrap();
        assert!(forged.at <= Timestamp::now(), "{}", forged.at);
    }

    #[test]
    fn other_events_are_not_refusals() {
        for note in [
            "Error creating: pods \"x\" is forbidden: exceeded quota: theirs, requested: pods=1, used: pods=1, limited: pods=1",
            "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"",
            "",
        ] {
            assert_eq!(QuotaRefusal::read(&event(|e| e["note"] = json!(note))), None, "{note}");
        }
    }

    #[test]
    fn events_with_fields_that_no_controller_writes_are_dropped() {
        let long = "a".repeat(300);
        for name in ["../../x", "a?b", "a b", "", "bücher", &long] {
            assert_eq!(QuotaRefusal::read(&event(|e| e["regarding"]["name"] = json!(name))), None, "{name:?}");
        }
        for uid in ["", "u/1", "u 1", "ü", &long] {
            assert_eq!(QuotaRefusal::read(&event(|e| e["regarding"]["uid"] = json!(uid))), None, "{uid:?}");
        }
        let (huge, many) = ("k".repeat(400), "requests.cpu=1,".repeat(100));
        assert_eq!(QuotaRefusal::read(&event(|e| e["regarding"]["kind"] = json!(huge))), None);
        assert_eq!(QuotaRefusal::read(&event(|e| e["regarding"]["apiVersion"] = json!(huge))), None);
        let negative = event(|e| e["note"] = json!(NOTE.replacen("=1500m", "=-1", 1)));
        assert_eq!(QuotaRefusal::read(&negative).unwrap().requested().len(), 1);
        let note = NOTE.replacen("requests.cpu=1500m", &many, 1);
        assert_eq!(QuotaRefusal::read(&event(|e| e["note"] = json!(note))), None);
    }

    #[test]
    fn each_controller_has_one_entry_until_its_latest_event_is_deleted() {
        let mut entries = Entries::default();
        let named = |name: &str, version: u64| {
            event(|e| e["metadata"] = json!({"name": name, "namespace": "a", "resourceVersion": version.to_string()}))
        };
        assert_eq!(entries.apply(&named("web.1", 5)).as_deref(), Some("a"));
        assert_eq!(entries.apply(&named("web.2", 7)).as_deref(), Some("a"));
        assert_eq!(entries.apply(&named("web.1", 5)), None, "older than the known refusal");
        assert_eq!((entries.count, entries.namespaces["a"]["u-1"].version), (1, 7));
        assert_eq!(entries.delete(&named("web.1", 5)), None);
        assert_eq!(entries.delete(&named("web.2", 7)).as_deref(), Some("a"));
        assert!(entries.namespaces.is_empty() && entries.count == 0);
    }

    #[test]
    fn flood_of_one_namespace_drops_its_oldest_and_none_of_others() {
        let mut entries = Entries::default();
        entries.apply(&numbered("b", 1));
        for number in 2..2000 {
            entries.apply(&numbered("a", number));
        }
        assert!(entries.namespaces["b"].contains_key("u-1"));
        let kept: Vec<u64> = entries.namespaces["a"].values().map(|r| r.version).collect();
        assert_eq!((kept.len(), kept.iter().min()), (MAX_PER_NAMESPACE, Some(&1500)));
    }

    #[test]
    fn flood_of_many_namespaces_is_bounded_and_drops_from_the_largest() {
        let mut entries = Entries::default();
        entries.apply(&numbered("quiet", 1));
        for number in 2..12_000 {
            entries.apply(&numbered(&format!("flood-{}", number % 40), number));
        }
        assert_eq!(entries.count, MAX_IN_ALL);
        assert_eq!(entries.count, entries.namespaces.values().map(BTreeMap::len).sum::<usize>());
        assert!(entries.namespaces.contains_key("quiet"));
    }
}
