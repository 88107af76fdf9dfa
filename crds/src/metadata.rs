//! Metadata without managed fields, of objects that users may write.
//!
//! A user writes any time into the managed fields of an own object. The API server serves a year beyond 9999, which no parser of RFC 3339
//! reads: one such object would end each list and watch of its kind. Nothing here reads managed fields.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Resource, core::ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::Value;

/// All fields but managed fields; their times are written by the API server alone.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Read {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// Reads metadata without managed fields.
///
/// # Errors
/// Another field cannot be read.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let Read {
        annotations,
        creation_timestamp,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
        generation,
        labels,
        name,
        namespace,
        owner_references,
        resource_version,
        uid,
    } = Read::deserialize(from)?;
    Ok(ObjectMeta {
        annotations,
        creation_timestamp,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
        generation,
        labels,
        managed_fields: None,
        name,
        namespace,
        owner_references,
        resource_version,
        self_link: None,
        uid,
    })
}

/// Reads a time that users may write; `None`: there is none, or it cannot be read.
///
/// # Errors
/// It is no text.
pub fn time<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| serde_json::from_value(Value::String(text)).ok()))
}

/// An object of a type with all fields, read without its managed fields.
#[derive(Clone, Debug)]
pub struct Unmanaged<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Unmanaged<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(from)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        serde_json::from_value(object).map(Self).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for Unmanaged<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::MicroTime};
    use serde_json::json;

    use super::*;

    /// As the API server serves it after a user wrote `9999-12-31T23:59:59-23:59`.
    const BEYOND: &str = "10000-01-01T23:58:59Z";

    fn metadata() -> Value {
        json!({
            "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2, "generateName": "p-",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "k", "uid": "o"}],
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "deletionGracePeriodSeconds": 30,
        })
    }

    #[test]
    fn everything_but_managed_fields_is_read() {
        let expected: ObjectMeta = serde_json::from_value(metadata()).unwrap();
        let mut given = metadata();
        given["managedFields"] = json!([{"manager": "x", "operation": "Apply", "time": BEYOND}]);
        assert!(serde_json::from_value::<ObjectMeta>(given.clone()).is_err(), "no parser reads the year");
        assert_eq!(read(given.clone()).unwrap(), expected);
        let pod =
            serde_json::from_value::<Unmanaged<Pod>>(json!({"metadata": given, "spec": {"containers": []}})).unwrap();
        assert_eq!((pod.meta(), pod.0.spec.is_some()), (&expected, true));
    }

    #[test]
    fn time_that_cannot_be_read_is_none() {
        assert_eq!(time::<_, Time>(json!(BEYOND)).unwrap(), None);
        assert_eq!(time::<_, MicroTime>(Value::Null).unwrap(), None);
        assert!(time::<_, MicroTime>(json!("2026-01-01T00:00:00.000001Z")).unwrap().is_some());
    }
}
