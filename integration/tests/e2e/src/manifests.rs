//! Manifests of `integration/bypass`, each with the text of its refusal.

#![allow(
    clippy::indexing_slicing,
    reason = "an absent field of a Value is null, and a manifest is an object with metadata"
)]

use serde_json::{Value, json};

use crate::{Error, Result, World, product};

/// Annotation of a manifest with the text of its refusal.
pub const REFUSED: &str = "gputenancy.io/refused-with";

/// The objects of a file of `integration/bypass`.
pub async fn manifests(world: &World, file: &str) -> Result<Vec<Value>> {
    let path = product::root().join("integration/bypass").join(file).display().to_string();
    let json = world.kubectl(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", &path]).await?;
    let objects = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
    objects.collect::<std::result::Result<_, _>>().map_err(|e| Error::Text { what: path, why: e.to_string() })
}

/// The text with which a manifest of `integration/bypass` is refused.
pub fn refusal(object: &Value) -> Option<String> {
    Some(object["metadata"]["annotations"][REFUSED].as_str()?.to_owned())
}

/// The pod that a controller creates from this object, if any.
pub fn pod_of(object: &Value) -> Option<Value> {
    let template = ["/spec/template", "/spec/jobTemplate/spec/template"].iter().find_map(|at| object.pointer(at))?;
    template.pointer("/spec/containers")?;
    let mut pod = template.clone();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = object["metadata"]["name"].clone();
    for claim in object["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let name = &claim["metadata"]["name"];
        pod["spec"]["volumes"] = json!([{"name": name, "persistentVolumeClaim": {"claimName": name}}]);
    }
    Some(pod)
}
