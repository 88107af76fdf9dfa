//! Every reason in the sources of the programs is in the table, and so on the reference page.
#![allow(clippy::expect_used, reason = "helpers of tests may panic as tests do")]

use std::{collections::BTreeSet, fs, path::Path};

use gputenancy_crds::reasons;

/// Crates whose code sets conditions and publishes events.
const CRATES: [&str; 4] = ["../agent/src", "../operator/src", "../operator/engine/src", "../operator/plan/src"];
/// Names of Kubernetes and NVIDIA in the same spelling.
const OTHERS: &[&str] = &[
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ContainerStatusUnknown",
    "CronJob",
    "DaemonSet",
    "DeadlineExceeded",
    "DoesNotExist",
    "FailedCreate",
    "FallbackToLogsOnError",
    "GpuGrant",
    "GpuNode",
    "GpuPool",
    "GpuProfile",
    "GpuTenant",
    "LimitRange",
    "MigManager",
    "NetworkPolicy",
    "NoExecute",
    "NoSchedule",
    "NotIn",
    "NotOffered",
    "PersistentVolumeClaim",
    "PodScheduled",
    "PreferNoSchedule",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "RoleBinding",
    "RuntimeDefault",
    "ServiceAccount",
    "StatefulSet",
    "UnexpectedAdmissionError",
];

/// Text literals of two or more CamelCase words in product code.
fn literals(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if entry.is_dir() {
            if name != "tests" {
                literals(&entry, found);
            }
        } else if entry.extension().is_some_and(|e| e == "rs") && !name.starts_with("test") && name != "world.rs" {
            let text = fs::read_to_string(&entry).expect("a source");
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
            for literal in code.flat_map(|line| line.split('"').skip(1).step_by(2)) {
                let words = literal.chars().filter(char::is_ascii_uppercase).count();
                let camel = literal.starts_with(|c: char| c.is_ascii_uppercase());
                if camel && words > 1 && words * 2 < literal.len() && literal.chars().all(|c| c.is_ascii_alphabetic()) {
                    found.insert(literal.to_owned());
                }
            }
        }
    }
}

#[test]
fn sources_use_only_listed_reasons() {
    let mut found = BTreeSet::new();
    for folder in CRATES {
        literals(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
    }
    let listed: BTreeSet<&str> =
        reasons::SECTIONS.iter().flat_map(|(_, entries)| entries.iter().map(|e| e.name)).collect();
    let unknown: Vec<&String> =
        found.iter().filter(|name| !listed.contains(name.as_str()) && !OTHERS.contains(&name.as_str())).collect();
    assert!(found.len() > 50 && unknown.is_empty(), "not in crds/src/reasons.rs: {unknown:?}");
}
