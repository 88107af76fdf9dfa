//! Metadata without managed fields, of objects that users may write.
//!
//! Users may write `metadata.managedFields` of their objects. The API server accepts and serves a time after the year 9999, which no parser of RFC 3339
//! reads, and nested fields that exceed the parser's depth or need a hundred times their text in memory. One such object would fail each list of its
//! kind and delay each watch. So only the managers' names, their times, and whether they own guarantees are read, and the parser skips the rest without
//! building it.

mod owned;

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, OwnerReference, Time};
use kube::{Resource, core::ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer as _, MapAccess, Visitor,
        value::MapAccessDeserializer,
    },
};
use serde_json::{Value, json};

/// All fields; their times are written by the API server alone.
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
    managed_fields: Option<Vec<Manager>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// Who has written fields, and when.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Manager {
    #[serde(rename = "manager")]
    name: Option<String>,
    #[serde(deserialize_with = "time")]
    time: Option<Time>,
    /// It owns guarantees of a tenant.
    #[serde(rename = "fieldsV1", deserialize_with = "owned::guarantees")]
    guarantees: bool,
}

/// Reads metadata without managed fields.
///
/// # Errors
/// Another field cannot be read.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    Ok(ObjectMeta { managed_fields: None, ..with_managers(from)? })
}

/// Reads metadata with the managers. The fields of one that owns guarantees are `f:spec` with `f:gpus`, others have none.
fn with_managers<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let Read {
        annotations,
        creation_timestamp,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
        generation,
        labels,
        managed_fields,
        name,
        namespace,
        owner_references,
        resource_version,
        uid,
    } = Read::deserialize(from)?;
    let named = |Manager { name, time, guarantees }| ManagedFieldsEntry {
        manager: name,
        time,
        fields_v1: guarantees.then(|| FieldsV1(json!({"f:spec": {"f:gpus": {}}}))),
        ..ManagedFieldsEntry::default()
    };
    Ok(ObjectMeta {
        annotations,
        creation_timestamp,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
        generation,
        labels,
        managed_fields: managed_fields.map(|all| all.into_iter().map(named).collect()),
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

/// An object of a type with all fields; of its managed fields only the managers, and which of them own guarantees.
#[derive(Clone, Debug)]
pub struct Unmanaged<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Unmanaged<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Whole(PhantomData)).map(Self)
    }
}

/// Deserializes an object directly into its type, except its metadata: no second copy of the other fields is made.
struct Whole<K>(PhantomData<K>);

impl<'de, K: Deserialize<'de>> Visitor<'de> for Whole<K> {
    type Value = K;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<K, A::Error> {
        K::deserialize(MapAccessDeserializer::new(Fields { from, is_metadata: false }))
    }
}

/// The fields of an object, with cleaned metadata.
struct Fields<A> {
    from: A,
    /// The latest key was that of the metadata.
    is_metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Some(key) = self.from.next_key::<String>()? else { return Ok(None) };
        self.is_metadata = key == "metadata";
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if !self.is_metadata {
            return self.from.next_value_seed(seed);
        }
        let Managed(metadata) = self.from.next_value()?;
        let metadata = serde_json::to_value(metadata).map_err(A::Error::custom)?;
        seed.deserialize(metadata).map_err(A::Error::custom)
    }
}

/// Metadata with the managers.
#[derive(Deserialize)]
struct Managed(#[serde(deserialize_with = "with_managers")] ObjectMeta);

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
        let mut pod =
            serde_json::from_value::<Unmanaged<Pod>>(json!({"metadata": given, "spec": {"containers": []}})).unwrap();
        let managers = pod.meta_mut().managed_fields.take().unwrap();
        assert_eq!(managers.iter().filter_map(|entry| entry.manager.as_deref()).collect::<Vec<_>>(), ["x"]);
        assert_eq!((pod.meta(), pod.0.spec.is_some()), (&expected, true));
    }

    #[test]
    fn fields_of_any_depth_are_skipped() {
        let (open, close) = (r#"{"f:":"#.repeat(5_000), "}".repeat(5_000));
        let managed = format!(r#"[{{"manager": "x", "fieldsV1": {open}{{}}{close}}}]"#);
        let text =
            format!(r#"{{"metadata": {{"name": "p", "managedFields": {managed}}}, "spec": {{"containers": []}}}}"#);
        assert!(serde_json::from_str::<Pod>(&text).is_err(), "no parser goes as deep");
        let pod = serde_json::from_str::<Unmanaged<Pod>>(&text).unwrap();
        assert_eq!(pod.meta().name.as_deref(), Some("p"));
    }

    #[test]
    fn manager_that_owns_guarantees_is_found_whatever_else_it_owns() {
        let entry = |fields: Value| json!({"manager": "x", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields});
        for (fields, owns) in [
            (
                json!({"f:metadata": {}, "f:spec": {"f:gpus": {"k:{\"profile\":\"p\"}": {"f:count": {}}}, "f:trust": {}}}),
                true,
            ),
            (json!({"f:spec": {"f:gpus": {}}}), true),
            (json!({"f:spec": {"f:trust": {}}}), false),
            (json!({"f:gpus": {}, "f:spec": [{"f:gpus": {}}]}), false),
            (json!([1, "f:spec"]), false),
            (json!({"f:spec": 7}), false),
            (Value::Null, false),
        ] {
            let metadata = json!({"name": "t", "managedFields": [entry(fields.clone())]});
            let read = with_managers(metadata).unwrap().managed_fields.unwrap();
            assert_eq!((read[0].fields_v1.is_some(), read[0].time.is_some()), (owns, true), "{fields}");
        }
        let twice = r#"{"managedFields": [{"manager": "x", "fieldsV1": {"f:spec": {"f:gpus": {}}, "f:spec": {}}}]}"#;
        let read = with_managers(&mut serde_json::Deserializer::from_str(twice)).unwrap().managed_fields.unwrap();
        assert!(read[0].fields_v1.is_some());
    }

    #[test]
    fn time_that_cannot_be_read_is_none() {
        assert_eq!(time::<_, Time>(json!(BEYOND)).unwrap(), None);
        assert_eq!(time::<_, MicroTime>(Value::Null).unwrap(), None);
        assert!(time::<_, MicroTime>(json!("2026-01-01T00:00:00.000001Z")).unwrap().is_some());
    }
}
