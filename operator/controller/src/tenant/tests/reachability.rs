//! Tests of the connections that network policies allow, evaluated by cyclonus, which is independent of CNI plugins. The egress rules are the
//! chart's.

use std::{fs, path::Path, process::Command};

use gputenancy_crds::names;
use serde_json::{Value, json};

use super::observed;
use crate::tenant::{Standard, decide::desired};

/// A pod in the cluster: its namespace, the namespace's labels, a label of the pod, its address.
type Pod = (&'static str, &'static [(&'static str, &'static str)], (&'static str, &'static str), &'static str);

const APP: (&str, &str) = ("app", "web");
const RED: Pod = ("red", &[(names::TENANT_LABEL, "red")], APP, "10.244.1.2");
const RED_TWO: Pod = ("red-two", &[(names::TENANT_LABEL, "red")], APP, "10.244.2.2");
const BLUE: Pod = ("blue", &[(names::TENANT_LABEL, "blue")], APP, "10.244.1.3");
const OPEN: Pod = ("open", &[(names::TENANT_LABEL, "open")], APP, "10.244.1.4");
const MONITORING: Pod = ("monitoring", &[(names::REACHES_TENANTS_LABEL, "true")], APP, "10.244.1.5");
const PRETENDER: Pod = ("pretender", &[(names::REACHES_TENANTS_LABEL, "no")], APP, "10.244.1.6");
const DNS: Pod =
    ("kube-system", &[("kubernetes.io/metadata.name", "kube-system")], ("k8s-app", "kube-dns"), "10.244.1.7");
const PROXY: Pod =
    ("kube-system", &[("kubernetes.io/metadata.name", "kube-system")], ("k8s-app", "proxy"), "10.244.1.8");

fn inside((namespace, labels, pod, address): Pod) -> Value {
    let labels: Value =
        labels.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect::<serde_json::Map<_, _>>().into();
    json!({"IP": address, "Internal": {"Namespace": namespace, "NamespaceLabels": labels, "PodLabels": {pod.0: pod.1}}})
}

fn outside(address: &str) -> Value {
    json!({"IP": address})
}

/// Source, target, port, and whether the connection must be allowed.
fn connections() -> Vec<(Value, Value, (&'static str, u16), bool)> {
    let within = |from, to, allowed| (inside(from), inside(to), ("TCP", 8080), allowed);
    let out = |address, port: u16, allowed| (inside(RED), outside(address), ("TCP", port), allowed);
    vec![
        within(RED, RED, true),
        within(RED, RED_TWO, true),
        within(RED_TWO, RED, true),
        within(RED, BLUE, false),
        within(BLUE, RED_TWO, false),
        within(MONITORING, RED, true),
        within(MONITORING, BLUE, true),
        within(PRETENDER, RED, false),
        within(PROXY, RED, false),
        within(RED, MONITORING, false),
        within(RED, PROXY, false),
        // both ends must allow a connection; an open tenant has no policy at its end
        within(OPEN, RED, false),
        within(RED, OPEN, false),
        within(PRETENDER, OPEN, true),
        (inside(RED), inside(DNS), ("UDP", 53), true),
        (inside(RED), inside(DNS), ("TCP", 53), true),
        (inside(RED), inside(DNS), ("TCP", 9153), false),
        (inside(RED), inside(PROXY), ("UDP", 53), false),
        out("10.0.0.5", 6443, true),
        out("10.0.0.5", 22, false),
        out("10.0.0.6", 6443, false),
        out("10.96.0.1", 443, true),
        out("10.96.0.2", 443, false),
        out("1.1.1.1", 443, true),
        out("169.254.169.254", 80, false),
        out("168.63.129.16", 80, false),
        out("192.168.7.7", 445, false),
        out("172.31.0.1", 443, false),
        out("100.64.1.1", 443, false),
        out("2606:4700::1111", 443, true),
        out("fd00:ec2::254", 80, false),
        (outside("1.1.1.1"), inside(RED), ("TCP", 8080), false),
        (outside("1.1.1.1"), inside(OPEN), ("TCP", 8080), true),
    ]
}

/// The chart's settings for all tenants.
fn chart_standard() -> Standard {
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../helm/gputenancy/values.yaml");
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(values).unwrap()).unwrap();
    let tenants = &values["tenants"];
    json!({"egress": tenants["network"]["egress"], "defaultRequests": tenants["defaultRequests"]})
        .to_string()
        .parse()
        .unwrap()
}

#[test]
fn network_policies_allow_the_expected_connections_by_cyclonus() {
    let cyclonus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/toolset/bin/cyclonus");
    assert!(cyclonus.exists(), "{} is missing: run `make tools`", cyclonus.display());
    let mut policies = Vec::new();
    for (tenant, namespaces, network) in [
        ("red", vec!["red", "red-two"], "Isolated"),
        ("blue", vec!["blue"], "Isolated"),
        ("open", vec!["open"], "Open"),
    ] {
        let mut seen = observed(&json!({"network": network}));
        seen.tenant.metadata.name = Some(tenant.into());
        seen.standard = chart_standard().into();
        let rendered = namespaces.iter().filter_map(|ns| desired::network_policy(&seen, ns));
        policies.extend(rendered.map(|policy| serde_json::to_value(policy).unwrap()));
    }
    assert_eq!(policies.len(), 3);
    let list = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicyList", "items": policies});
    let connections = connections();
    let queries: Vec<Value> = connections
        .iter()
        .map(|(from, to, (protocol, port), _)| {
            json!({"Source": from, "Destination": to, "ResolvedPort": port, "ResolvedPortName": "", "Protocol": protocol})
        })
        .collect();
    let folder = std::env::temp_dir().join(format!("gputenancy-reachability-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (policies, traffic) = (folder.join("policies.yaml"), folder.join("traffic.json"));
    fs::write(&policies, list.to_string()).unwrap();
    fs::write(&traffic, Value::from(queries).to_string()).unwrap();
    let answer = Command::new(cyclonus)
        .args(["analyze", "--mode", "query-traffic", "--policy-path"])
        .arg(&policies)
        .arg("--traffic-path")
        .arg(&traffic)
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(answer.stdout).unwrap() + &String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{text}");
    // the last line of each table; the head of the next one is `Is traffic allowed?`
    let allowed: Vec<bool> = text
        .lines()
        .filter_map(|line| line.to_uppercase().split_once("IS ALLOWED?").map(|(_, rest)| rest.contains("TRUE")))
        .collect();
    assert_eq!(allowed.len(), connections.len(), "{text}");
    let wrong: Vec<String> = connections
        .iter()
        .zip(&allowed)
        .filter(|((.., wanted), allowed)| wanted != *allowed)
        .map(|((from, to, port, wanted), _)| format!("{from} -> {to} at {port:?}: not {wanted}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
