//! Values that the chart refuses: each with one line that names the value and what is wrong with it.

use std::fs;

use e2e::product;
use serde_json::{Map, Value, json};

use crate::offline::chart::{chart, helm, template};

/// Values that may be null, although their default is not empty: the chart then uses none.
const MAY_BE_NULL: [&str; 30] = [
    "dashboards.annotations",
    "dashboards.labels",
    "global",
    "operator.priorityClassName",
    "operator.resources",
    "agent.priorityClassName",
    "agent.resources",
    "agent.tolerations",
    "agent.updateStrategy.rollingUpdate",
    "agent.updateStrategy.rollingUpdate.maxUnavailable",
    "agent.sandboxedHandlers",
    "simulator.tolerations",
    "simulator.resources",
    "policies.runtimeClassNames",
    "policies.otherResources",
    "policies.deviceClasses",
    "policies.unmanagedNamespaces",
    "policies.inlineCsiDrivers",
    "policies.queueLabels",
    "policies.gangLabels",
    "policies.platformRegistries",
    "policies.reservedAnnotations",
    "policies.knownIngressAnnotations",
    "policies.refusedIngressAnnotations",
    "policies.reservedTaints",
    "tenants.network.egress",
    "tenants.defaultRequests",
    "tenants.defaultResources",
    "tenants.catalogReaders",
    "virtualClusters.resources",
];

/// What helm prints for a refused value, without its first lines, which are always the same.
fn refusal(args: &[&str]) -> Vec<String> {
    let chart = chart().display().to_string();
    let (fine, text) = helm(&[&["template", "gputenancy", &chart], args].concat());
    assert!(!fine, "{args:?} is accepted");
    assert!(text.contains("specifications of the schema") || text.contains("execution error"), "{args:?}: {text}");
    text.lines().filter(|line| line.starts_with("- ") || line.contains("execution error")).map(str::to_owned).collect()
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(chart().join(file)).unwrap()).unwrap()
}

#[test]
fn wrong_values_are_refused_with_one_line_that_names_them() {
    for (set, line) in [
        ("agent.updateStrategy.type=Recreate", "- at '/agent/updateStrategy/type': value must be one of"),
        (
            "agent.updateStrategy.rollingUpdate.maxUnavailable=0%",
            "- at '/agent/updateStrategy/rollingUpdate/maxUnavailable': '0%' does not match",
        ),
        (
            "agent.updateStrategy.rollingUpdate.maxSurge=1",
            "- at '/agent/updateStrategy/rollingUpdate': additional properties 'maxSurge' not allowed",
        ),
        ("agent.resources.limits=1Gi", "- at '/agent/resources/limits': got string, want null or object"),
        ("operator.resources.limits.memory=much", "- at '/operator/resources/limits/memory': 'much' does not match"),
        ("operator.resources.limit.cpu=1", "- at '/operator/resources': additional properties 'limit' not allowed"),
        ("agent.tolerations[0].operator=Exist", "- at '/agent/tolerations/0/operator': value must be one of 'Exists'"),
        (
            "operator.tolerations[0].effects=NoSchedule",
            "- at '/operator/tolerations/0': additional properties 'effects'",
        ),
        ("simulator.tolerations[0].effect=Never", "- at '/simulator/tolerations/0/effect': value must be one of"),
        ("agent.usageInterval=0s", "- at '/agent/usageInterval': '0s' does not match"),
        ("agent.usageInterval=10m", "- at '/agent/usageInterval': '10m' does not match"),
        ("agent.usageInterval=301s", "- at '/agent/usageInterval': '301s' does not match"),
        ("agent.usageInterval=1500ms", "- at '/agent/usageInterval': '1500ms' does not match"),
        ("agent.dcgmExporter=x:0", "- at '/agent/dcgmExporter': 'x:0' does not match"),
        ("agent.dcgmExporter=x:65536", "- at '/agent/dcgmExporter': 'x:65536' does not match"),
        ("agent.dcgmExporter=x:99999", "- at '/agent/dcgmExporter': 'x:99999' does not match"),
        ("agent=null", "- at '': missing property 'agent'"),
        ("operator=null", "- at '': missing property 'operator'"),
        ("policies=null", "- at '': missing property 'policies'"),
        ("tenants.network=null", "- at '/tenants': missing property 'network'"),
        ("image.agent=null", "- at '/image': missing property 'agent'"),
        ("agent.nodeSelectors=null", "- at '/agent': missing property 'nodeSelectors'"),
        ("agent.updateStrategy=null", "- at '/agent': missing property 'updateStrategy'"),
        ("operator.replicas=null", "- at '/operator': missing property 'replicas'"),
        (
            "networkPolicy.metricsFrom[0].ipBlock.cidr=10.10.0.0/99",
            "- at '/networkPolicy/metricsFrom/0/ipBlock/cidr': '10.10.0.0/99' does not match",
        ),
        (
            "networkPolicy.metricsFrom[0].ipBlok.cidr=10.10.0.0/24",
            "- at '/networkPolicy/metricsFrom/0': additional properties 'ipBlok' not allowed",
        ),
    ] {
        let lines = refusal(&["--set", set]);
        assert!(lines.len() == 1 && lines[0].starts_with(line), "{set}: {lines:?}");
    }
    let none = refusal(&["--set-json", "agent.nodeSelectors=[]"]);
    assert_eq!(none, ["- at '/agent/nodeSelectors': minItems: got 0, want 1"]);
}

#[test]
fn intervals_and_ports_at_their_bounds_are_accepted() {
    for interval in ["1s", "99s", "300s", "1m30s", "5m"] {
        let (fine, text) = template("agent.yaml", &[&format!("agent.usageInterval={interval}")]);
        assert!(fine && text.contains(&format!("--usage-interval={interval}\n")), "{interval}: {text}");
    }
    for exporter in ["x:1", "x:9400", "x:65535"] {
        let (fine, text) = template("agent.yaml", &[&format!("agent.dcgmExporter={exporter}")]);
        assert!(fine && text.contains(&format!("--dcgm-exporter={exporter}\n")), "{exporter}: {text}");
    }
}

#[test]
fn development_pools_are_a_regular_expression() {
    let enabled = "prometheusRules.enabled=true";
    let set = |pools: &str| format!("prometheusRules.developmentPools={pools}");
    for wrong in ["(", "dev)", "a)|(b", "[a", "*dev"] {
        let lines = refusal(&["--set", enabled, "--set-string", &set(wrong)]);
        let cause = format!("prometheusRules.developmentPools: \"{wrong}\" is not a regular expression");
        assert!(lines.len() == 1 && lines[0].contains(&cause), "{wrong}: {lines:?}");
    }
    for right in ["", "dev", "dev-.*|sandbox", "(a|b)-[0-9]+", "x?"] {
        let (fine, text) = template("prometheus-rules.yaml", &[enabled, &set(right)]);
        assert!(fine, "{right}: {text}");
    }
}

#[test]
fn no_node_selector_is_needed_with_simulated_nodes_only() {
    let chart = chart().display().to_string();
    let simulated = "simulator.enabled=true,simulator.nodeSelector.lab=yes";
    let args = ["template", "gputenancy", &chart, "--set-json", "agent.nodeSelectors=[]", "--set", simulated];
    let (fine, text) = helm(&args);
    assert!(fine && text.contains("nodeSelector: {matchLabels: {\"lab\":\"yes\"}}"), "{text}");
    assert!(!template("", &["simulator.enabled=true,simulator.nodeSelector=null"]).0);
}

/// Paths of values that the schema does not require, below maps whose keys it names.
fn optional(values: &Map<String, Value>, schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (key, value) in values {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if !required.contains(&json!(key)) {
            found.push((below.clone(), value.clone()));
        }
        if let (Some(inner), true) = (value.as_object(), schema["properties"][key]["properties"].is_object()) {
            optional(inner, &schema["properties"][key], &below, found);
        }
    }
}

#[test]
fn each_value_is_required_or_may_be_null() {
    let (values, schema) = (yaml("values.yaml"), yaml("values.schema.json"));
    let mut found = Vec::new();
    optional(values.as_object().unwrap(), &schema, "", &mut found);
    let empty = |value: &Value| *value == json!("") || *value == json!([]) || *value == json!({});
    let filled: Vec<&str> = found.iter().filter(|(_, value)| !empty(value)).map(|(path, _)| path.as_str()).collect();
    let unknown: Vec<&&str> = filled.iter().filter(|path| !MAY_BE_NULL.contains(path)).collect();
    assert!(unknown.is_empty(), "required in values.schema.json, or able to be null: {unknown:?}");
    // all of them at once, without those below another one
    let below = |path: &str| found.iter().any(|(other, _)| path.starts_with(&format!("{other}.")));
    let paths = found.iter().map(|(path, _)| path).filter(|path| !below(path));
    let sets: Vec<String> = paths.map(|path| format!("{path}=null")).collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    for more in [&[][..], &["virtualClusters.enabled=true", "serviceMonitor.enabled=true"]] {
        let (fine, text) = template("", &[&sets, more].concat());
        assert!(fine, "{text}");
        for bad in ["null\n", "\"null\"", "<nil>", "%!"] {
            let line = text.lines().map(|line| format!("{line}\n")).find(|line| line.contains(bad));
            // of rules in CEL and schemas
            let line = line.filter(|line| !line.contains("orValue") && !line.contains("==") && !line.contains("type:"));
            assert_eq!(line, None, "{bad}");
        }
    }
}

#[test]
fn description_of_crds_install_names_each_custom_resource() {
    let schema = yaml("values.schema.json");
    let text = schema["properties"]["crds"]["properties"]["install"]["description"].as_str().unwrap().to_owned();
    let values = fs::read_to_string(chart().join("values.yaml")).unwrap();
    for file in fs::read_dir(product::root().join("crds/generated")).unwrap() {
        let crd: Value = serde_saphyr::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap();
        assert!(text.contains(kind), "{kind}: {text}");
        assert!(values.lines().any(|line| line.contains("CustomResourceDefinitions") && line.contains(kind)), "{kind}");
    }
}
