//! The objects for Flux and Argo CD against the schemas of their CRDs.
//!
//! The CRDs are theirs: `make tools` takes them from their Go modules, in the versions of `integration/tools/crds/go.mod`. An API server validates
//! the same objects in `crds_of_flux_and_argo_cd_admit_the_objects_of_the_controller` of the end-to-end tests.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

use std::{fs, path::Path};

use gputenancy_crds::{GpuTenant, GpuTenantSpec, TenantNamespace};
use gputenancy_virtual_clusters::{
    backend::{Order, argo, flux, handed::Wanted},
    offer::Offer,
};
use serde_json::{Value, json};

/// What an object has that the schema does not allow, as `PATH: PROBLEM`: types, required fields, enums,
/// and unknown fields, which the API server would drop. Patterns and ranges are left to it.
fn problems(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    if value.is_null() && flag("nullable") {
        return Vec::new();
    }
    let mut found = Vec::new();
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array).filter(|a| !a.contains(value)) {
        found.push(format!("{path}: {value} is none of {allowed:?}"));
    }
    let fits = match schema.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        _ => true,
    };
    if !fits {
        found.push(format!("{path}: {value} is not of type {}", schema["type"]));
    }
    for field in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if value.get(field).is_none() {
            found.push(format!("{path}/{field}: required"));
        }
    }
    let properties = schema.get("properties");
    for (key, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{key}");
        match properties.and_then(|p| p.get(key)).or_else(|| schema.get("additionalProperties")) {
            Some(schema) => found.extend(problems(schema, inner, &path)),
            None if flag("x-kubernetes-preserve-unknown-fields") => {}
            // the API server knows the metadata of every object
            None if path.starts_with("/metadata/") => {}
            // a value without any schema
            None if schema.get("type").is_none() => {}
            None => found.push(format!("{path}: unknown field")),
        }
    }
    for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(problems(&schema["items"], inner, &format!("{path}/{index}")));
    }
    found
}

/// The schema of this resource and version in the folder.
fn schema(wanted: &Wanted) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolset/crds");
    let entries = fs::read_dir(&folder);
    let folder = folder.display();
    let entries = entries.unwrap_or_else(|e| panic!("{folder}: {e}; run `make tools`"));
    let files = entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let mut documents = files.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
    let resource = wanted.resource;
    let crd = documents
        .find(|d| d["spec"]["group"] == resource.group && d["spec"]["names"]["plural"] == resource.plural)
        .unwrap_or_else(|| panic!("{folder} has no CRD of {}.{}: run `make tools`", resource.plural, resource.group));
    let versions = crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let version = versions.into_iter().find(|v| v["name"] == resource.version && v["served"] == true);
    version.unwrap_or_else(|| panic!("{} is not served", resource.api_version()))["schema"]["openAPIV3Schema"].clone()
}

/// All objects of both backends, running and stopped, with both kinds of repositories.
fn objects() -> Vec<Wanted> {
    let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
    let tenant = GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() });
    let values = json!({"telemetry": {"enabled": false}, "controlPlane": {"coredns": {"priorityClassName": null}}});
    let mut all = Vec::new();
    for repository in ["https://charts.loft.sh", "oci://registry.example/charts"] {
        let repository = repository.parse().unwrap();
        let offer = Offer { repository, flux: true, argo_namespace: "argocd".into(), argo_project: "default".into() };
        for stopped in [false, true] {
            let order = Order { tenant: &tenant, version: "0.36.1", values: &values, stopped };
            all.push(flux::source(&order, &offer.repository));
            all.push(flux::release(&order, &offer.repository));
            all.push(argo::application(&order, &offer));
        }
    }
    all
}

#[test]
fn objects_match_the_schemas_of_flux_and_argo_cd() {
    for wanted in objects() {
        assert_eq!(problems(&schema(&wanted), &wanted.content, ""), Vec::<String>::new(), "{}", wanted.content);
    }
}

#[test]
fn problems_are_found() {
    let schema = json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "string", "enum": ["x"]},
        "list": {"type": "array", "items": {"type": "integer"}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
    }});
    let of = |value: Value| problems(&schema, &value, "");
    let right = json!({"a": "x", "list": [1], "open": {"b": 1}, "map": {"k": "v"}, "any": {"c": [1]}});
    assert_eq!(of(right), Vec::<String>::new());
    assert_eq!(of(json!({})), ["/a: required"]);
    assert_eq!(of(json!({"a": "y"})), ["/a: \"y\" is none of [String(\"x\")]"]);
    assert_eq!(of(json!({"a": "x", "b": 1})), ["/b: unknown field"]);
    assert_eq!(of(json!({"a": "x", "list": ["1"]})), ["/list/0: \"1\" is not of type \"integer\""]);
    assert_eq!(of(json!({"a": "x", "map": {"k": 1}})), ["/map/k: 1 is not of type \"string\""]);
}
