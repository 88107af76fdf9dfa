//! The usage endpoint in the chart: variables, port, rights, Service, network policies and certificate.

use serde_json::{Value, json};

use crate::offline::{
    chart::{chart, helm, rendered},
    objects,
};

const ON: &str = "usageEndpoint.enabled=true";
const SECRET: &str = "usageEndpoint.tlsSecretName=usage-tls";

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
}

/// Pod template of the operator, and its container.
fn operator(sets: &[&str]) -> (Value, Value) {
    let all = objects(&rendered("operator.yaml", sets));
    let pod = named(&all, "Deployment", "gputenancy-operator").unwrap()["spec"]["template"].clone();
    let container = pod["spec"]["containers"][0].clone();
    (pod, container)
}

/// Value of a variable of the operator.
fn variable(container: &Value, name: &str) -> Value {
    let env = container["env"].as_array().unwrap();
    env.iter().find(|v| v["name"] == name).map_or(Value::Null, |v| v["value"].clone())
}

/// Egress of isolated tenants.
fn egress(sets: &[&str]) -> Vec<Value> {
    let text = variable(&operator(sets).1, "TENANT_STANDARD");
    let standard: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    standard["egress"].as_array().unwrap().clone()
}

#[test]
fn usage_endpoint_is_rendered_only_when_enabled() {
    let rule =
        |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["create"]});
    let (tokens, access) =
        (rule("authentication.k8s.io", "tokenreviews"), rule("authorization.k8s.io", "subjectaccessreviews"));
    for (sets, on) in [(&[][..], false), (&[SECRET], false), (&[ON], true), (&[ON, SECRET], true)] {
        let all = objects(&rendered("", sets));
        let rules = &named(&all, "ClusterRole", "gputenancy-operator").unwrap()["rules"];
        let has = |rule: &Value| rules.as_array().unwrap().contains(rule);
        assert_eq!([has(&tokens), has(&access)], [on, on], "{sets:?}");
        let found = ["Service", "NetworkPolicy"].map(|kind| named(&all, kind, "gputenancy-usage").is_some());
        assert_eq!(found, [on, on], "{sets:?}");
        let (_, container) = operator(sets);
        let only_on = |text: &str| if on { json!(text) } else { Value::Null };
        assert_eq!(variable(&container, "USAGE_ENDPOINT"), on.to_string(), "{sets:?}");
        assert_eq!(variable(&container, "USAGE_LISTEN_ADDRESS"), only_on("0.0.0.0:8443"), "{sets:?}");
        assert_eq!(variable(&container, "AGENT_METRICS_PORT"), only_on("9410"), "{sets:?}");
        assert_eq!(container["ports"].as_array().unwrap().len(), if on { 2 } else { 1 }, "{sets:?}");
    }
    assert_eq!(variable(&operator(&[ON, "agent.port=9500"]).1, "AGENT_METRICS_PORT"), "9500");
}

#[test]
fn usage_certificate_is_mounted_only_with_a_secret() {
    for (sets, mounted) in [(&[ON, SECRET][..], true), (&[ON], false), (&[SECRET], false), (&[], false)] {
        let (pod, container) = operator(sets);
        if !mounted {
            assert!(pod["spec"]["volumes"].is_null() && container["volumeMounts"].is_null(), "{sets:?}");
            assert_eq!(variable(&container, "USAGE_TLS_DIR"), Value::Null, "{sets:?}");
            continue;
        }
        let mount = &container["volumeMounts"][0];
        assert_eq!(
            pod["spec"]["volumes"],
            json!([{"name": mount["name"], "secret": {"secretName": "usage-tls", "optional": true}}])
        );
        assert_eq!((&mount["readOnly"], &mount["subPath"]), (&json!(true), &Value::Null));
        assert_eq!(variable(&container, "USAGE_TLS_DIR"), mount["mountPath"]);
    }
}

#[test]
fn usage_port_of_the_operator_alone_is_open_to_tenants() {
    let (pod, container) = operator(&[ON]);
    let all = objects(&rendered("usage-endpoint.yaml", &[ON]));
    let policy = &named(&all, "NetworkPolicy", "gputenancy-usage").unwrap()["spec"];
    let labels = &policy["podSelector"]["matchLabels"];
    for (key, value) in labels.as_object().unwrap() {
        assert_eq!(pod["metadata"]["labels"][key], *value, "{key}");
    }
    assert_eq!(labels["app.kubernetes.io/name"], "gputenancy-operator");
    let port = json!({"protocol": "TCP", "port": 8443});
    assert_eq!(policy["ingress"], json!([{"from": [{"namespaceSelector": {}}], "ports": [port]}]));
    let service = &named(&all, "Service", "gputenancy-usage").unwrap()["spec"];
    assert_eq!(service["selector"], *labels);
    let https = container["ports"].as_array().unwrap().iter().find(|p| p["name"] == service["ports"][0]["targetPort"]);
    assert_eq!((&service["ports"][0]["port"], &https.unwrap()["containerPort"]), (&json!(443), &json!(8443)));
    let without = objects(&rendered("usage-endpoint.yaml", &[ON, "networkPolicy.enabled=false"]));
    assert_eq!(without.len(), 1, "the Service");
    // egress of isolated tenants: what the values name, and this port
    let (none, some) = (egress(&[]), egress(&[ON]));
    assert_eq!(none.len(), 1);
    let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": "gputenancy-system"}});
    let to = json!({"namespaceSelector": namespace, "podSelector": {"matchLabels": labels}});
    let own = json!({"to": [to], "ports": [port]});
    assert_eq!(some, [&none[..], std::slice::from_ref(&own)].concat());
    assert_eq!(egress(&[ON, "tenants.network.egress=null"]), [own]);
}

#[test]
fn notes_name_the_address_of_the_usage_endpoint() {
    let chart = chart().display().to_string();
    for (set, named) in [(ON, true), ("usageEndpoint.enabled=false", false)] {
        let args = ["install", "gputenancy", &chart, "--dry-run=client", "--namespace", "gpus", "--set", set];
        let (fine, text) = helm(&args);
        let (_, notes) = text.split_once("NOTES:").unwrap();
        assert!(fine && notes.contains("https://gputenancy-usage.gpus.svc/tenants/NAME/metrics") == named, "{notes}");
    }
}
