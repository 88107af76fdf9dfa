//! Objects that one program writes and only compares with what they should be: kept as version and hash.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gputenancy_crds::{GpuGrant, GpuTenant, names};
use k8s_openapi::{
    Resource as _,
    api::core::v1::{LimitRange, ResourceQuota},
};
use kube::{Resource, ResourceExt as _};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::amount;

/// A number that differs when content differs. It is never persisted: it may change with the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecHash(u64);

impl SpecHash {
    fn of(value: &Value) -> Self {
        Self::of_bytes(&serde_json::to_vec(value).unwrap_or_default())
    }

    /// Of serialized content.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A type whose objects are compared by hash.
pub trait Owned: Resource<DynamicType = ()> + Serialize + DeserializeOwned {}

impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned> Owned for K {}

/// Brings the fields of an object of this kind into the form in which the API server stores them.
fn normalise(kind: &str, fields: &mut Value) {
    // in a grant an empty list differs from an absent one
    if kind == GpuGrant::kind(&()) {
        return;
    }
    if [ResourceQuota::KIND, LimitRange::KIND].contains(&kind) {
        canonical_quantities(fields);
    }
    drop_empty(fields);
}

/// The part of an object that is kept to compare it.
#[derive(Clone, Debug)]
pub struct OwnedObject {
    /// Its tenant by label.
    pub tenant: Option<Box<str>>,
    /// Its resource version.
    pub version: u64,
    /// The operator's labels, the tenant that owns it, and all fields but metadata and status.
    pub content: SpecHash,
    /// The fields that only a new object can change: the role of a binding, the aggregation of a role.
    pub fixed: SpecHash,
}

impl OwnedObject {
    /// From an object as it is rendered or as the API server sends it.
    pub fn of<K: Owned>(object: &K) -> Self {
        let mut fields = serde_json::to_value(object).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        }
        normalise(&K::kind(&()), &mut fields);
        let fixed = SpecHash::of(&json!([fields.get("roleRef"), fields.get("aggregationRule")]));
        let label = |name: &str| object.labels().get(name).map(|value| value.as_str().into());
        let tenant: Option<Box<str>> = label(names::TENANT_LABEL);
        let manager: Option<Box<str>> = label(names::MANAGED_BY_LABEL);
        let owner = object.owner_references().iter().find(|owner| owner.kind == GpuTenant::kind(&()));
        let content = SpecHash::of(&json!([tenant, manager, owner.map(|owner| &owner.uid), fields]));
        Self { version: version(object), tenant, content, fixed }
    }
}

/// An object's version as a number; the highest where it has none.
pub fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

/// Drops `null`, empty lists and a selector's empty map: the API server drops some of them.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_empty);
            fields.retain(|name, field| match field {
                Value::Null => false,
                Value::Array(all) => !all.is_empty(),
                Value::Object(all) => !all.is_empty() || name != "matchLabels",
                _ => true,
            });
        }
        Value::Array(all) => all.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// The API server writes `1024Mi` as `1Gi`.
fn canonical_quantities(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(canonical_quantities),
        Value::Array(all) => all.iter_mut().for_each(canonical_quantities),
        Value::String(text) => {
            if let Some(amount) = amount(text) {
                *text = amount.quantity().0;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::NetworkPolicy;

    use super::*;

    fn hash<K: Owned>(mut object: Value) -> SpecHash {
        object["metadata"] = json!({"name": "gputenancy"});
        OwnedObject::of(&serde_json::from_value::<K>(object).unwrap()).content
    }

    fn policy(spec: &Value) -> SpecHash {
        hash::<NetworkPolicy>(json!({"spec": spec}))
    }

    fn limits(request: &str) -> SpecHash {
        hash::<LimitRange>(json!({"spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": request}}]}}))
    }

    #[test]
    fn owned_object_with_the_same_meaning_has_the_same_hash() {
        let short = json!({"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "::/0"}}]}]});
        let long = json!({"egress": [{"ports": [], "to": [{"ipBlock": {"except": null, "cidr": "::/0"}}]}], "podSelector": {"matchLabels": {}}});
        assert_eq!(policy(&short), policy(&long));
        assert_eq!(limits("1Gi"), limits("1024Mi"));
    }

    #[test]
    fn owned_object_that_admits_more_has_another_hash() {
        let closed = policy(&json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        let open = policy(&json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}));
        let from_all = policy(&json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}));
        let from_none = policy(&json!({"podSelector": {}, "ingress": [{"from": [{}]}]}));
        assert!(closed != open && from_all != from_none);
        assert_ne!(limits("1Gi"), limits("1G"));
        let grant = |spec: Value| hash::<GpuGrant>(json!({"spec": spec}));
        assert_ne!(grant(json!({"tenant": "t", "priorityClasses": []})), grant(json!({"tenant": "t"})));
    }

    #[test]
    fn owned_object_of_another_tenant_or_manager_has_another_hash() {
        let of = |labels: Value| {
            let object = json!({"metadata": {"name": "gputenancy", "labels": labels, "resourceVersion": "7"}, "spec": {"podSelector": {}}});
            OwnedObject::of(&serde_json::from_value::<NetworkPolicy>(object).unwrap())
        };
        let (tenant, manager) = (names::TENANT_LABEL, names::MANAGED_BY_LABEL);
        let owned = of(json!({tenant: "t", manager: "gputenancy", "extra": "x"}));
        assert_eq!(owned.content, of(json!({tenant: "t", manager: "gputenancy"})).content);
        assert_ne!(owned.content, of(json!({tenant: "u", manager: "gputenancy"})).content);
        assert_ne!(owned.content, of(json!({tenant: "t"})).content);
        assert_eq!((owned.version, owned.tenant.as_deref()), (7, Some("t")));
    }
}
