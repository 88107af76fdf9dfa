//! Image pull secrets: those of the operator's own namespace with their content, all others of these names with a print of it, and the
//! service accounts that name them.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::ObjectMeta,
    runtime::{reflector::Store, watcher},
};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{EVERYBODY, OF_NAMESPACE, Wakes, project::lighten, wait, watch::Watch};
use crate::args::Places;

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
#[derive(Resource, Deserialize, Clone, Debug)]
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
#[derive(Resource, Deserialize, Clone, Debug)]
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
#[derive(Resource, Deserialize, Clone, Debug)]
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
    pub fn start(client: &Client, places: &Places, wakes: &Wakes) -> Self {
        let named = places.pull_secrets.iter().map(|name| (name.clone(), pulled(client, places, wakes, name)));
        let named: BTreeMap<_, _> = named.collect();
        let accounts = (!named.is_empty()).then(|| {
            Watch {
                api: Api::all(client.clone()),
                config: only(ACCOUNT),
                project: slim,
                keep: |_| true,
                key: |a: &SlimAccount| a.namespace(),
                digest: |a: &SlimAccount| hash(&a.image_pull_secrets),
                index: None,
            }
            .start(of_namespace(wakes))
        });
        Self { named, accounts }
    }

    /// Waits until every store holds a first list.
    pub async fn ready(&self, waiting: &impl Fn(&'static str)) {
        let Self { named, accounts } = self;
        for Pulled { source, secrets } in named.values() {
            wait(source.wait_until_ready(), "secrets", waiting).await;
            wait(secrets.wait_until_ready(), "secrets", waiting).await;
        }
        if let Some(accounts) = accounts {
            wait(accounts.wait_until_ready(), "serviceaccounts", waiting).await;
        }
    }
}

fn pulled(client: &Client, places: &Places, wakes: &Wakes, name: &str) -> Pulled {
    let tenants = wakes.tenants.clone();
    let source = Watch {
        api: Api::namespaced(client.clone(), &places.namespace),
        config: only(name),
        project: slim,
        keep: |_| true,
        key: |s: &Source| s.name_any(),
        digest: |s: &Source| hash(&(&s.type_, &s.content)),
        index: None,
    }
    .start(move |_| drop(tenants.send(EVERYBODY.into())));
    let secrets = Watch {
        api: Api::all(client.clone()),
        config: only(name),
        project: slim,
        keep: |_| true,
        key: |s: &SlimSecret| s.namespace(),
        digest: |s: &SlimSecret| hash(&(&s.metadata.labels, &s.metadata.uid, &s.type_, s.immutable, s.mark)),
        index: None,
    }
    .start(of_namespace(wakes));
    Pulled { source, secrets }
}

fn only(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

fn of_namespace(wakes: &Wakes) -> impl FnMut(Option<String>) + Send + 'static {
    let tenants = wakes.tenants.clone();
    move |namespace| drop(tenants.send(format!("{OF_NAMESPACE}{}", namespace.unwrap_or_default())))
}

fn slim<K: Resource>(object: &mut K) {
    lighten(object);
    let meta = object.meta_mut();
    // kubectl's own annotation may hold all of a Secret
    meta.annotations = None;
    meta.owner_references = None;
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
        let mut source: Source = serde_json::from_value(object.clone()).unwrap();
        let mut slim_one: SlimSecret = serde_json::from_value(object).unwrap();
        slim(&mut source);
        slim(&mut slim_one);
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
