//! One watch per kind: a store that holds a projection, and a word about each real change.

use std::{collections::HashMap, fmt::Debug, hash::Hash, time::Duration};

use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    index::Index,
    packed_store::{self, How, PackedStore, PackedWriter},
};

/// Longest delay before a failed watch starts again. A leader has some twenty watches, so that this costs an API server that
/// starts four requests a second.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Backoff of a failed watch.
pub fn backoff() -> watcher::ExponentialBackoff {
    gputenancy_service::backoff::watch(MAX_BACKOFF)
}

/// Which objects have been seen in which state, so that heartbeats pass in silence and deletions do not.
pub struct Seen<Key, Digest> {
    now: HashMap<Key, Digest>,
    relisted: Option<HashMap<Key, Digest>>,
}

impl<Key: Eq + Hash + Clone, Digest: PartialEq> Default for Seen<Key, Digest> {
    fn default() -> Self {
        Self { now: HashMap::new(), relisted: None }
    }
}

/// What a watch event is about, by key and state.
pub enum Sight<Key, Digest> {
    /// The object is there.
    There(Key, Digest),
    /// The object has gone.
    Gone(Key),
    /// A new list begins.
    ListBegins,
    /// An object of the new list.
    Listed(Key, Digest),
    /// The list is complete: what it lacks has gone.
    ListEnds,
}

impl<Key: Eq + Hash + Clone, Digest: PartialEq> Seen<Key, Digest> {
    /// The keys of objects that have changed with this event, and whether they are there.
    pub fn note(&mut self, sight: Sight<Key, Digest>) -> Vec<(Key, bool)> {
        match sight {
            Sight::There(key, digest) => {
                let same = self.now.get(&key) == Some(&digest);
                self.now.insert(key.clone(), digest);
                if same { Vec::new() } else { vec![(key, true)] }
            }
            Sight::Gone(key) => self.now.remove(&key).map(|_| (key, false)).into_iter().collect(),
            Sight::ListBegins => {
                self.relisted = Some(HashMap::new());
                Vec::new()
            }
            Sight::Listed(key, digest) => {
                self.relisted.get_or_insert_default().insert(key, digest);
                Vec::new()
            }
            Sight::ListEnds => {
                let new = self.relisted.take().unwrap_or_default();
                let old = std::mem::replace(&mut self.now, new);
                let gone = old.keys().filter(|k| !self.now.contains_key(*k)).map(|k| (k.clone(), false));
                let changed = self.now.iter().filter(|(k, d)| old.get(*k) != Some(*d)).map(|(k, _)| (k.clone(), true));
                gone.chain(changed).collect()
            }
        }
    }
}

/// How one kind is watched.
pub struct Watch<K: Resource, Key> {
    /// Where.
    pub api: Api<K>,
    /// Selectors.
    pub config: watcher::Config,
    /// Cuts an object down before it is stored.
    pub project: fn(&mut K),
    /// Objects that are not stored at all; the answer must not change during an object's life.
    pub keep: fn(&K) -> bool,
    /// What listeners are told about an object; also its identity.
    pub key: fn(&K) -> Key,
    /// What must differ for a change to count.
    pub digest: fn(&K) -> u64,
    /// Where it is noted what belongs together.
    pub index: Option<Indexer<Key>>,
}

/// An index, and the place of an object in it.
#[derive(Clone)]
pub struct Indexer<Key> {
    /// The index.
    pub index: Index,
    /// What an object of this key belongs to, and its name there.
    pub of: fn(&Key) -> Option<(&str, &str)>,
}

impl<Key> Indexer<Key> {
    /// The object of this key is there, or no longer.
    pub fn note(&self, key: &Key, there: bool) {
        if let Some((whole, name)) = (self.of)(key) {
            self.index.note(whole, name, there);
        }
    }

    /// The object of this key has gone, or belongs now where the other says.
    pub fn part(&self, key: &Key, new: Option<&Key>) {
        if new.and_then(self.of) != (self.of)(key) {
            self.note(key, false);
        }
    }
}

impl<K, Key> Watch<K, Key>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    Key: Eq + Hash + Clone + Send + 'static,
{
    /// Begins to watch in a task of its own that ends with the runtime; `changed` is called after the store has changed.
    pub fn start(self, mut changed: impl FnMut(Key) + Send + 'static) -> Store<K> {
        let Self { api, config, project, keep, key, digest, index } = self;
        let early = index.clone();
        let events = watcher(api, config.streaming_lists())
            .backoff(backoff())
            .modify(project)
            .try_filter(kept(keep))
            .inspect_ok(move |event| {
                // before the store has it: a store that is ready is never ahead of its index
                if let (Some(indexer), watcher::Event::Apply(object) | watcher::Event::InitApply(object)) =
                    (&early, event)
                {
                    indexer.note(&key(object), true);
                }
            });
        follow(events, key, digest, move |key, there| {
            if let (Some(indexer), false) = (&index, there) {
                indexer.note(&key, false);
            }
            changed(key);
        })
    }
}

/// Passes on what is said of objects that are stored, and that one has gone.
fn kept<K>(keep: fn(&K) -> bool) -> impl FnMut(&watcher::Event<K>) -> future::Ready<bool> {
    move |event| {
        future::ready(match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => keep(object),
            _ => true,
        })
    }
}

/// Keeps a store of what `events` tell, in a task of its own; `changed` is called after the store has changed, with the key of an object and
/// whether it is there.
pub fn follow<K, Key>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    key: fn(&K) -> Key,
    digest: fn(&K) -> u64,
    mut changed: impl FnMut(Key, bool) + Send + 'static,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    Key: Eq + Hash + Clone + Send + 'static,
{
    let (store, writer) = reflector::store();
    let events = events.reflect(writer);
    tokio::spawn(async move {
        let mut seen = Seen::default();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let sight = match event {
                Ok(watcher::Event::Apply(o)) => Sight::There(key(&o), digest(&o)),
                Ok(watcher::Event::Delete(o)) => Sight::Gone(key(&o)),
                Ok(watcher::Event::Init) => Sight::ListBegins,
                Ok(watcher::Event::InitApply(o)) => Sight::Listed(key(&o), digest(&o)),
                Ok(watcher::Event::InitDone) => Sight::ListEnds,
                Err(error) => {
                    tracing::warn!(%error, kind = %K::kind(&()), "the watch failed and is started again");
                    continue;
                }
            };
            for (key, there) in seen.note(sight) {
                changed(key, there);
            }
        }
    });
    store
}

impl<K, Key> Watch<K, Key>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    Key: PartialEq + Send + 'static,
{
    /// As [`Self::start`], of a kind of which there are many objects that are seldom read. Who has lost an object to somebody else is told
    /// too.
    pub fn start_packed(self, changed: impl FnMut(Key) + Send + 'static) -> PackedStore<K> {
        let Self { api, config, project, keep, key, digest, index } = self;
        let events = watcher(api, config.streaming_lists()).backoff(backoff()).modify(project);
        let events = events.try_filter(kept(keep));
        let how = How { key, digest, text: packed_store::whole, open: |_| (), index };
        follow_packed(events, how, changed)
    }
}

/// Keeps a packed store of what `events` tell, in a task of its own; `changed` is called after the store has changed.
pub fn follow_packed<K, Key, Open>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    how: How<K, Key, Open>,
    mut changed: impl FnMut(Key) + Send + 'static,
) -> PackedStore<K, Open>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    Key: PartialEq + Send + 'static,
    Open: Send + Sync + 'static,
{
    let (store, mut writer) = PackedWriter::new(how);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => writer.note(event, &mut changed),
                Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "the watch failed and is started again"),
            }
        }
    });
    store
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_are_silent_and_deletions_are_not() {
        let mut seen = Seen::default();
        assert_eq!(seen.note(Sight::There("n", 1)), [("n", true)]);
        assert_eq!(seen.note(Sight::There("n", 1)), []);
        assert_eq!(seen.note(Sight::There("n", 2)), [("n", true)]);
        assert_eq!(seen.note(Sight::Gone("n")), [("n", false)]);
        assert_eq!(seen.note(Sight::Gone("n")), []);
    }

    #[test]
    fn a_new_list_tells_of_what_came_changed_and_went_meanwhile() {
        let mut seen = Seen::default();
        for n in ["stays", "goes", "changes"] {
            seen.note(Sight::There(n, 1));
        }
        seen.note(Sight::ListBegins);
        seen.note(Sight::Listed("stays", 1));
        seen.note(Sight::Listed("changes", 2));
        seen.note(Sight::Listed("comes", 1));
        let mut told = seen.note(Sight::ListEnds);
        told.sort_unstable();
        assert_eq!(told, [("changes", true), ("comes", true), ("goes", false)]);
    }
}
