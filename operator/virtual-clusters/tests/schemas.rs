//! The samples for Flux and Argo CD: against the schemas of their CRDs, the values of this program, and the tenant that adopts their vCluster.
//!
//! The CRDs are theirs: `make tools` takes them from their Go modules, in the versions of `integration/tools/crds/go.mod`. An API server validates
//! the same objects in `crds_of_flux_and_argo_cd_admit_the_samples` of the end-to-end tests.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use gputenancy_crds::{GpuTenant, VirtualClusterBackend, names::ADOPTABLE_LABEL};
use gputenancy_virtual_clusters::render::values::values;
use serde_json::{Value, json};

const FLUX: &str = "virtual-clusters/flux.yaml";
const ARGO_CD: &str = "virtual-clusters/argo-cd.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The objects of a sample.
fn sample(file: &str) -> Vec<Value> {
    let path = root().join("samples").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The object of this kind in a sample.
fn object(file: &str, kind: &str) -> Value {
    sample(file).into_iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("{file} has no {kind}"))
}

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

/// The schema of this object's kind and version in the folder.
fn schema(object: &Value) -> Value {
    let folder = root().join("target/toolset/crds");
    let entries = fs::read_dir(&folder);
    let folder = folder.display();
    let entries = entries.unwrap_or_else(|e| panic!("{folder}: {e}; run `make tools`"));
    let files = entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let mut documents = files.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
    let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), &object["kind"]);
    let (group, version) = api_version.split_once('/').unwrap();
    let crd = documents
        .find(|d| d["spec"]["group"] == group && d["spec"]["names"]["kind"] == *kind)
        .unwrap_or_else(|| panic!("{folder} has no CRD of {kind} in {group}: run `make tools`"));
    let versions = crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let version = versions.into_iter().find(|v| v["name"] == version && v["served"] == true);
    version.unwrap_or_else(|| panic!("{api_version} is not served"))["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn samples_match_the_schemas_of_flux_and_argo_cd() {
    for (file, kind) in [(FLUX, "HelmRepository"), (FLUX, "HelmRelease"), (ARGO_CD, "Application")] {
        let object = object(file, kind);
        assert_eq!(problems(&schema(&object), &object, ""), Vec::<String>::new(), "{file}: {kind}");
    }
}

#[test]
fn samples_install_what_the_controller_renders_and_the_tenant_adopts() {
    let tenant: GpuTenant = serde_json::from_value(object("virtual-cluster-external.yaml", "GpuTenant")).unwrap();
    let cluster = tenant.spec.virtual_cluster.clone().unwrap();
    assert_eq!(cluster.backend, VirtualClusterBackend::External);
    let (name, namespace) = (tenant.metadata.name.as_deref().unwrap(), &tenant.spec.namespaces[0]);
    assert!(namespace.adopt);
    let expected = json!({
        "release": name, "namespace": namespace.name, "chart": "vcluster", "version": cluster.version,
        "repository": "https://charts.loft.sh", "values": values(&tenant, &cluster, &json!({})).unwrap(),
    });

    let (repository, release) = (object(FLUX, "HelmRepository"), object(FLUX, "HelmRelease"));
    let (spec, chart) = (&release["spec"], &release["spec"]["chart"]["spec"]);
    let source = json!({"kind": "HelmRepository", "name": repository["metadata"]["name"]});
    assert_eq!(chart["sourceRef"], source);
    assert_eq!(release["metadata"]["namespace"], repository["metadata"]["namespace"]);
    let flux = json!({
        "release": spec["releaseName"], "namespace": spec["targetNamespace"], "chart": chart["chart"],
        "version": chart["version"], "repository": repository["spec"]["url"], "values": spec["values"],
    });
    assert_eq!(flux, expected);

    let application = object(ARGO_CD, "Application");
    let (spec, source) = (&application["spec"], &application["spec"]["source"]);
    let argo_cd = json!({
        "release": source["helm"]["releaseName"], "namespace": spec["destination"]["namespace"], "chart": source["chart"],
        "version": source["targetRevision"], "repository": source["repoURL"], "values": source["helm"]["valuesObject"],
    });
    assert_eq!(argo_cd, expected);

    for file in [FLUX, ARGO_CD] {
        let metadata = &object(file, "Namespace")["metadata"];
        assert_eq!((&metadata["name"], &metadata["labels"][ADOPTABLE_LABEL]), (&json!(namespace.name), &json!("true")));
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
