//! The manifests in `generated/` are what the types say, and every rule tells its reader what to do.

use std::{fs, path::Path};

use gputenancy_crds::manifest;
use serde_json::Value;

fn crds() -> Vec<(String, Value)> {
    manifest::all().expect("types serialise")
}

/// Calls `visit` for every schema below this one, with its path.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), field, visit);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&format!("{path}[]"), &schema[inner], visit);
        }
    }
}

fn walk_all(mut visit: impl FnMut(&str, &Value)) {
    for (_, crd) in crds() {
        let kind = crd["spec"]["names"]["kind"].as_str().expect("a kind").to_owned();
        walk(&kind, &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut visit);
    }
}

#[test]
fn the_folder_holds_what_the_types_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    let crds = crds();
    for (file, crd) in &crds {
        let found = fs::read_to_string(folder.join(file)).unwrap_or_default();
        assert_eq!(found, serde_saphyr::to_string(crd).expect("yaml"), "{file} is stale: run `make crds`");
    }
    assert_eq!(fs::read_dir(folder).expect("generated/").count(), crds.len(), "a file without a kind");
}

/// Names of the columns that `kubectl get` shows without `-o wide`.
fn default_columns(kind: &str) -> Vec<String> {
    let crds = crds();
    let (_, crd) = crds.iter().find(|(_, crd)| crd["spec"]["names"]["kind"] == kind).expect("the kind");
    let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().expect("columns");
    let shown = columns.iter().filter(|column| column["priority"].as_i64().unwrap_or_default() == 0);
    shown.map(|column| column["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn default_columns_are_short_and_show_unmet_demand() {
    assert_eq!(
        default_columns("GpuNode"),
        ["Ready", "Reason", "Pool", "GPUs", "Devices", "Driver", "Simulated", "Age"]
    );
    assert!(default_columns("GpuPool").contains(&"Unmet".to_owned()));
}

#[test]
fn reference_page_lists_the_reasons_of_the_code() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/conditions-and-events.md");
    let found = fs::read_to_string(page).unwrap_or_default();
    assert_eq!(found, gputenancy_crds::reasons::page(), "the page is stale: run `make crds`");
}

#[test]
fn every_field_is_explained() {
    let mut silent = vec![];
    walk_all(|path, schema| {
        let ours = !path.ends_with("[]") && !path.contains(".nodeSelector.");
        if ours && schema["description"].as_str().unwrap_or_default().is_empty() {
            silent.push(path.to_owned());
        }
    });
    assert_eq!(silent, Vec::<String>::new());
}

#[test]
fn every_rule_names_the_field_and_the_remedy() {
    let mut rules = 0;
    walk_all(|path, schema| {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let message = rule["message"].as_str().unwrap_or_default();
            let named = message.starts_with("spec.") || message.starts_with("metadata.");
            assert!(named && message.len() > 30, "{path}: {message:?}");
            rules += 1;
        }
    });
    assert!(rules >= 15, "only {rules} rules");
}

#[test]
fn lists_of_a_spec_are_bounded_so_that_rules_stay_cheap() {
    let mut unbounded = vec![];
    walk_all(|path, schema| {
        let spec = path.contains(".spec.") && !path.contains(".nodeSelector.");
        if spec && schema["type"] == "array" && schema["maxItems"].is_null() {
            unbounded.push(path.to_owned());
        }
    });
    assert_eq!(unbounded, Vec::<String>::new());
}

#[test]
fn helm_keeps_the_crds_and_the_status_of_a_new_object_is_unknown() {
    for (file, crd) in crds() {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep", "{file}");
        let properties = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let Some(status) = properties.get("status") else {
            assert_eq!(crd["spec"]["names"]["kind"], "GpuGrant", "the only kind that nobody reports on");
            continue;
        };
        assert_eq!(status["default"]["observedGeneration"], -1, "{file}");
    }
}

/// The API server reports a broken pattern with the regular expression, which says nothing to most users.
#[test]
fn texts_that_users_write_have_rules_with_messages_instead_of_patterns() {
    let (mut patterns, mut rules) = (Vec::new(), 0);
    walk_all(|path, schema| {
        let kind = path.split('.').next().unwrap_or_default();
        let by_users = gputenancy_crds::manifest::USERS_WRITE.contains(&kind) && !path.contains(".status");
        if !by_users || schema["type"] != "string" {
            return;
        }
        // CEL takes a text of this format for a timestamp
        if schema.get("pattern").is_some() && schema["format"] != "date" {
            patterns.push(path.to_owned());
        }
        rules += usize::from(schema["x-kubernetes-validations"].to_string().contains(": write a"));
    });
    assert_eq!(patterns, [""; 0], "add them to crds/src/schema/patterns.rs");
    assert!(rules >= 15, "{rules} fields");
}
