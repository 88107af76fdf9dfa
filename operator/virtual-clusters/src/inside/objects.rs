//! Objects inside that this program writes: read, applied and deleted.

use std::{collections::BTreeMap, fmt::Debug};

use gputenancy_cluster::write::{FieldManager, present};
use gputenancy_crds::names as labels;
use kube::{Api, Client, Resource, api::DeleteParams};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::connect::{CallError, bounded, get};
use crate::names::{MANAGED_BY, MANAGER};

/// Most classes of one kind of this program that are read in one reconcile.
pub const MOST_CLASSES: usize = 100;

/// What is read of the metadata of an object inside.
#[derive(Deserialize, Debug, Default)]
pub struct SlimMetadata {
    #[serde(default)]
    /// Name of the object.
    pub name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl SlimMetadata {
    /// This program has written the object.
    pub fn is_ours(&self) -> bool {
        self.labels.get(labels::MANAGED_BY_LABEL).is_some_and(|by| by == MANAGED_BY)
    }
}

/// What happens to a `RuntimeClass` inside that has the name of a wanted one and was written by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// It becomes this program's.
    Replace,
    /// It stays as it is: an adopted vCluster may have its own.
    Keep,
}

/// The object at this path, if it exists.
pub async fn read<T: DeserializeOwned>(client: &Client, what: &str, path: &str) -> Result<Option<T>, CallError> {
    match get(client, what, path, None).await {
        Err(CallError::Refused { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.is_not_found()) => {
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

/// Applies an object. One that cannot be changed, such as an immutable `ConfigMap` or a `RuntimeClass` with another handler, is made again.
pub async fn apply<K>(api: &Api<K>, what: &str, name: &str, object: &Value) -> Result<(), CallError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let manager = FieldManager::new(MANAGER);
    let first = async {
        match manager.apply(api, name, object).await {
            Err(kube::Error::Api(status)) if status.is_invalid() => Ok(false),
            answer => answer.map(|_| true),
        }
    };
    if bounded(what, first).await? {
        return Ok(());
    }
    bounded(what, delete(api, name)).await?;
    bounded(what, manager.apply(api, name, object)).await.map(drop)
}

/// Deletes an object, if it exists.
pub async fn delete<K>(api: &Api<K>, name: &str) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    present(api.delete(name, &DeleteParams::default()).await).map(drop)
}
