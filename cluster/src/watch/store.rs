//! The objects of one kind, by namespace and name.
//!
//! Not kube's reflector store: its `ObjectMeta` and its two copies of every key are half of the memory at 70,000 objects, and it
//! reports neither the previous object nor objects that a new list lacks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use kube::{Resource, runtime::watcher::Event};
use tokio::sync::watch;

/// Namespace and name; a cluster-scoped object has an empty namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The namespace.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
}

impl Key {
    /// The key of this namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

/// The objects of a kind, for readers.
pub struct Store<V> {
    resource: &'static str,
    objects: Arc<RwLock<Objects<V>>>,
    ready: watch::Receiver<bool>,
}

struct Objects<V> {
    by_key: BTreeMap<Key, Arc<V>>,
    by_group: BTreeSet<(Box<str>, Key)>,
    reading: Reading,
}

/// The state of a store when a reader has read it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Number of writes.
    writes: u64,
    /// Of these, writes that are a change.
    changes: u64,
}

impl<V> Clone for Store<V> {
    fn clone(&self) -> Self {
        Self { resource: self.resource, objects: self.objects.clone(), ready: self.ready.clone() }
    }
}

impl<V> Store<V> {
    /// The object of this namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        self.read().by_key.get(&Key::new(namespace, name)).cloned()
    }

    /// All objects, in order.
    pub fn state(&self) -> Vec<Arc<V>> {
        self.read().by_key.values().cloned().collect()
    }

    /// All objects, in order, if any has been written since the last reading, which is set to this one; `None` is older than all. True: there
    /// was a change, and not only heartbeats.
    pub fn since(&self, last: &mut Option<Reading>) -> Option<(Vec<Arc<V>>, bool)> {
        let objects = self.read();
        let before = last.replace(objects.reading);
        let changed = before.is_none_or(|before| before.changes != objects.reading.changes);
        (before != Some(objects.reading)).then(|| (objects.by_key.values().cloned().collect(), changed))
    }

    /// All objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<V>> {
        let objects = self.read();
        let range = objects.by_key.range(Key::new(namespace, "")..);
        range.take_while(|(key, _)| *key.namespace == *namespace).map(|(_, object)| object.clone()).collect()
    }

    /// Names of the objects of a group.
    pub fn names_in_group(&self, group: &str) -> BTreeSet<String> {
        let objects = self.read();
        let range = objects.by_group.range((group.into(), Key::default())..);
        range.take_while(|(of, _)| **of == *group).map(|(_, key)| key.name.to_string()).collect()
    }

    /// Waits until the store holds a first list, after naming the resource to `waiting`.
    pub async fn wait_until_ready(&self, waiting: &impl Fn(&'static str)) {
        waiting(self.resource);
        // fails only when the runtime ends
        drop(self.ready.clone().wait_for(|ready| *ready).await);
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects<V>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that came, changed or went.
pub struct Change<V> {
    /// Its key.
    pub key: Key,
    /// Before.
    pub old: Option<Arc<V>>,
    /// After.
    pub new: Option<Arc<V>>,
}

/// How objects of a kind are kept.
pub struct Projection<K, V> {
    /// The part that is kept; `None`: the object is treated as absent.
    pub keep: fn(K) -> Option<V>,
    /// Is the difference a change? Heartbeats and mere versions are none.
    pub differs: fn(&V, &V) -> bool,
    /// The group of an object.
    pub group: fn(&V) -> Option<&str>,
}

/// Fills a store from watch events.
///
/// ```
/// use gputenancy_cluster::watch::{Projection, Writer, differs};
/// use k8s_openapi::api::core::v1::Namespace;
/// use kube::runtime::watcher::Event;
///
/// let projection = Projection { keep: Some, differs, group: |_: &Namespace| None };
/// let mut writer = Writer::new("namespaces", projection);
/// let store = writer.store();
/// let mut namespace = Namespace::default();
/// namespace.metadata.name = Some("team-a".into());
/// let changes = writer.apply(Event::Apply(namespace.clone()));
/// assert!(changes[0].old.is_none() && store.get("", "team-a").is_some());
/// assert!(writer.apply(Event::Apply(namespace)).is_empty(), "nothing has changed");
/// ```
pub struct Writer<K, V> {
    store: Store<V>,
    ready: watch::Sender<bool>,
    listed: BTreeMap<Key, Arc<V>>,
    projection: Projection<K, V>,
}

impl<K: Resource, V> Writer<K, V> {
    /// A writer with an empty store.
    pub fn new(resource: &'static str, projection: Projection<K, V>) -> Self {
        let (sender, ready) = watch::channel(false);
        let objects = Arc::new(RwLock::new(Objects {
            by_key: BTreeMap::new(),
            by_group: BTreeSet::new(),
            reading: Reading::default(),
        }));
        let store = Store { resource, objects, ready };
        Self { store, ready: sender, listed: BTreeMap::new(), projection }
    }

    /// A reader.
    pub fn store(&self) -> Store<V> {
        self.store.clone()
    }

    /// Applies one event and returns what it has changed.
    pub fn apply(&mut self, event: Event<K>) -> Vec<Change<V>> {
        match event {
            Event::Apply(object) => {
                let key = Key::of(&object);
                let new = (self.projection.keep)(object).map(Arc::new);
                self.put(key, new).into_iter().collect()
            }
            Event::Delete(object) => self.put(Key::of(&object), None).into_iter().collect(),
            Event::Init => {
                self.listed = BTreeMap::new();
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = Key::of(&object);
                if let Some(new) = (self.projection.keep)(object) {
                    self.listed.insert(key, Arc::new(new));
                }
                Vec::new()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone: Vec<Key> = {
                    let objects = self.store.read();
                    objects.by_key.keys().filter(|key| !listed.contains_key(*key)).cloned().collect()
                };
                let puts = gone.into_iter().map(|key| (key, None));
                let puts = puts.chain(listed.into_iter().map(|(key, new)| (key, Some(new))));
                let changes = puts.filter_map(|(key, new)| self.put(key, new)).collect();
                self.ready.send_replace(true);
                changes
            }
        }
    }

    fn put(&self, key: Key, new: Option<Arc<V>>) -> Option<Change<V>> {
        let Projection { keep: _, differs, group } = &self.projection;
        let group = |object: &Option<Arc<V>>| object.as_ref().and_then(|o| group(o)).map(Box::<str>::from);
        let mut objects = self.store.objects.write().unwrap_or_else(PoisonError::into_inner);
        let old = match &new {
            Some(new) => objects.by_key.insert(key.clone(), new.clone()),
            None => objects.by_key.remove(&key),
        };
        if old.is_some() || new.is_some() {
            objects.reading.writes += 1;
        }
        let (left, joined) = (group(&old), group(&new));
        if left != joined {
            left.map(|group| objects.by_group.remove(&(group, key.clone())));
            joined.map(|group| objects.by_group.insert((group, key.clone())));
        }
        drop(objects);
        let same = match (&old, &new) {
            (Some(old), Some(new)) => !differs(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return None;
        }
        self.store.objects.write().unwrap_or_else(PoisonError::into_inner).reading.changes += 1;
        Some(Change { key, old, new })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;
    use crate::watch::differs;

    fn tenant_label(namespace: &Namespace) -> Option<&str> {
        namespace.labels().get("gputenancy.io/tenant").map(String::as_str)
    }

    fn namespace(name: &str, tenant: Option<&str>, version: &str) -> Namespace {
        let labels = tenant.map(|tenant| json!({"gputenancy.io/tenant": tenant}));
        let meta = json!({"name": name, "labels": labels, "resourceVersion": version});
        serde_json::from_value(json!({"metadata": meta, "status": {"phase": "Active"}})).unwrap()
    }

    fn is_ignored(namespace: &Namespace) -> bool {
        namespace.annotations().contains_key("ignored")
    }

    fn ignored(mut namespace: Namespace) -> Namespace {
        namespace.annotations_mut().insert("ignored".into(), String::new());
        namespace
    }

    fn writer() -> Writer<Namespace, Namespace> {
        let keep = |n: Namespace| (!is_ignored(&n)).then_some(n);
        Writer::new("namespaces", Projection { keep, differs, group: tenant_label })
    }

    /// The changes of an event: name, tenant before, tenant after.
    fn apply(writer: &mut Writer<Namespace, Namespace>, event: Event<Namespace>) -> Vec<String> {
        let tenant = |n: Option<Arc<Namespace>>| {
            n.map_or("absent".to_owned(), |n| tenant_label(&n).unwrap_or("none").to_owned())
        };
        let changes = writer.apply(event).into_iter();
        let mut changes: Vec<String> =
            changes.map(|c| format!("{}: {} -> {}", c.key.name, tenant(c.old), tenant(c.new))).collect();
        changes.sort();
        changes
    }

    #[test]
    fn store_new_version_alone_is_kept_and_is_no_change() {
        let mut writer = writer();
        let store = writer.store();
        assert_eq!(apply(&mut writer, Event::Apply(namespace("a", Some("t"), "1"))), ["a: absent -> t"]);
        assert!(apply(&mut writer, Event::Apply(namespace("a", Some("t"), "2"))).is_empty());
        assert_eq!(store.get("", "a").unwrap().resource_version().as_deref(), Some("2"));
        assert_eq!(apply(&mut writer, Event::Delete(namespace("a", Some("t"), "3"))), ["a: t -> absent"]);
        assert!(apply(&mut writer, Event::Delete(namespace("a", Some("t"), "3"))).is_empty());
        assert!(store.get("", "a").is_none());
    }

    #[test]
    fn store_object_that_changes_its_group_is_reported_with_both() {
        let mut writer = writer();
        let store = writer.store();
        apply(&mut writer, Event::Apply(namespace("a", Some("t"), "1")));
        assert_eq!(apply(&mut writer, Event::Apply(namespace("a", Some("u"), "2"))), ["a: t -> u"]);
        assert_eq!((store.names_in_group("t").len(), store.names_in_group("u").len()), (0, 1));
        assert_eq!(apply(&mut writer, Event::Apply(namespace("a", None, "3"))), ["a: u -> none"]);
        assert!(store.names_in_group("u").is_empty());
    }

    #[test]
    fn store_new_list_reports_what_came_changed_and_went() {
        let mut writer = writer();
        let store = writer.store();
        for (name, tenant) in [("stays", "t"), ("goes", "t"), ("moves", "t")] {
            apply(&mut writer, Event::Apply(namespace(name, Some(tenant), "1")));
        }
        assert!(apply(&mut writer, Event::Init).is_empty());
        for (name, tenant) in [("stays", "t"), ("comes", "t"), ("moves", "u")] {
            assert!(apply(&mut writer, Event::InitApply(namespace(name, Some(tenant), "2"))).is_empty());
        }
        assert!(store.get("", "goes").is_some() && store.get("", "comes").is_none(), "the old list is kept until then");
        let changes = apply(&mut writer, Event::InitDone);
        assert_eq!(changes, ["comes: absent -> t", "goes: t -> absent", "moves: t -> u"]);
        assert_eq!(store.names_in_group("t"), ["comes", "stays"].map(String::from).into());
    }

    #[test]
    fn store_object_that_is_not_kept_counts_as_absent() {
        let mut writer = writer();
        let ignored = ignored(namespace("a", Some("t"), "2"));
        assert!(apply(&mut writer, Event::Apply(ignored.clone())).is_empty());
        apply(&mut writer, Event::Apply(namespace("a", Some("t"), "1")));
        assert_eq!(apply(&mut writer, Event::Apply(ignored)), ["a: t -> absent"]);
        assert!(writer.store().state().is_empty());
    }

    #[test]
    fn reading_distinguishes_changes_from_heartbeats_and_ignores_what_is_not_kept() {
        let mut writer = writer();
        let (store, mut last) = (writer.store(), None);
        assert_eq!(store.since(&mut last).map(|(objects, changed)| (objects.len(), changed)), Some((0, true)));
        assert!(store.since(&mut last).is_none());
        apply(&mut writer, Event::Apply(namespace("a", None, "1")));
        assert_eq!(store.since(&mut last).map(|(objects, changed)| (objects.len(), changed)), Some((1, true)));
        apply(&mut writer, Event::Apply(namespace("a", None, "2")));
        let (objects, changed) = store.since(&mut last).unwrap();
        assert_eq!((objects[0].resource_version().as_deref(), changed), (Some("2"), false));
        apply(&mut writer, Event::Apply(ignored(namespace("b", None, "3"))));
        assert!(store.since(&mut last).is_none());
    }

    #[test]
    fn store_namespace_query_excludes_namespaces_with_the_same_prefix() {
        let mut writer = writer();
        for (space, name) in [("a", "x"), ("a", "y"), ("a-1", "x"), ("b", "x")] {
            let mut object = namespace(name, None, "1");
            object.metadata.namespace = Some(space.into());
            writer.apply(Event::Apply(object));
        }
        let store = writer.store();
        assert_eq!((store.in_namespace("a").len(), store.in_namespace("").len()), (2, 0));
    }

    #[tokio::test]
    async fn store_is_ready_with_its_first_list() {
        let mut writer = writer();
        let store = writer.store();
        apply(&mut writer, Event::Init);
        apply(&mut writer, Event::InitApply(namespace("a", Some("t"), "1")));
        assert!(!*store.ready.borrow());
        apply(&mut writer, Event::InitDone);
        store.wait_until_ready(&|resource| assert_eq!(resource, "namespaces")).await;
        assert!(store.get("", "a").is_some());
    }
}
