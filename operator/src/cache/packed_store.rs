//! A store of objects that are many and seldom read: each is [packed](super::pack), and made anew for whoever asks.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use kube::{Resource, runtime::watcher::Event};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::{
    pack::{Packed, Packer},
    watch::Indexer,
};

/// What is there, for readers; `Open` is what lies open of each object, for those who look at all of them.
pub struct PackedStore<K, Open = ()> {
    kept: Arc<RwLock<Kept<Open>>>,
    places: Places,
    ready: watch::Receiver<bool>,
    kind: PhantomData<fn() -> K>,
}

impl<K, Open> Clone for PackedStore<K, Open> {
    fn clone(&self) -> Self {
        Self { kept: self.kept.clone(), places: self.places.clone(), ready: self.ready.clone(), kind: PhantomData }
    }
}

struct Kept<Open> {
    packer: Packer,
    objects: Objects<Open>,
}

impl<Open> Default for Kept<Open> {
    fn default() -> Self {
        Self { packer: Packer::default(), objects: Objects::default() }
    }
}

type Objects<Open> = HashMap<Place, Slot<Open>>;

/// An object's namespace and name as 128 bits, which take less room than they would. Nobody who does not know this program's secret can
/// find two that meet, and by chance two of a million objects do in one of 10^26 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place(u64, u64);

/// The secret.
#[derive(Clone, Debug, Default)]
struct Places(RandomState, RandomState);

impl Places {
    /// Where the object of this name is; of what has no namespace, with an empty one.
    fn of(&self, namespace: &str, name: &str) -> Place {
        Place(self.0.hash_one((namespace, name)), self.1.hash_one((namespace, name)))
    }

    fn of_object(&self, object: &impl Resource) -> Place {
        let meta = object.meta();
        self.of(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

struct Slot<Open> {
    /// What must differ for a change to count.
    digest: u64,
    object: Packed,
    open: Open,
}

impl<Open> Kept<Open> {
    fn read<K: DeserializeOwned>(&self, slot: &Slot<Open>) -> Option<K> {
        let text = self.packer.unpack(&slot.object)?;
        serde_json::from_slice(&text)
            .inspect_err(|error| tracing::error!(%error, "what was kept of an object cannot be read"))
            .ok()
    }
}

impl<K: DeserializeOwned, Open> PackedStore<K, Open> {
    /// The object of this name; of what has no namespace, with an empty one.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let kept = read(&self.kept);
        kept.read(kept.objects.get(&self.places.of(namespace, name))?).map(Arc::new)
    }
}

impl<K, Open: Clone> PackedStore<K, Open> {
    /// What lies open of an object, and its text.
    pub fn with_text(&self, namespace: &str, name: &str) -> Option<(Open, Vec<u8>)> {
        let kept = read(&self.kept);
        let slot = kept.objects.get(&self.places.of(namespace, name))?;
        Some((slot.open.clone(), kept.packer.unpack(&slot.object)?))
    }

    /// Of what lies open of all objects, what is wanted.
    pub fn open<T>(&self, wanted: impl Fn(&Open) -> Option<T>) -> Vec<T> {
        read(&self.kept).objects.values().filter_map(|slot| wanted(&slot.open)).collect()
    }
}

impl<K, Open> PackedStore<K, Open> {
    /// Waits until it holds a first list; ends without one only when the runtime ends.
    pub async fn wait_until_ready(&self) {
        drop(self.ready.clone().wait_for(|ready| *ready).await);
    }
}

fn read<Open>(kept: &RwLock<Kept<Open>>) -> RwLockReadGuard<'_, Kept<Open>> {
    kept.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<Open>(kept: &RwLock<Kept<Open>>) -> RwLockWriteGuard<'_, Kept<Open>> {
    kept.write().unwrap_or_else(PoisonError::into_inner)
}

/// How objects of a kind are kept.
pub struct How<K, Key, Open> {
    /// What listeners are told about an object.
    pub key: fn(&K) -> Key,
    /// What must differ for a change to count.
    pub digest: fn(&K) -> u64,
    /// What is packed of it; it is read as `K` again.
    pub text: fn(&K) -> Vec<u8>,
    /// What lies open beside that.
    pub open: fn(&K) -> Open,
    /// Where it is noted what belongs together.
    pub index: Option<Indexer<Key>>,
}

/// All of an object, as text. What is declared in this program is always text.
pub fn whole(object: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(object).unwrap_or_default()
}

/// The one that fills a store from a watch.
pub struct PackedWriter<K, Key, Open = ()> {
    kept: Arc<RwLock<Kept<Open>>>,
    places: Places,
    ready: watch::Sender<bool>,
    /// The objects of a new list that is not complete.
    listed: Objects<Open>,
    how: How<K, Key, Open>,
}

impl<K, Key, Open> PackedWriter<K, Key, Open>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
    Key: PartialEq,
{
    /// An empty store, and its writer.
    pub fn new(how: How<K, Key, Open>) -> (PackedStore<K, Open>, Self) {
        let (sender, ready) = watch::channel(false);
        let (kept, places) = (Arc::<RwLock<Kept<Open>>>::default(), Places::default());
        let (listed, again) = (Objects::default(), places.clone());
        let writer = Self { kept: kept.clone(), places: again, ready: sender, listed, how };
        (PackedStore { kept, places, ready, kind: PhantomData }, writer)
    }

    /// Takes one event in, and then tells of each real change. An object is in the index before it is here, and until after it has gone.
    pub fn note(&mut self, event: Event<K>, mut tell: impl FnMut(Key)) {
        match event {
            Event::Apply(object) => {
                let (key, slot) = (self.come(&object), self.pack(&object));
                let digest = slot.digest;
                let old = write(&self.kept).objects.insert(self.places.of_object(&object), slot);
                if old.as_ref().is_none_or(|old| old.digest != digest) {
                    self.tell_old(old.as_ref(), Some(&key), &mut tell);
                    tell(key);
                }
            }
            Event::Delete(object) => {
                let old = write(&self.kept).objects.remove(&self.places.of_object(&object));
                self.tell_old(old.as_ref(), None, &mut tell);
            }
            Event::Init => self.listed = Objects::default(),
            Event::InitApply(object) => {
                self.come(&object);
                let slot = self.pack(&object);
                self.listed.insert(self.places.of_object(&object), slot);
            }
            Event::InitDone => {
                let old = std::mem::replace(&mut write(&self.kept).objects, std::mem::take(&mut self.listed));
                self.ready.send_replace(true);
                // nobody but this one writes, so what is read here is what was listed
                let changes: Vec<(Option<Key>, Option<&Slot<Open>>)> = {
                    let kept = read(&self.kept);
                    let gone = old.iter().filter(|(place, _)| !kept.objects.contains_key(*place));
                    let gone = gone.map(|(_, slot)| (None, Some(slot)));
                    let changed = kept.objects.iter().filter_map(|(place, slot)| {
                        let before = old.get(place);
                        let differs = before.is_none_or(|before| before.digest != slot.digest);
                        differs.then(|| (kept.read(slot).map(|object| (self.how.key)(&object)), before))
                    });
                    gone.chain(changed).collect()
                };
                for (key, before) in changes {
                    self.tell_old(before, key.as_ref(), &mut tell);
                    key.into_iter().for_each(&mut tell);
                }
            }
        }
    }

    fn pack(&self, object: &K) -> Slot<Open> {
        let How { key: _, digest, text, open, index: _ } = &self.how;
        let packed = write(&self.kept).packer.pack(&text(object));
        Slot { digest: digest(object), object: packed, open: open(object) }
    }

    /// Notes in the index what is about to be here.
    fn come(&self, object: &K) -> Key {
        let key = (self.how.key)(object);
        if let Some(indexer) = &self.how.index {
            indexer.note(&key, true);
        }
        key
    }

    /// Tells those of an object that it has been changed or has gone who are not told as those of the new one.
    fn tell_old(&self, old: Option<&Slot<Open>>, new: Option<&Key>, tell: &mut impl FnMut(Key)) {
        let Some(object) = old.and_then(|slot| read(&self.kept).read(slot)) else { return };
        let key = (self.how.key)(&object);
        if new == Some(&key) {
            return;
        }
        if let Some(indexer) = &self.how.index {
            indexer.part(&key, new);
        }
        tell(key);
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::{super::Index, *};
    use crate::cache::{SlimNamespace, digest, tenant_of};

    type Key = (String, Option<String>);

    fn namespace(name: &str, tenant: Option<&str>, version: &str) -> SlimNamespace {
        let labels = tenant.map(|tenant| json!({"gputenancy.io/tenant": tenant}));
        let meta = json!({"name": name, "labels": labels, "resourceVersion": version});
        serde_json::from_value(json!({"metadata": meta, "status": {"phase": "Active"}})).unwrap()
    }

    fn store() -> (PackedStore<SlimNamespace>, PackedWriter<SlimNamespace, Key>, Index) {
        let index = Index::default();
        let indexer =
            Indexer { index: index.clone(), of: |(name, tenant): &Key| Some((tenant.as_deref()?, name.as_str())) };
        let key = |n: &SlimNamespace| (n.name_any(), tenant_of(n));
        let how = How { key, digest: |n| digest(&n.metadata.labels), text: whole, open: |_| (), index: Some(indexer) };
        let (store, writer) = PackedWriter::new(how);
        (store, writer, index)
    }

    fn note(writer: &mut PackedWriter<SlimNamespace, Key>, event: Event<SlimNamespace>) -> Vec<String> {
        let mut told = Vec::new();
        writer.note(event, |(name, tenant)| told.push(format!("{name} of {}", tenant.unwrap_or("nobody".into()))));
        told.sort();
        told
    }

    #[test]
    fn heartbeats_are_silent_and_the_version_follows() {
        let (store, mut writer, _) = store();
        assert_eq!(note(&mut writer, Event::Apply(namespace("a", Some("t"), "1"))), ["a of t"]);
        assert!(note(&mut writer, Event::Apply(namespace("a", Some("t"), "2"))).is_empty());
        assert_eq!(store.get("", "a").unwrap().resource_version().as_deref(), Some("2"));
        assert_eq!(note(&mut writer, Event::Delete(namespace("a", Some("t"), "3"))), ["a of t"]);
        assert!(note(&mut writer, Event::Delete(namespace("a", Some("t"), "3"))).is_empty());
        assert!(store.get("", "a").is_none());
    }

    #[test]
    fn who_has_lost_an_object_is_told_as_well_as_who_has_it_now() {
        let (_, mut writer, index) = store();
        note(&mut writer, Event::Apply(namespace("a", Some("t"), "1")));
        assert_eq!(note(&mut writer, Event::Apply(namespace("a", Some("u"), "2"))), ["a of t", "a of u"]);
        assert_eq!((index.of("t").len(), index.of("u").len()), (0, 1));
        assert_eq!(note(&mut writer, Event::Apply(namespace("a", None, "3"))), ["a of nobody", "a of u"]);
        assert!(index.of("u").is_empty());
    }

    #[test]
    fn a_new_list_tells_of_what_came_changed_and_went_meanwhile() {
        let (store, mut writer, index) = store();
        for (name, tenant) in [("stays", "t"), ("goes", "t"), ("moves", "t")] {
            note(&mut writer, Event::Apply(namespace(name, Some(tenant), "1")));
        }
        assert!(note(&mut writer, Event::Init).is_empty());
        for (name, tenant) in [("stays", "t"), ("comes", "t"), ("moves", "u")] {
            assert!(note(&mut writer, Event::InitApply(namespace(name, Some(tenant), "2"))).is_empty());
        }
        assert!(store.get("", "goes").is_some() && store.get("", "comes").is_none(), "the old list stands until then");
        let told = note(&mut writer, Event::InitDone);
        assert_eq!(told, ["comes of t", "goes of t", "moves of t", "moves of u"]);
        assert!(store.get("", "goes").is_none());
        assert_eq!(index.of("t"), ["comes", "stays"].map(String::from).into());
    }

    #[test]
    fn whoever_sees_an_object_finds_it_in_the_index() {
        let (store, mut writer, index) = store();
        let events = [
            Event::Init,
            Event::InitApply(namespace("a", Some("t"), "1")),
            Event::InitDone,
            Event::Apply(namespace("b", Some("t"), "2")),
            Event::Apply(namespace("a", Some("u"), "3")),
            Event::Delete(namespace("b", Some("t"), "4")),
        ];
        let whole = || {
            for name in ["a", "b"] {
                if let Some(tenant) = store.get("", name).and_then(|n| tenant_of(&*n)) {
                    assert!(index.of(&tenant).contains(name), "{name} of {tenant}");
                }
            }
        };
        for event in events {
            writer.note(event, |_| whole());
            whole();
        }
    }

    #[tokio::test]
    async fn it_is_ready_with_its_first_list() {
        let (store, mut writer, _) = store();
        note(&mut writer, Event::Init);
        note(&mut writer, Event::InitApply(namespace("a", Some("t"), "1")));
        assert!(!*store.ready.borrow());
        note(&mut writer, Event::InitDone);
        store.wait_until_ready().await;
        assert!(store.get("", "a").is_some());
    }
}
