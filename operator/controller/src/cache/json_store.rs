//! Objects that are kept as JSON and deserialized when they are read.
//!
//! A `BTreeMap` allocates eleven entries at once and `ObjectMeta` 350 bytes: as structs, namespaces and quotas of 10,000 tenants take more than
//! half of the operator's memory.

use std::{collections::BTreeSet, marker::PhantomData, sync::Arc};

use gputenancy_cluster::{
    desired::SpecHash,
    watch::{Projection, Store},
};
use gputenancy_crds::projection::tenant_of;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

/// An object as JSON.
pub struct JsonObject {
    /// Its tenant by label.
    pub tenant: Option<String>,
    hash: SpecHash,
    text: Box<[u8]>,
}

impl JsonObject {
    fn of<K: Resource + Serialize>(mut object: K) -> Self {
        let (tenant, text) = (tenant_of(&object), json(&object));
        object.meta_mut().resource_version = None;
        Self { tenant, hash: SpecHash::of_bytes(&json(&object)), text: text.into() }
    }
}

/// Types of this program always serialize.
fn json(object: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(object).unwrap_or_default()
}

/// How objects of a kind are kept, as projected.
pub fn projection<K: Resource + Serialize>(keep: fn(K) -> Option<JsonObject>) -> Projection<K, JsonObject> {
    Projection { keep, differs: |old, new| old.hash != new.hash, group: |object| object.tenant.as_deref() }
}

/// Projects an object and keeps it as JSON.
pub fn keep<K: Resource + Serialize>(mut object: K, project: fn(&mut K)) -> JsonObject {
    project(&mut object);
    JsonObject::of(object)
}

/// A store that returns objects.
pub struct JsonStore<K> {
    store: Store<JsonObject>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for JsonStore<K> {
    fn clone(&self) -> Self {
        Self::new(self.store.clone())
    }
}

impl<K> JsonStore<K> {
    /// Reads this store.
    pub fn new(store: Store<JsonObject>) -> Self {
        Self { store, kind: PhantomData }
    }

    /// The object of this namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>>
    where
        K: DeserializeOwned,
    {
        let object = self.store.get(namespace, name)?;
        let read = serde_json::from_slice(&object.text);
        read.inspect_err(|error| tracing::error!(%error, namespace, name, "cached object cannot be read"))
            .ok()
            .map(Arc::new)
    }

    /// Names of the objects of a tenant.
    pub fn names_of_tenant(&self, tenant: &str) -> BTreeSet<String> {
        self.store.names_in_group(tenant)
    }

    /// Waits until the store holds a first list, after naming the resource to `waiting`.
    pub async fn wait_until_ready(&self, waiting: &impl Fn(&'static str)) {
        self.store.wait_until_ready(waiting).await;
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::watch::Writer;
    use gputenancy_crds::projection::{SlimQuota, strip_metadata};
    use serde_json::json;

    use super::*;

    fn quota(version: &str, pods: &str) -> SlimQuota {
        serde_json::from_value(json!({
            "metadata": {"name": "gputenancy", "namespace": "a", "resourceVersion": version, "labels": {"gputenancy.io/tenant": "t"}},
            "spec": {"hard": {"pods": pods}}, "status": {"hard": {"pods": pods}, "used": {"pods": "0"}},
        }))
        .unwrap()
    }

    #[test]
    fn json_store_returns_objects_as_they_came_and_ignores_mere_versions() {
        let mut writer = Writer::new("resourcequotas", projection(|q: SlimQuota| Some(keep(q, strip_metadata))));
        let store = JsonStore::<SlimQuota>::new(writer.store());
        assert_eq!(writer.apply(kube::runtime::watcher::Event::Apply(quota("1", "2"))).len(), 1);
        assert_eq!(writer.apply(kube::runtime::watcher::Event::Apply(quota("2", "2"))).len(), 0);
        assert_eq!(*store.get("a", "gputenancy").unwrap(), quota("2", "2"));
        assert_eq!(writer.apply(kube::runtime::watcher::Event::Apply(quota("3", "4"))).len(), 1);
        assert_eq!(store.names_of_tenant("t"), ["gputenancy".to_owned()].into());
    }
}
