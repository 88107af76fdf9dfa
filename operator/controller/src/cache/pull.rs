//! Image pull secrets: in the operator's namespace with their content, elsewhere with a hash of it; and the service accounts that name them.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use gputenancy_cluster::{
    rights::operator::Locations,
    watch::{Store, Watch},
};
use gputenancy_crds::{names, projection::strip_metadata};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{Api, Client, Resource, api::ObjectMeta};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::triggers::Triggers;

/// Type of a Secret for pulling images.
pub const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// The key of its content.
pub const KEY: &str = ".dockerconfigjson";

/// Content of a Secret for pulling images: never shown, and never serialized but as a Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Vec<u8>);

impl Content {
    /// As the data of a Secret.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        [(KEY.to_owned(), ByteString(self.0.clone()))].into()
    }

    /// Its hash.
    pub fn hash(&self) -> ContentHash {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        ContentHash(hasher.finish())
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content(not shown)")
    }
}

/// Differs where contents differ; never shown or persisted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ContentHash(u64);

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentHash(not shown)")
    }
}

/// A Secret of the operator's own namespace that may be copied.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = Secret)]
pub struct Source {
    /// Name.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Its type, which never changes.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// Its content under [`KEY`].
    #[serde(default, rename = "data", deserialize_with = "content")]
    pub content: Option<Content>,
}

/// A Secret with such a name in any namespace.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = Secret)]
pub struct SlimSecret {
    /// Name, namespace, uid, version, labels.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Its type, which never changes.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// Its content never changes.
    #[serde(default)]
    pub immutable: bool,
    /// Hash of its content under [`KEY`].
    #[serde(default, rename = "data", deserialize_with = "content_hash")]
    pub hash: Option<ContentHash>,
}

/// The `ServiceAccount` of pods that name none.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = ServiceAccount)]
#[serde(rename_all = "camelCase")]
pub struct SlimAccount {
    /// Name, namespace, version.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Secrets with which its pods pull images.
    #[serde(default)]
    pub image_pull_secrets: Vec<Named>,
}

/// A reference by name.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// The name.
    #[serde(default)]
    pub name: String,
}

fn content<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Content>, D::Error> {
    // serde's own error would quote the content
    let data: Option<BTreeMap<String, ByteString>> =
        Option::deserialize(from).map_err(|_| D::Error::custom("the data of a Secret are not base64 by key"))?;
    Ok(data.and_then(|mut data| data.remove(KEY)).map(|bytes| Content(bytes.0)))
}

fn content_hash<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ContentHash>, D::Error> {
    Ok(content(from)?.as_ref().map(Content::hash))
}

/// The stores of one name.
#[derive(Clone)]
pub struct NamedSecrets {
    /// In the operator's namespace.
    pub source: Store<Source>,
    /// In all namespaces.
    pub secrets: Store<SlimSecret>,
}

/// The stores of all names that the chart allows.
#[derive(Clone)]
pub struct PullCaches {
    /// By name.
    pub named: BTreeMap<String, NamedSecrets>,
    /// `ServiceAccount`s of pods that name none; `None`: no name is allowed, so none are watched.
    pub accounts: Option<Store<SlimAccount>>,
}

impl PullCaches {
    /// Starts the watches, one for each name: the operator has no right on other Secrets.
    pub fn start(client: &Client, locations: &Locations, triggers: &Triggers) -> Self {
        let named =
            locations.pull_secrets.iter().map(|name| (name.clone(), named_secrets(client, locations, triggers, name)));
        let named: BTreeMap<_, _> = named.collect();
        let accounts = (!named.is_empty()).then(|| {
            Watch::new("serviceaccounts", Api::all(client.clone()), slim::<SlimAccount>)
                .fields(&named_field(names::DEFAULT_ACCOUNT))
                .start(triggers.namespace())
        });
        Self { named, accounts }
    }

    /// Waits until every store holds a first list.
    pub async fn ready(&self, waiting: &impl Fn(&'static str)) {
        let Self { named, accounts } = self;
        for NamedSecrets { source, secrets } in named.values() {
            source.wait_until_ready(waiting).await;
            secrets.wait_until_ready(waiting).await;
        }
        if let Some(accounts) = accounts {
            accounts.wait_until_ready(waiting).await;
        }
    }
}

fn named_secrets(client: &Client, locations: &Locations, triggers: &Triggers, name: &str) -> NamedSecrets {
    let own = Api::namespaced(client.clone(), &locations.namespace);
    NamedSecrets {
        source: Watch::new("secrets", own, slim::<Source>).fields(&named_field(name)).start(triggers.all_tenants()),
        secrets: Watch::new("secrets", Api::all(client.clone()), slim::<SlimSecret>)
            .fields(&named_field(name))
            .start(triggers.namespace()),
    }
}

fn named_field(name: &str) -> String {
    format!("metadata.name={name}")
}

#[expect(clippy::unnecessary_wraps, reason = "a projection returns an option")]
fn slim<K: Resource>(mut object: K) -> Option<K> {
    strip_metadata(&mut object);
    let meta = object.meta_mut();
    // kubectl's annotation may contain all of a Secret
    meta.annotations = None;
    meta.owner_references = None;
    Some(object)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn secret(data: &Value) -> Value {
        let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "c2VjcmV0"});
        json!({"metadata": {"name": "registry", "namespace": "a", "annotations": annotations}, "type": TYPE, "data": data})
    }

    fn hash(data: &Value) -> Option<ContentHash> {
        serde_json::from_value::<SlimSecret>(secret(data)).unwrap().hash
    }

    #[test]
    fn secret_hash_covers_the_key_of_its_type_only() {
        let source: Source = serde_json::from_value(secret(&json!({KEY: "e30="}))).unwrap();
        let wanted = source.content.as_ref().map(Content::hash);
        assert!(wanted.is_some());
        assert_eq!(hash(&json!({KEY: "e30=", "note": "eA=="})), wanted, "a team may add keys");
        assert_ne!(hash(&json!({KEY: "e30K"})), wanted);
        assert_eq!([hash(&json!({})), hash(&Value::Null)], [None, None]);
    }

    #[test]
    fn secret_debug_output_and_errors_contain_no_content() {
        let object = secret(&json!({KEY: "c2VjcmV0"}));
        let source: Source = slim(serde_json::from_value(object.clone()).unwrap()).unwrap();
        let slim_one: SlimSecret = slim(serde_json::from_value(object).unwrap()).unwrap();
        let hash = slim_one.hash.map(|h| h.0.to_string()).unwrap();
        for shown in [format!("{source:?}"), format!("{slim_one:?}"), format!("{:?}", source.content)] {
            let bytes = format!("{:?}", b"secret".to_vec());
            for content in ["c2VjcmV0", "secret\"", &bytes, bytes.trim_matches(['[', ']']), &hash] {
                assert!(!shown.contains(content), "{content} in {shown}");
            }
        }
        let broken = serde_json::from_value::<Source>(secret(&json!({KEY: "not base64!"}))).unwrap_err().to_string();
        assert!(!broken.contains("not base64!") && broken.contains("base64 by key"), "{broken}");
    }
}
