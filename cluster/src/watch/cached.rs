//! One watch per kind: fills a store and reports each change.

use std::{fmt::Debug, pin::pin, time::Duration};

use futures::StreamExt as _;
use kube::{Api, Client, Resource, ResourceExt, runtime::watcher};
use serde::de::DeserializeOwned;

use super::{
    Restarts, events,
    store::{Change, Projection, Store, Writer},
};
use crate::error::sentence;

/// Longest delay before a failed watch starts again: twenty watches then cost a starting API server four requests a second.
pub const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A watch of one kind: its objects, and the part of them that is kept.
pub struct Watch<K, V> {
    /// Plural name of the resource.
    pub resource: &'static str,
    /// Where.
    pub api: Api<K>,
    /// Selectors.
    pub config: watcher::Config,
    /// The part of each object that is kept.
    pub projection: Projection<K, V>,
}

impl<K, V> Watch<K, V>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    V: Send + Sync + 'static,
{
    /// All objects of a kind, of which `keep` leaves what is stored.
    pub fn new(resource: &'static str, api: Api<K>, keep: fn(K) -> Option<V>) -> Self
    where
        V: ResourceExt + Clone + PartialEq,
    {
        let projection = Projection { keep, differs, group: |_| None };
        Self { resource, api, config: watcher::Config::default(), projection }
    }

    /// Only objects that this field selector matches.
    #[must_use]
    pub fn fields(self, selector: &str) -> Self {
        Self { config: self.config.fields(selector), ..self }
    }

    /// Only objects that this label selector matches.
    #[must_use]
    pub fn labels(self, selector: &str) -> Self {
        Self { config: self.config.labels(selector), ..self }
    }

    /// Starts the watch in a task that ends with the runtime; `changed` is called after the store has changed.
    pub fn start(self, mut changed: impl FnMut(Change<V>) + Send + 'static) -> Store<V> {
        let Self { resource, api, config, projection } = self;
        let mut writer = Writer::new(resource, projection);
        let store = writer.store();
        tokio::spawn(async move {
            let mut events = pin!(events(api, config, LONGEST_DELAY));
            let mut restarts = Restarts::new(resource);
            while let Some(event) = events.next().await {
                let event = restarts.note(event).into_iter();
                event.flat_map(|event| writer.apply(event)).for_each(&mut changed);
            }
        });
        store
    }

    /// As [`Watch::start`] for a kind of another product, which may be installed and removed at any time: while the API server does not serve the kind of
    /// this group and version, the store is empty and ready.
    pub fn start_while_served(
        self,
        client: Client,
        api_version: &'static str,
        mut changed: impl FnMut(Change<V>) + Send + 'static,
    ) -> Store<V> {
        let Self { resource, api, config, projection } = self;
        let mut writer = Writer::new(resource, projection);
        let store = writer.store();
        tokio::spawn(async move {
            loop {
                match serves(&client, api_version, resource).await {
                    Ok(true) => {}
                    Ok(false) => {
                        for event in [watcher::Event::Init, watcher::Event::InitDone] {
                            writer.apply(event).into_iter().for_each(&mut changed);
                        }
                        tokio::time::sleep(UNSERVED).await;
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(error = sentence(&error), resource, "discovery failed, retrying");
                        tokio::time::sleep(LONGEST_DELAY).await;
                        continue;
                    }
                }
                let mut events = pin!(events(api.clone(), config.clone(), LONGEST_DELAY));
                let mut restarts = Restarts::new(resource);
                while let Some(event) = events.next().await {
                    // the kind may be gone
                    if event.is_err() && matches!(serves(&client, api_version, resource).await, Ok(false)) {
                        break;
                    }
                    let event = restarts.note(event).into_iter();
                    event.flat_map(|event| writer.apply(event)).for_each(&mut changed);
                }
            }
        });
        store
    }
}

/// How long the API server is not asked again whether it serves a kind.
const UNSERVED: Duration = Duration::from_secs(30);

/// Does the API server serve this kind of this group and version?
pub async fn serves(client: &Client, api_version: &str, plural: &str) -> kube::Result<bool> {
    match client.list_api_group_resources(api_version).await {
        Ok(known) => Ok(known.resources.iter().any(|r| r.name == plural)),
        // for a group that it does not know the API server answers in plain text, without a reason
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Do two objects differ in more than their version, which changes with every write?
pub fn differs<V: Resource + Clone + PartialEq>(old: &V, new: &V) -> bool {
    let mut old = old.clone();
    old.meta_mut().resource_version.clone_from(&new.meta().resource_version);
    old != *new
}
