//! Writes: server-side apply and merges under a field manager, finalizers, evictions.

use std::{borrow::Cow, fmt::Debug};

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DynamicObject, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The name under which a part of a program writes: fields that it has applied are its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldManager(Cow<'static, str>);

impl FieldManager {
    /// With this name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self(name.into())
    }

    /// Applies an object and returns its metadata. Takes fields over that another manager owns, which repairs drift.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn apply<K>(
        &self,
        api: &Api<K>,
        name: &str,
        object: &(impl Serialize + Debug),
    ) -> kube::Result<PartialObjectMeta<K>>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        api.patch_metadata(name, &self.applying(), &Patch::Apply(object)).await
    }

    /// Applies these fields of an object and returns it.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn apply_fields<K>(&self, api: &Api<K>, name: &str, fields: Value) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        api.patch(name, &self.applying(), &Patch::Apply(typed::<K>(fields))).await
    }

    /// Why applying these fields without force would be refused, which names the managers that own them. Nothing is written.
    ///
    /// # Errors
    /// Any other answer of the API server.
    pub async fn conflicts<K>(&self, api: &Api<K>, name: &str, fields: Value) -> kube::Result<Option<String>>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let params = PatchParams::apply(&self.0).dry_run();
        match api.patch(name, &params, &Patch::Apply(typed::<K>(fields))).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Some(status.message.clone())),
            Err(error) => Err(error),
        }
    }

    /// Applies the whole part of the status that is this manager's.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn apply_status<K>(&self, api: &Api<K>, name: &str, status: &impl Serialize) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let fields = typed::<K>(json!({ "status": status }));
        api.patch_status(name, &self.applying(), &Patch::Apply(fields)).await
    }

    /// Applies fields of the status of an object whose type is known at run time only.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn apply_dynamic_status(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        fields: &Value,
    ) -> kube::Result<DynamicObject> {
        api.patch_status(name, &self.applying(), &Patch::Apply(fields)).await
    }

    /// Merges these fields; `null` removes one.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn merge<K>(&self, api: &Api<K>, name: &str, fields: &Value) -> kube::Result<K>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        api.patch(name, &self.merging(), &Patch::Merge(fields)).await
    }

    /// As [`Self::merge`], and returns the metadata alone: others choose the size of the object.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn merge_metadata<K>(
        &self,
        api: &Api<K>,
        name: &str,
        fields: &Value,
    ) -> kube::Result<PartialObjectMeta<K>>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        api.patch_metadata(name, &self.merging(), &Patch::Merge(fields)).await
    }

    /// Merges these fields of the status; `null` removes one.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn merge_status<K>(&self, api: &Api<K>, name: &str, fields: &Value) -> kube::Result<K>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        api.patch_status(name, &self.merging(), &Patch::Merge(fields)).await
    }

    /// Writes these finalizers of an object that still has the version that was read: finalizers that others add at the same time stay. An object that is
    /// gone needs none.
    ///
    /// # Errors
    /// The answer of the API server, such as a conflict.
    pub async fn set_finalizers<K>(&self, api: &Api<K>, object: &K, finalizers: &[String]) -> kube::Result<()>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        let fields = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        present(self.merge(api, &object.name_any(), &fields).await).map(drop)
    }

    /// For the creation of an object.
    pub fn creating(&self) -> PostParams {
        PostParams { field_manager: Some(self.0.clone().into_owned()), ..PostParams::default() }
    }

    fn applying(&self) -> PatchParams {
        PatchParams::apply(&self.0).force()
    }

    fn merging(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.0.clone().into_owned()), ..PatchParams::default() }
    }
}

/// Fields with the type of their object, as server-side apply needs it.
fn typed<K: Resource<DynamicType = ()>>(mut fields: Value) -> Value {
    if let Some(map) = fields.as_object_mut() {
        map.insert("apiVersion".into(), K::api_version(&()).into());
        map.insert("kind".into(), K::kind(&()).into());
    }
    fields
}

/// The answer, or `None` where the object does not exist.
///
/// # Errors
/// Any other error.
pub fn present<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Has the object this finalizer?
pub fn has_finalizer(object: &impl Resource, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|known| known == finalizer)
}

/// Answer to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The pod is terminating or deleted.
    Accepted,
    /// A `PodDisruptionBudget` or an admission policy forbids it for now; the API server's message.
    Refused(String),
}

/// Evicts one pod by the eviction API, if it has this uid. A refusal by the admission policy of this name is one for now. A pod that is too large for the
/// time of its deletion loses the record of its writers first.
///
/// # Errors
/// Any answer of the API server that is neither.
pub async fn evict(pods: &Api<Pod>, (namespace, name): (&str, &str), uid: &str, policy: &str) -> kube::Result<Evicted> {
    let preconditions = Some(Preconditions { uid: Some(uid.into()), resource_version: None });
    let eviction = Eviction {
        metadata: ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        delete_options: Some(DeleteOptions { preconditions, ..DeleteOptions::default() }),
    };
    let attempt = async || -> kube::Result<Value> {
        pods.create_subresource("eviction", name, &PostParams::default(), &eviction).await
    };
    let mut answer = attempt().await;
    if answer.as_ref().is_err_and(is_too_large) {
        // the time of the deletion does not fit any more into what etcd holds of one object; the record of its writers is not needed for its deletion
        let fields = json!({"metadata": {"uid": uid, "managedFields": [{}]}});
        if pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(fields)).await.is_ok() {
            answer = attempt().await;
        }
    }
    match answer {
        Ok(_) => Ok(Evicted::Accepted),
        // conflict: another pod has the name by now
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Evicted::Accepted),
        Err(kube::Error::Api(status)) if status.code == 429 => {
            let causes = status.details.iter().flat_map(|d| &d.causes).map(|c| c.message.as_str());
            let messages: Vec<&str> = std::iter::once(status.message.as_str()).chain(causes).collect();
            Ok(Evicted::Refused(messages.join(" ")))
        }
        Err(kube::Error::Api(status)) if status.message.contains(policy) => Ok(Evicted::Refused(status.message)),
        // two budgets of a pod are refused with 500, as if the API server had failed
        Err(kube::Error::Api(status)) if status.message.contains("more than one PodDisruptionBudget") => {
            Ok(Evicted::Refused(status.message))
        }
        Err(error) if is_too_large(&error) => Ok(Evicted::Refused(TOO_LARGE.to_owned())),
        Err(error) => Err(error),
    }
}

/// What a person does about a pod that cannot be changed.
const TOO_LARGE: &str = "the pod is as large as etcd permits, so that not even the time of its deletion fits: remove annotations and labels that its team has \
    added (kubectl annotate pod NAME KEY-)";

/// etcd refuses the object because of its size.
fn is_too_large(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("etcdserver: request is too large"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::{Answer, MockServer, Request};

    #[tokio::test]
    async fn status_is_applied_with_the_type_and_under_the_manager_by_force() {
        let server = MockServer::new(|request: &Request| request.body.clone());
        let pods = Api::<Pod>::namespaced(server.client(), "team");
        FieldManager::new("gputenancy/status").apply_status(&pods, "a", &json!({"phase": "Failed"})).await.unwrap();
        let request = server.take().remove(0);
        assert_eq!(request.line(), "PATCH /api/v1/namespaces/team/pods/a/status");
        assert_eq!(request.parameter("fieldManager"), Some("gputenancy%2Fstatus"));
        assert_eq!(request.parameter("force"), Some("true"));
        assert_eq!(request.body, json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Failed"}}));
    }

    #[tokio::test]
    async fn finalizers_are_those_of_the_version_that_was_read() {
        let server = MockServer::new(|request: &Request| match request.name() {
            "gone" => Answer::not_found(),
            _ => Answer::failure(409, "Conflict", "changed"),
        });
        let maps = Api::<ConfigMap>::namespaced(server.client(), "team");
        let manager = FieldManager::new("gputenancy");
        let mut map = ConfigMap {
            metadata: ObjectMeta {
                name: Some("gone".into()),
                resource_version: Some("7".into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        manager.set_finalizers(&maps, &map, &["a".into()]).await.unwrap();
        assert_eq!(server.take()[0].body, json!({"metadata": {"resourceVersion": "7", "finalizers": ["a"]}}));
        map.metadata.name = Some("changed".into());
        assert!(manager.set_finalizers(&maps, &map, &[]).await.is_err());
    }

    #[tokio::test]
    async fn pod_of_the_largest_size_gets_room_for_its_deletion_and_is_evicted() {
        let padded = |has_room_after: bool| {
            let patched = AtomicBool::new(false);
            MockServer::new(move |request: &Request| match request.line().split(' ').next() {
                Some("PATCH") => {
                    patched.store(true, Ordering::SeqCst);
                    Answer::from(json!({"metadata": {"name": "a"}}))
                }
                _ if has_room_after && patched.load(Ordering::SeqCst) => Answer::success(),
                _ => Answer::failure(500, "InternalError", "etcdserver: request is too large"),
            })
        };
        let server = padded(true);
        let pods = Api::<Pod>::namespaced(server.client(), "team");
        assert_eq!(evict(&pods, ("team", "a"), "u", "the-policy").await.unwrap(), Evicted::Accepted);
        let again = padded(false);
        let pods = Api::<Pod>::namespaced(again.client(), "team");
        let refused = evict(&pods, ("team", "a"), "u", "the-policy").await.unwrap();
        assert!(matches!(&refused, Evicted::Refused(message) if message.contains("kubectl annotate")), "{refused:?}");
        let requests = server.take();
        let lines: Vec<String> = requests.iter().map(Request::line).collect();
        assert_eq!(
            lines,
            [
                "POST /api/v1/namespaces/team/pods/a/eviction",
                "PATCH /api/v1/namespaces/team/pods/a",
                "POST /api/v1/namespaces/team/pods/a/eviction"
            ]
        );
        assert_eq!(requests[1].body, json!({"metadata": {"uid": "u", "managedFields": [{}]}}));
    }

    #[tokio::test]
    async fn eviction_is_refused_for_now_by_budgets_and_the_named_policy_only() {
        let of = async |code: u16, reason: &'static str, message: &'static str| {
            let server = MockServer::new(move |_: &Request| Answer::failure(code, reason, message));
            let pods = Api::<Pod>::namespaced(server.client(), "team");
            evict(&pods, ("team", "a"), "u", "the-policy").await.ok()
        };
        assert_eq!(of(404, "NotFound", "gone").await, Some(Evicted::Accepted));
        assert_eq!(of(409, "Conflict", "another uid").await, Some(Evicted::Accepted));
        assert_eq!(of(429, "TooManyRequests", "budget").await, Some(Evicted::Refused("budget".into())));
        assert_eq!(of(403, "Forbidden", "by the-policy").await, Some(Evicted::Refused("by the-policy".into())));
        assert_eq!(of(403, "Forbidden", "no right").await, None);
    }
}
