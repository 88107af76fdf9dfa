//! The four objects of each tenant, and waiting for them.

use std::time::{Duration, Instant};

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    wait::PATIENCE,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{LimitRange, Namespace, ResourceQuota},
    networking::v1::NetworkPolicy,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::presence::{Change, Kind, Presence};

/// Time for which all objects must be present.
const HOLD: Duration = Duration::from_secs(5);

/// The specs of quota, limit range and network policy of a tenant's namespace.
pub struct Four {
    pub quota: Value,
    pub limits: Value,
    pub policy: Value,
}

impl Four {
    /// Reads those named gputenancy.
    pub async fn of(world: &World, namespace: &str) -> Result<Self> {
        let client = &world.client;
        Ok(Self {
            quota: only(&Api::<ResourceQuota>::namespaced(client.clone(), namespace)).await?,
            limits: only(&Api::<LimitRange>::namespaced(client.clone(), namespace)).await?,
            policy: only(&Api::<NetworkPolicy>::namespaced(client.clone(), namespace)).await?,
        })
    }

    /// Creates a namespace of this name and writes them into it.
    pub async fn write(&self, client: &Client, name: &str) -> Result<()> {
        let Self { quota, limits, policy } = self;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create(&Actor::Admin, client, "/api/v1/namespaces", &namespace).await?;
        for (path, version, kind, spec) in [
            ("/api/v1/namespaces/{}/resourcequotas", "v1", "ResourceQuota", quota),
            ("/api/v1/namespaces/{}/limitranges", "v1", "LimitRange", limits),
            (
                "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
                "networking.k8s.io/v1",
                "NetworkPolicy",
                policy,
            ),
        ] {
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "bench"}, "spec": spec});
            create(&Actor::Admin, client, &path.replace("{}", name), &object).await?;
        }
        Ok(())
    }
}

/// The spec of the only object of a kind.
async fn only<K>(api: &Api<K>) -> Result<Value>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    // a second quota counts pods by their affinity
    let found = api.list(&ListParams::default().fields("metadata.name=gputenancy")).await?.items;
    let [one] = found.as_slice() else {
        return Err(Error::Wrong(format!("{} objects {} where one was expected", found.len(), K::kind(&()))));
    };
    let value = serde_json::to_value(one).map_err(|e| Error::Text { what: "an object".into(), why: e.to_string() })?;
    Ok(value.get("spec").cloned().unwrap_or_default())
}

/// Creates an object as another identity.
pub async fn create(actor: &Actor, client: &Client, path: &str, object: &Value) -> Result<()> {
    actor.does(client, Verb::Create, path, object).await.map(drop)
}

/// Waits until every tenant with this prefix has kept all four objects.
pub async fn all_there(client: &Client, prefix: &str, tenants: usize) -> Result<Presence> {
    let mut presence = Presence::of(tenants);
    let mut events = stream::select_all([
        watched::<Namespace>(client, Kind::Namespace),
        watched::<ResourceQuota>(client, Kind::Quota),
        watched::<LimitRange>(client, Kind::Limits),
        watched::<NetworkPolicy>(client, Kind::Policy),
    ]);
    loop {
        let until = presence.complete_since().map_or(Instant::now() + PATIENCE, |since| since + HOLD);
        let Ok(event) = tokio::time::timeout_at(until.into(), events.next()).await else {
            return if presence.complete_since().is_some() {
                Ok(presence)
            } else {
                Err(Error::Wrong(presence.to_string()))
            };
        };
        let Some((kind, seen)) = event.transpose()? else {
            return Err(Error::Wrong("the watches have ended".into()));
        };
        let ours = match &seen {
            Change::Restarted => true,
            Change::Exists(namespace, _) | Change::Deleted(namespace, _) => namespace.starts_with(prefix),
        };
        if ours {
            presence.apply(kind, seen, Instant::now());
        }
    }
}

/// Events of a watch.
fn watched<K>(client: &Client, kind: Kind) -> stream::BoxStream<'static, Result<(Kind, Change)>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let events =
        watcher(Api::<PartialObjectMeta<K>>::all(client.clone()), watcher::Config::default()).default_backoff();
    let seen = move |event: Event<PartialObjectMeta<K>>| {
        let seen = match event {
            Event::Init => Change::Restarted,
            Event::Apply(o) | Event::InitApply(o) => Change::Exists(place(&o), o.name_any()),
            Event::Delete(o) => Change::Deleted(place(&o), o.name_any()),
            Event::InitDone => return None,
        };
        Some((kind, seen))
    };
    let events = events.map_err(|e| Error::Wrong(e.to_string()));
    events.try_filter_map(move |event| std::future::ready(Ok(seen(event)))).boxed()
}

/// The namespace of an object, which a namespace itself is.
fn place(object: &impl ResourceExt) -> String {
    object.namespace().unwrap_or_else(|| object.name_any())
}
