//! The kinds, with their schemas and decoders.

use std::fmt::Debug;

use fuzz::{Choices, TestCaseError, Times, schema};
use gputenancy_crds::{GpuGrant, GpuNode, GpuPool, GpuProfile, GpuTenant, manifest};
use kube::{Resource, core::DeserializeGuard};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A kind and its decoder.
pub struct Kind {
    /// Its name.
    pub name: String,
    /// The object as it is written again, or the error.
    pub decode: fn(&str, &Times) -> Result<Value, String>,
    /// Schemas of the object's parts.
    schema: Value,
}

impl Kind {
    fn of<K>() -> Self
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + PartialEq + Debug,
    {
        let of_kind = |(_, crd): (String, Value)| {
            let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].clone();
            (crd["spec"]["names"]["kind"] == *K::kind(&())).then_some(schema)
        };
        let schema = manifest::all().expect("types serialise").into_iter().find_map(of_kind).expect("the kind");
        Self { name: K::kind(&()).into_owned(), decode: decode::<K>, schema }
    }

    pub fn all() -> [Self; 5] {
        [
            Self::of::<GpuProfile>(),
            Self::of::<GpuPool>(),
            Self::of::<GpuTenant>(),
            Self::of::<GpuNode>(),
            Self::of::<GpuGrant>(),
        ]
    }

    /// The parts that this kind has, with their schemas.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        ["spec", "status"].into_iter().filter_map(|part| Some((part, self.schema.get(part)?)))
    }

    /// An object that the CRD accepts.
    pub fn valid(&self, choices: &mut Choices) -> Value {
        let mut object = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": self.name, "metadata": {"name": "a", "generation": 7},
        });
        for (part, schema) in self.parts() {
            object[part] = schema::valid(schema, choices);
        }
        object
    }

    /// The object as it is written again.
    pub fn read(&self, object: &Value) -> Result<Value, TestCaseError> {
        let times = Times::default();
        (self.decode)(&object.to_string(), &times).map_err(|error| TestCaseError::fail(format!("{error}: {object}")))
    }
}

/// Decodes an object as agent and `kubectl gpu` do, and as the operator does, and once more what is written.
fn decode<K>(text: &str, times: &Times) -> Result<Value, String>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + PartialEq + Debug,
{
    let read = times.decoder(|| serde_json::from_str::<K>(text));
    let guarded = serde_json::from_str::<DeserializeGuard<K>>(text);
    let object = match (read, guarded) {
        (Ok(object), Ok(DeserializeGuard(guarded))) => {
            assert_eq!(Ok(&object), guarded.as_ref().map_err(ToString::to_string), "the operator reads the same");
            object
        }
        // a number or an escape in a field that is skipped, and buffered by the guard
        (Ok(object), Err(_)) => object,
        (Err(error), guarded) => {
            let guarded =
                guarded.map_or_else(|e| e.to_string(), |g| g.0.err().map_or("read".into(), |e| e.to_string()));
            assert!(!guarded.is_empty(), "{error}");
            return Err(error.to_string());
        }
    };
    let written = serde_json::to_value(&object).expect("types serialise");
    let again: K = serde_json::from_str(&written.to_string()).expect("what is written can be read");
    assert_eq!(object, again, "read, written and read again");
    Ok(written)
}
