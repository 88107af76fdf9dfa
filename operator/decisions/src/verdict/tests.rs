//! Every author and kind of mark, with what a pool makes of it.

use serde_json::{Value, json};

use super::*;
use gputenancy_crds::projection::project_node;

/// What a pool with this `spec.health` says of a node with this spec, annotations and conditions.
fn of(health: &Value, node: &Value) -> Option<String> {
    judged(health, node, &[]).map(|verdict| verdict.why)
}

const NOW: i64 = 1000;

fn judged(health: &Value, node: &Value, maintenance: &[Maintenance]) -> Option<Verdict> {
    let health: NodeHealth = serde_json::from_value(health.clone()).unwrap();
    let mut node: SlimNode = serde_json::from_value(node.clone()).unwrap();
    project_node(&mut node);
    let now = Timestamp::from_second(NOW).unwrap();
    let found = verdict(&node, maintenance, &health, &BTreeSet::from(["example.com/pool"]), now);
    assert!(found.is_none() || is_suspect(&node) || !maintenance.is_empty(), "{node:?}");
    found
}

fn tainted(key: &str, effect: &str) -> Value {
    json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "value": "x", "effect": effect}]}})
}

fn condition(type_: &str, status: &str) -> Value {
    json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": type_, "status": status, "reason": "R"}]}})
}

/// The marks that are also applied to nodes of a fleet, in each phase of a change, and to one of a lab.
const CASES: &str = include_str!("../../../../integration/cases/node-health.json");

#[test]
fn each_known_mark_reads_as_listed() {
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let marks = cases["marks"].as_array().unwrap();
    assert!(marks.len() >= 16);
    for row in marks {
        let mut node = row["node"].clone();
        node["metadata"]["name"] = json!("n");
        assert_eq!(of(&json!({}), &node).as_deref(), row["says"].as_str(), "{row}");
    }
}

#[test]
fn cordon_counts_unless_it_is_ours_or_ignored() {
    let cordoned = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
    assert_eq!(of(&json!({}), &cordoned).as_deref(), Some("it is cordoned"));
    assert_eq!(of(&json!({"cordons": "Ignore"}), &cordoned), None);
    let annotations = json!({names::CORDONED: "2026-01-01T00:00:00Z"});
    let ours = json!({"metadata": {"name": "n", "annotations": annotations}, "spec": {"unschedulable": true}});
    assert_eq!(of(&json!({}), &ours), None);
}

#[test]
fn cordon_of_ours_counts_while_nvsentinel_relies_on_it() {
    let node = |cordoned: bool, events: &str, labels: Value| {
        let annotations = json!({names::CORDONED: "2026-01-01T00:00:00Z", names::NVSENTINEL_QUARANTINE: events});
        json!({"metadata": {"name": "n", "annotations": annotations, "labels": labels}, "spec": {"unschedulable": cordoned}})
    };
    let events = "[{\"checkName\":\"GpuMemWatch\"}]";
    assert_eq!(of(&json!({}), &node(true, events, json!({}))).as_deref(), Some("it is cordoned, also by NVSentinel"));
    assert_eq!(of(&json!({"cordons": "Ignore"}), &node(true, events, json!({}))), None);
    assert_eq!(of(&json!({}), &node(false, events, json!({}))), None);
    // its labels outlive a quarantine that somebody has ended by an uncordon
    let stale = json!({"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "GpuMemWatch"});
    assert_eq!(of(&json!({}), &node(true, "", stale)), None);
}

#[test]
fn taint_counts_if_it_keeps_pods_of_tenants_away() {
    let found = of(&json!({}), &tainted("nvidia.com/gpu-xid-error", "NoSchedule"));
    assert_eq!(found.as_deref(), Some("it has the taint nvidia.com/gpu-xid-error=x:NoSchedule"));
    assert!(of(&json!({}), &tainted("readiness.k8s.io/network", "NoExecute")).is_some());
    for pressure in ["memory-pressure", "disk-pressure", "pid-pressure"] {
        let key = format!("node.kubernetes.io/{pressure}");
        assert_eq!(of(&json!({}), &tainted(&key, "NoSchedule")), None, "a pod of a tenant can cause it");
    }
    for key in ["nvidia.com/gpu", "example.com/pool", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    {
        assert_eq!(of(&json!({}), &tainted(key, "NoSchedule")), None, "{key}");
    }
    assert_eq!(of(&json!({}), &tainted("example.com/other", "PreferNoSchedule")), None);
    assert_eq!(of(&json!({"taints": "Ignore"}), &tainted("example.com/other", "NoSchedule")), None);
    assert_eq!(
        of(&json!({"toleratedTaints": ["example.com/other"]}), &tainted("example.com/other", "NoSchedule")),
        None
    );
}

#[test]
fn taint_of_a_node_that_starts_is_no_fault() {
    for key in START_UP.into_iter().chain(["readiness.k8s.io/network"]) {
        let starting = judged(&json!({}), &tainted(key, "NoSchedule"), &[]).unwrap();
        assert!(!starting.fault && starting.why.contains(key), "{starting:?}");
        let mut cordoned = tainted(key, "NoSchedule");
        cordoned["spec"]["unschedulable"] = json!(true);
        let cordoned = judged(&json!({}), &cordoned, &[]).unwrap();
        assert!(cordoned.fault && cordoned.why.starts_with("it is cordoned, it has the taint"), "{cordoned:?}");
    }
    assert!(judged(&json!({}), &tainted("readiness.example.com/x", "NoExecute"), &[]).unwrap().fault);
}

#[test]
fn condition_counts_with_the_polarity_of_its_product() {
    for (preset, type_, bad, good) in [
        ("Kubernetes", "MaintenancePlanned", "True", "False"),
        ("NVSentinel", "GpuMemWatch", "True", "False"),
        ("EKS", "AcceleratedHardwareReady", "False", "True"),
        ("AKS", "GPUMissing", "True", "False"),
        ("NodeProblemDetector", "KernelDeadlock", "True", "False"),
    ] {
        let found = of(&json!({}), &condition(type_, bad));
        assert_eq!(found, Some(format!("its condition {type_} is {bad} (R)")));
        assert_eq!(of(&json!({}), &condition(type_, good)), None, "{type_}");
        assert_eq!(of(&json!({}), &condition(type_, "Unknown")), None, "{type_}");
        assert!(of(&json!({"presets": [preset]}), &condition(type_, bad)).is_some());
        assert_eq!(of(&json!({"presets": []}), &condition(type_, bad)), None, "{type_}");
    }
    // CoreWeave asks that its conditions are not used for automation
    assert_eq!(of(&json!({}), &condition("CWActive", "False")), None);
    let own = json!({"conditions": [{"type": "example.com/Burnt", "status": "Unknown"}]});
    assert!(of(&own, &condition("example.com/Burnt", "Unknown")).is_some());
    assert_eq!(of(&own, &condition("example.com/Burnt", "True")), None);
}

#[test]
fn maintenance_that_is_planned_for_later_is_no_fault() {
    let planned = condition("MaintenancePlanned", "True");
    assert!(!judged(&json!({}), &planned, &[]).unwrap().fault);
    for type_ in ["MaintenanceInProgress", "DrainInProgress", "GpuMemWatch", "CSPMaintenance"] {
        assert!(judged(&json!({}), &condition(type_, "True"), &[]).unwrap().fault, "{type_}");
    }
    assert!(judged(&json!({}), &tainted("nvidia.com/gpu-error", "NoSchedule"), &[]).unwrap().fault);
    let mut cordoned = planned;
    cordoned["spec"] = json!({"unschedulable": true});
    let both = judged(&json!({}), &cordoned, &[]).unwrap();
    assert_eq!((both.why.as_str(), both.fault), ("it is cordoned, its condition MaintenancePlanned is True (R)", true));
    assert!(!judged(&json!({"cordons": "Ignore"}), &cordoned, &[]).unwrap().fault);
}

#[test]
fn maintenance_request_of_nvsentinel_counts_while_it_exists() {
    let (node, at) = (json!({"metadata": {"name": "n"}}), |second| Timestamp::from_second(second).ok());
    let requested = |starts| [Maintenance { name: "m".into(), starts }];
    let later = judged(&json!({}), &node, &requested(at(NOW + 1))).unwrap();
    let why = "MaintenanceRequest m of NVSentinel names it, which starts at 1970-01-01T00:16:41Z";
    assert_eq!((later.why.as_str(), later.fault), (why, false));
    for starts in [None, at(NOW), at(NOW - 1)] {
        assert!(judged(&json!({}), &node, &requested(starts)).unwrap().fault, "{starts:?}");
    }
    assert_eq!(judged(&json!({"presets": ["EKS"]}), &node, &requested(None)), None);
    assert_eq!(judged(&json!({}), &node, &[]), None);
}

#[test]
fn few_of_many_marks_are_named() {
    let taints: Vec<Value> = (0..9).map(|n| json!({"key": format!("t{n}"), "effect": "NoSchedule"})).collect();
    let found = of(&json!({}), &json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})).unwrap();
    assert_eq!(found.matches("it has the taint").count(), MOST_NAMED);
    assert!(found.ends_with("5 more"), "{found}");
}
