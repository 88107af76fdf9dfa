use super::*;
use crate::firewall::table::table;

fn cluster(pods: &[(&str, &str, &str, &str)], policies: &str) -> Cluster {
    let pod = |(name, node, address, labels): &(&str, &str, &str, &str)| {
        let (namespace, name) = name.split_once('/').unwrap();
        let text = format!(
            "{{metadata: {{namespace: {namespace}, name: {name}, labels: {{{labels}}}}}, spec: {{nodeName: {node}, containers: [{{name: c, ports: [{{name: web, containerPort: 8080}}]}}]}}, status: {{phase: Running, podIP: {address}}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    };
    let namespaces = ["a", "b"].map(|n| (n.to_owned(), Labels::from([("team".to_owned(), n.to_owned())])));
    let policy = |text: &str| serde_saphyr::from_str::<NetworkPolicy>(text).unwrap();
    Cluster {
        namespaces: namespaces.into(),
        pods: pods.iter().map(pod).collect(),
        policies: policies.split("---\n").filter(|t| !t.trim().is_empty()).map(policy).collect(),
    }
}

const PODS: &[(&str, &str, &str, &str)] = &[
    ("a/server", "gpu-1", "10.244.1.2", "app: server"),
    ("a/client", "gpu-2", "10.244.2.2", "app: client"),
    ("b/client", "gpu-1", "10.244.1.3", "app: client"),
    ("b/other", "gpu-2", "10.244.2.3", "app: other"),
];

/// The table of gpu-1, without what is always the same.
fn of_gpu_1(policies: &str) -> Vec<String> {
    let text = table(&cluster(PODS, policies).guards("gpu-1"));
    let dull = ["add table", "delete table", "table ip", "type filter", "ct state", "}", "chain forward"];
    let lines = text.lines().map(str::trim).filter(|l| !dull.iter().any(|d| l.starts_with(d)));
    lines.map(String::from).collect()
}

#[test]
fn firewall_without_policies_passes_all() {
    assert_eq!(of_gpu_1(""), [""; 0]);
}

#[test]
fn selected_pod_accepts_allowed_peers_only() {
    let policy = "{metadata: {namespace: a, name: p}, spec: {podSelector: {}, policyTypes: [Ingress]}}";
    assert_eq!(
        of_gpu_1(policy),
        ["chain to-10-244-1-2 {", "drop", "ip daddr vmap { 10.244.1.2 : jump to-10-244-1-2 }"]
    );
}

#[test]
fn peer_without_namespace_selector_is_in_the_policys_namespace() {
    let policy = "{metadata: {namespace: a, name: p}, spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: web}, {port: 9000, endPort: 9010, protocol: UDP}]}]}}";
    let rules = of_gpu_1(policy);
    assert_eq!(
        rules[1..4],
        ["ip saddr { 10.244.2.2 } tcp dport 8080 return", "ip saddr { 10.244.2.2 } udp dport 9000-9010 return", "drop"]
    );
}

#[test]
fn peer_matches_both_selectors() {
    let from = |peer: &str| {
        let policy = format!(
            "{{metadata: {{namespace: a, name: p}}, spec: {{podSelector: {{matchLabels: {{app: server}}}}, ingress: [{{from: [{peer}]}}]}}}}"
        );
        of_gpu_1(&policy)[1].clone()
    };
    let team_b = "namespaceSelector: {matchLabels: {team: b}}";
    assert_eq!(from(&format!("{{{team_b}}}")), "ip saddr { 10.244.1.3, 10.244.2.3 } return");
    assert_eq!(
        from(&format!("{{{team_b}, podSelector: {{matchLabels: {{app: client}}}}}}")),
        "ip saddr { 10.244.1.3 } return"
    );
    assert_eq!(from("{namespaceSelector: {matchLabels: {team: c}}}"), "drop", "no source is allowed");
}

#[test]
fn egress_honours_exceptions_and_named_ports_of_the_peer() {
    let policy = "{metadata: {namespace: b, name: p}, spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.244.0.0/16]}}]}, {to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: server}}}], ports: [{port: web}]}]}}";
    assert_eq!(
        of_gpu_1(policy),
        [
            "chain from-10-244-1-3 {",
            "ip daddr { 10.244.1.2 } tcp dport 8080 return",
            "ip daddr 10.0.0.0/8 ip daddr != 10.244.0.0/16 return",
            "drop",
            "ip saddr vmap { 10.244.1.3 : jump from-10-244-1-3 }"
        ]
    );
}

#[test]
fn policies_are_additive() {
    let deny = "{metadata: {namespace: a, name: deny}, spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}\n---\n";
    let open = "{metadata: {namespace: a, name: open}, spec: {podSelector: {}, egress: [{}], policyTypes: [Egress]}}";
    let rules = of_gpu_1(&format!("{deny}{open}"));
    assert_eq!(rules[..5], ["chain from-10-244-1-2 {", "return", "drop", "chain to-10-244-1-2 {", "drop"]);
}

#[test]
fn ended_and_host_network_pods_are_no_peers() {
    let policy =
        "{metadata: {namespace: a, name: p}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}}";
    let mut cluster = cluster(PODS, policy);
    cluster.pods[1].status.as_mut().unwrap().phase = Some("Succeeded".into());
    cluster.pods[2].spec.as_mut().unwrap().host_network = Some(true);
    let text = table(&cluster.guards("gpu-1"));
    assert!(text.contains("ip saddr { 10.244.1.2, 10.244.2.3 } return"), "{text}");
}
