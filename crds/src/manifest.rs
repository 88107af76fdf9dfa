//! The CRD manifests, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{GpuGrant, GpuNode, GpuPool, GpuProfile, GpuTenant, schema::patterns};

/// Kinds whose spec users write; programs write the others.
pub const USERS_WRITE: [&str; 3] = ["GpuProfile", "GpuPool", "GpuTenant"];

/// Defaults of fields of the spec that are an optional enum, by kind and pointer: the schema of such a field has the description of the enum.
const DEFAULTS: [(&str, &str, &str); 4] = [
    ("GpuProfile", "/trust", "Untrusted for whole GPUs and MIG, Internal for shares"),
    ("GpuPool", "/allocation", "Packed"),
    ("GpuPool", "/strategy", "Mixed"),
    ("GpuPool", "/enforcement/properties/onBypassByTrusted", "as onBypass"),
];

/// Every CRD with the name of its file in `crds/generated/`.
///
/// # Errors
/// Serialisation of a CRD, which the golden tests would have seen.
pub fn all() -> Result<Vec<(String, Value)>, serde_json::Error> {
    let all = [GpuProfile::crd(), GpuPool::crd(), GpuTenant::crd(), GpuNode::crd(), GpuGrant::crd()];
    all.into_iter().map(finish).collect()
}

/// Adds what the derive macro cannot express: the default of the status, which tells "never reconciled" from "generation 0"; null as
/// absent; and the annotation that keeps helm from deleting users' objects with the chart.
fn finish(crd: CustomResourceDefinition) -> Result<(String, Value), serde_json::Error> {
    let file = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
    let kind = crd.spec.names.kind.clone();
    let by_users = USERS_WRITE.contains(&kind.as_str());
    let mut crd = serde_json::to_value(crd)?;
    if let Some(schema) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        drop_nullable(schema);
        if by_users && let Some(spec) = schema.pointer_mut("/properties/spec") {
            patterns::explain(spec, "spec");
            for (_, field, default) in DEFAULTS.iter().filter(|(of, ..)| *of == kind) {
                if let Some(Value::String(text)) = spec.pointer_mut(&format!("/properties{field}/description")) {
                    text.push_str(&format!(" Default: {default}."));
                }
            }
        }
        // nothing happens where there is no status object: a grant has none
        set(schema, "/properties/status", "default", json!({"observedGeneration": -1}));
        // A server-side apply that takes the last item of a list away leaves null in its place, all the way up to `spec`.
        // Where nothing of a spec is required the default makes an empty spec of that null.
        if schema.pointer("/properties/spec").is_some_and(|spec| spec.get("required").is_none()) {
            set(schema, "/properties/spec", "default", json!({}));
        }
    }
    set(&mut crd, "/metadata", "annotations", json!({"helm.sh/resource-policy": "keep"}));
    // the same text whether or not another crate of the build switches serde_json's `preserve_order` on
    crd.sort_all_objects();
    Ok((file, crd))
}

fn set(document: &mut Value, at: &str, key: &str, value: Value) {
    if let Some(Value::Object(fields)) = document.pointer_mut(at) {
        fields.insert(key.into(), value);
    }
}

/// The API server prunes a null where a field is not nullable. So `mig: null` is an absent `mig` to the CEL rules, which
/// count what is there with `has`.
fn drop_nullable(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            fields.values_mut().for_each(drop_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nullable),
        _ => {}
    }
}
