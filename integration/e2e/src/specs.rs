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

/// A JSON object with more fields, which replace existing ones.
pub fn merged(mut object: Value, fields: Value) -> Value {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}
