//! Image pull secrets: those of the operator's own namespace with their content, all others of these names with a print of it, and the
//! service accounts that name them.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
};

use gputenancy_engine::projection::strip_metadata;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{Api, Client, Resource, api::ObjectMeta};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{store::Store, triggers::Triggers, watch::Watch};
use crate::locations::Locations;

/// Type of a Secret for pulling images.
pub const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// The key under which such a Secret holds its content.
pub const KEY: &str = ".dockerconfigjson";
/// The `ServiceAccount` of pods that name none.
pub const ACCOUNT: &str = "default";

/// What a Secret for pulling images holds: never shown, and never serialised but as a Secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Content(Vec<u8>);

impl Content {
    /// As the data of a Secret.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        [(KEY.to_owned(), ByteString(self.0.clone()))].into()
    }

    /// By what it is told from another one.
    pub fn mark(&self) -> Mark {
        Mark(hash(&self.0))
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content(not shown)")
    }
}

/// A number that differs where contents differ; it never leaves this program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mark(not shown)")
    }
}

/// A Secret of the operator's own namespace that may be copied.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = Secret)]
pub struct Source {
    /// Name.
    pub metadata: ObjectMeta,
    /// Its type, which never changes.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// What it holds under [`KEY`].
    #[serde(default, rename = "data", deserialize_with = "content")]
    pub content: Option<Content>,
}

/// A Secret of such a name anywhere.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = Secret)]
pub struct SlimSecret {
    /// Name, namespace, uid, version, labels.
    pub metadata: ObjectMeta,
    /// Its type, which never changes.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// Its content never changes either.
    #[serde(default)]
    pub immutable: bool,
    /// What it holds under [`KEY`], by its mark.
    #[serde(default, rename = "data", deserialize_with = "mark")]
    pub mark: Option<Mark>,
}

/// The `ServiceAccount` of pods that name none.
#[derive(Resource, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = ServiceAccount)]
#[serde(rename_all = "camelCase")]
pub struct SlimAccount {
    /// Name, namespace, version.
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
    // the error of what is below would quote what it found
    let data: Option<BTreeMap<String, ByteString>> =
        Option::deserialize(from).map_err(|_| D::Error::custom("the data of a Secret are not base64 by key"))?;
    Ok(data.and_then(|mut data| data.remove(KEY)).map(|bytes| Content(bytes.0)))
}

fn mark<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mark>, D::Error> {
    Ok(content(from)?.as_ref().map(Content::mark))
}

fn hash(object: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    hasher.finish()
}

/// The stores of one name.
#[derive(Clone)]
pub struct Pulled {
    /// Of the operator's own namespace.
    pub source: Store<Source>,
    /// Of all namespaces.
    pub secrets: Store<SlimSecret>,
}

/// The stores of all names that the chart allows.
#[derive(Clone)]
pub struct PullCaches {
    /// By name.
    pub named: BTreeMap<String, Pulled>,
    /// `ServiceAccount`s of pods that name none; `None`: no name is allowed, and nothing watched.
    pub accounts: Option<Store<SlimAccount>>,
}

impl PullCaches {
    /// Starts the watches: by name, for the operator has no right on other Secrets.
    pub fn start(client: &Client, locations: &Locations, triggers: &Triggers) -> Self {
        let named = locations.pull_secrets.iter().map(|name| (name.clone(), pulled(client, locations, triggers, name)));
        let named: BTreeMap<_, _> = named.collect();
        let accounts = (!named.is_empty()).then(|| {
            Watch::new("serviceaccounts", Api::all(client.clone()), slim::<SlimAccount>)
                .fields(&named_field(ACCOUNT))
                .start(triggers.namespace())
        });
        Self { named, accounts }
    }

    /// Waits until every store holds a first list.
    pub async fn ready(&self, waiting: &impl Fn(&'static str)) {
        let Self { named, accounts } = self;
        for Pulled { source, secrets } in named.values() {
            source.wait_until_ready(waiting).await;
            secrets.wait_until_ready(waiting).await;
        }
        if let Some(accounts) = accounts {
            accounts.wait_until_ready(waiting).await;
        }
    }
}

fn pulled(client: &Client, locations: &Locations, triggers: &Triggers, name: &str) -> Pulled {
    let own = Api::namespaced(client.clone(), &locations.namespace);
    Pulled {
        source: Watch::new("secrets", own, slim::<Source>).fields(&named_field(name)).start(triggers.all_tenants()),
        secrets: Watch::new("secrets", Api::all(client.clone()), slim::<SlimSecret>)
            .fields(&named_field(name))
            .start(triggers.namespace()),
    }
}

fn named_field(name: &str) -> String {
    format!("metadata.name={name}")
}

#[expect(clippy::unnecessary_wraps, reason = "the type of a projection")]
fn slim<K: Resource>(mut object: K) -> Option<K> {
    strip_metadata(&mut object);
    let meta = object.meta_mut();
    // kubectl's own annotation may hold all of a Secret
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

    fn print(data: &Value) -> Option<Mark> {
        serde_json::from_value::<SlimSecret>(secret(data)).unwrap().mark
    }

    #[test]
    fn a_copy_is_told_from_its_source_by_what_it_holds_under_the_key_of_its_type() {
        let source: Source = serde_json::from_value(secret(&json!({KEY: "e30="}))).unwrap();
        let wanted = source.content.as_ref().map(Content::mark);
        assert!(wanted.is_some());
        assert_eq!(print(&json!({KEY: "e30=", "note": "eA=="})), wanted, "what somebody adds is theirs");
        assert_ne!(print(&json!({KEY: "e30K"})), wanted);
        assert_eq!([print(&json!({})), print(&Value::Null)], [None, None]);
    }

    #[test]
    fn nothing_of_a_secret_is_ever_shown() {
        let object = secret(&json!({KEY: "c2VjcmV0"}));
        let source: Source = slim(serde_json::from_value(object.clone()).unwrap()).unwrap();
        let slim_one: SlimSecret = slim(serde_json::from_value(object).unwrap()).unwrap();
        let mark = slim_one.mark.map(|m| m.0.to_string()).unwrap();
        for shown in [format!("{source:?}"), format!("{slim_one:?}"), format!("{:?}", source.content)] {
            let bytes = format!("{:?}", b"secret".to_vec());
            for secret in ["c2VjcmV0", "secret\"", &bytes, bytes.trim_matches(['[', ']']), &mark] {
                assert!(!shown.contains(secret), "{secret} in {shown}");
            }
        }
        let broken = serde_json::from_value::<Source>(secret(&json!({KEY: "not base64!"}))).unwrap_err().to_string();
        assert!(!broken.contains("not base64!") && broken.contains("base64 by key"), "{broken}");
    }
}
