//! Names that cannot be shortened, because users select by them, are refused when they are too long for what they become a part of.

use serde_json::{Value, json};

use super::transitions::{broken, schema_of};

/// What the rules of a kind say of an object with a name of this length.
fn refusal(kind: &str, length: usize) -> Vec<String> {
    let rules = schema_of(kind);
    let all = rules["x-kubernetes-validations"].as_array().expect("rules");
    let about = |rule: &&Value| rule["rule"].as_str().expect("a rule").contains("metadata.name.size()");
    let rules = json!({"x-kubernetes-validations": all.iter().filter(about).collect::<Vec<_>>()});
    broken(&rules, None, &json!({"metadata": {"name": "a".repeat(length)}}))
}

#[test]
fn names_that_become_labels_and_resources_are_refused_beyond_their_limit() {
    for (kind, most) in [("GpuProfile", 40), ("GpuPool", 63), ("GpuTenant", 50)] {
        assert_eq!(refusal(kind, most), Vec::<String>::new(), "{kind}");
        let messages = refusal(kind, most + 1);
        let right = |m: &String| m.starts_with("metadata.name: ") && m.contains(&format!("at most {most} characters"));
        assert!(messages.len() == 1 && messages.iter().all(right), "{kind}: {messages:?}");
    }
}

#[test]
fn keys_that_no_quota_counts_are_refused() {
    let resources = &schema_of("GpuTenant")["properties"]["spec"]["properties"]["resources"];
    let refused = |key: &str| !broken(resources, None, &json!({key: "1"})).is_empty();
    let long = |length: usize| format!("requests.example.com/{}", "a".repeat(length));
    for key in [
        "pods",
        "requests.cpu",
        "limits.ephemeral-storage",
        "requests.hugepages-2Mi",
        "count/deployments.apps",
        "gold.storageclass.storage.k8s.io/requests.storage",
        "requests.example.com/fpga_1.x",
        &long(63),
    ] {
        assert!(!refused(key), "{key}");
    }
    for key in [
        "gpus",
        "Pods",
        "pods ",
        "",
        "hugepages-",
        "requests.example.com/",
        "requests.example.com/a/b",
        "requests.example.com/-a",
        "requests.Example.com/a",
        "/a",
        &long(64),
        &format!("{}.com/a", "a".repeat(253)),
        "requests.nvidia.com/gpu",
    ] {
        assert!(refused(key), "{key}");
    }
}

#[test]
fn resource_names_that_no_policy_knows_are_refused() {
    let spec = &schema_of("GpuProfile")["properties"]["spec"];
    let rules = spec["x-kubernetes-validations"].as_array().expect("rules");
    let about =
        |rule: &&Value| rule["message"].as_str().is_some_and(|text| text.contains("policies and quotas know GPUs"));
    let rules = json!({"x-kubernetes-validations": rules.iter().filter(about).collect::<Vec<_>>()});
    for name in [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "gputenancy.io/x_y",
        "nvidia.com/gpu-small",
        "nvidia.com/gpus",
        "nvidia.com/a100-half",
        "nvidia.com/hostdev",
        "example.com/small",
    ] {
        let refused = !broken(&rules, None, &json!({"resourceName": name})).is_empty();
        assert_eq!(refused, !gputenancy_crds::names::is_device_resource(name), "{name}");
    }
}
