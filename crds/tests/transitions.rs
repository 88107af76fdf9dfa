//! Rules about changes and about fields that exclude each other: what the API server refuses, by evaluation of the rules in the CRDs.

use cel::{Context, Program, Value as Cel};
use gputenancy_crds::manifest;
use serde_json::{Value, json};

fn schema() -> Value {
    schema_of("GpuTenant")
}

/// The schema of a kind.
pub fn schema_of(kind: &str) -> Value {
    let crds = manifest::all().expect("types serialise");
    let (_, crd) = crds.into_iter().find(|(_, crd)| crd["spec"]["names"]["kind"] == kind).expect("the kind");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The messages of the broken rules about changes at this place of the schema.
fn refusals(schema: &Value, old: &Value, new: &Value) -> Vec<String> {
    broken(schema, Some(old), new)
}

/// The messages of the broken rules at this place of the schema: those about changes, or without a former value all others.
pub fn broken(schema: &Value, old: Option<&Value>, new: &Value) -> Vec<String> {
    let rules = schema["x-kubernetes-validations"].as_array().expect("rules").iter();
    let mut broken = Vec::new();
    for rule in rules.filter(|rule| rule["rule"].as_str().expect("a rule").contains("oldSelf") == old.is_some()) {
        let mut context = Context::default();
        context.add_variable("self", new).expect("a value");
        if let Some(old) = old {
            context.add_variable("oldSelf", old).expect("a value");
        }
        let program = Program::compile(rule["rule"].as_str().expect("a rule")).expect("CEL");
        match program.execute(&context) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => broken.push(rule["message"].as_str().expect("a message").to_owned()),
            other => panic!("{rule}: {other:?}"),
        }
    }
    broken
}

/// The fields with messages about a change of `spec.virtualCluster`.
fn of_cluster(old: &Value, new: &Value) -> Vec<String> {
    let schema = &schema()["properties"]["spec"]["properties"]["virtualCluster"];
    let field = |message: String| message.split(':').next().unwrap_or_default().to_owned();
    refusals(schema, old, new).into_iter().map(field).collect()
}

#[test]
fn size_and_class_of_a_volume_are_fixed_and_reclaim_is_not() {
    let with = |storage: Value| json!({"version": "0.36.1", "storage": storage});
    let without = json!({"version": "0.36.1"});
    let (size, class) = ("spec.virtualCluster.storage.size", "spec.virtualCluster.storage.class");
    let full = |size: &str, class: &str, reclaim: &str| with(json!({"size": size, "class": class, "reclaim": reclaim}));
    let cases: [(Value, Value, &[&str]); 10] = [
        (without.clone(), json!({"version": "0.37.0", "suspend": true}), &[]),
        (without.clone(), with(json!({"reclaim": "Retain"})), &[]),
        (with(json!({"reclaim": "Retain"})), without.clone(), &[]),
        (full("5Gi", "fast", "Delete"), full("5Gi", "fast", "Retain"), &[]),
        (full("5Gi", "fast", "Delete"), full("6Gi", "fast", "Delete"), &[size]),
        (full("5Gi", "fast", "Delete"), full("5Gi", "slow", "Delete"), &[class]),
        (without.clone(), full("5Gi", "fast", "Delete"), &[size, class]),
        (full("5Gi", "fast", "Delete"), without, &[size, class]),
        (with(json!({"size": "5Gi"})), with(json!({"class": "fast"})), &[size, class]),
        (with(json!({"size": 5})), with(json!({"size": 5, "class": "fast"})), &[class]),
    ];
    for (old, new, expected) in cases {
        assert_eq!(of_cluster(&old, &new), expected, "{old} -> {new}");
    }
}

#[test]
fn adopted_vcluster_has_no_field_that_would_change_it() {
    let schema = &schema()["properties"]["spec"]["properties"]["virtualCluster"];
    let cases = [
        ("values", json!({"a": 1}), "with backend External the vCluster keeps its own values; remove the field"),
        ("resources", json!({"requests": {"cpu": "1"}}), "keeps its own requests and limits; remove the field"),
        ("storage", json!({"reclaim": "Retain"}), "keeps its own volumes"),
        ("suspend", json!(true), "use vcluster pause"),
    ];
    for (field, value, remedy) in cases {
        for backend in ["Helm", "External"] {
            // as the API server completes it
            let mut cluster = json!({"version": "0.36.1", "backend": backend, "suspend": false});
            assert_eq!(broken(schema, None, &cluster), Vec::<String>::new(), "{cluster}");
            cluster[field] = value.clone();
            let messages = broken(schema, None, &cluster);
            assert_eq!(messages.len(), usize::from(backend == "External"), "{cluster}: {messages:?}");
            let right = |m: &String| m.starts_with(&format!("spec.virtualCluster.{field}: ")) && m.contains(remedy);
            assert!(messages.iter().all(right), "{messages:?}");
        }
    }
}

#[test]
fn removal_waits_until_retain_is_recorded() {
    let schema = schema();
    let tenant = |cluster: Option<Value>, status: Value| {
        let mut spec = json!({"namespaces": [{"name": "team-a"}], "deletionProtection": false});
        if let Some(cluster) = cluster {
            spec["virtualCluster"] = cluster;
        }
        json!({"metadata": {"name": "team-a"}, "spec": spec, "status": status})
    };
    let of = |reclaim: &str| Some(json!({"version": "0.36.1", "storage": {"reclaim": reclaim}}));
    let recorded = |reclaim: &str| json!({"virtualCluster": {"reclaim": reclaim}});
    let refused = |cluster: Option<Value>, status: Value| {
        !refusals(&schema, &tenant(cluster, status.clone()), &tenant(None, status)).is_empty()
    };
    assert!(refused(of("Retain"), recorded("Delete")));
    assert!(refused(of("Retain"), json!({"virtualCluster": {}})), "by a controller that does not know it");
    assert!(!refused(of("Retain"), recorded("Retain")));
    assert!(!refused(of("Retain"), json!({})), "there is no virtual cluster yet");
    assert!(!refused(of("Delete"), recorded("Retain")), "nothing is lost");
    assert!(!refused(Some(json!({"version": "0.36.1"})), recorded("Delete")));
}
