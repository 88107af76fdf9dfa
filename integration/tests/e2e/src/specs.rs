//! Building blocks of pod specs.

use serde_json::{Value, json};

/// The spec of a pod with one container, admitted by the restricted Pod Security Standard.
pub fn restricted_spec(container: Value) -> Value {
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    json!({
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [merged(container, json!({"securityContext": security}))],
    })
}

/// A JSON object after a merge patch (RFC 7386): objects are merged, null removes a field.
pub fn patched(object: Value, patch: Value) -> Value {
    let Value::Object(fields) = patch else { return patch };
    let mut present = match object {
        Value::Object(present) => present,
        _ => serde_json::Map::new(),
    };
    for (key, value) in fields {
        let before = present.remove(&key).unwrap_or_default();
        if !value.is_null() {
            present.insert(key, patched(before, value));
        }
    }
    Value::Object(present)
}

/// A JSON object with more fields, which replace existing ones.
pub fn merged(mut object: Value, fields: Value) -> Value {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}
