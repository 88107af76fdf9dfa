//! Options of workloads: names, labels, variables, affinity, and groups of nodes.

use std::{collections::BTreeSet, fs};

use e2e::product;
use serde_json::{Value, json};

use crate::offline::{
    WORKLOADS,
    chart::{rendered, template},
    objects,
};

/// Workloads and objects that belong to them.
const NAMED: [&str; 8] =
    ["Deployment", "DaemonSet", "Job", "Pod", "PodDisruptionBudget", "Service", "ServiceMonitor", "NetworkPolicy"];

/// All objects of a release with each workload and these values.
fn release(sets: &[&str]) -> Vec<Value> {
    of_file("", sets)
}

/// Those of one file; to parse all takes a second.
fn of_file(file: &str, sets: &[&str]) -> Vec<Value> {
    objects(&rendered(file, &[&WORKLOADS[..], sets].concat()))
}

fn text<'a>(object: &'a Value, at: &str) -> &'a str {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |o: &&Value| text(o, "/kind") == kind && text(o, "/metadata/name") == name;
    objects.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn full_name_is_that_of_workloads_and_leaves_what_programs_and_policies_name() {
    let (default, other) = (release(&[]), release(&["fullnameOverride=gpus"]));
    assert_eq!(default.len(), other.len());
    let mut renamed = 0;
    for (before, after) in default.iter().zip(&other) {
        let (kind, mut expected) = (text(before, "/kind"), before.clone());
        if NAMED.contains(&kind) {
            expected["metadata"]["name"] = json!(text(before, "/metadata/name").replace("gputenancy", "gpus"));
            renamed += 1;
        }
        // the operator may evict no pods of the platform, under any name
        if kind == "ValidatingAdmissionPolicy" && text(before, "/metadata/name") == "gputenancy-operator-evictions" {
            let rule = text(after, "/spec/validations/0/expression");
            assert!(rule.contains("!request.name.startsWith('gpus-')"), "{rule}");
            assert!(rule.contains("!request.name.startsWith('gputenancy-')"), "{rule}");
            expected["spec"]["validations"][0]["expression"] = json!(rule);
        }
        assert_eq!(*after, expected);
    }
    assert!(renamed >= 12, "{renamed}");
    assert_eq!(release(&["nameOverride=gpus"]), other);
    assert_eq!(release(&["nameOverride=ignored", "fullnameOverride=gpus"]), other);
    for wrong in ["fullnameOverride=GPUs", "nameOverride=1gpu", "nameOverride=a.b"] {
        let (fine, text) = template("", &[wrong]);
        assert!(!fine && text.contains("does not match pattern"), "{wrong}: {text}");
    }
}

#[test]
fn longest_full_name_fits_with_every_suffix() {
    let longest = format!("fullnameOverride=g{}", "x".repeat(37));
    for object in release(&[&longest]).iter().filter(|o| NAMED.contains(&text(o, "/kind"))) {
        let name = text(object, "/metadata/name");
        assert!(name.len() <= 63, "{} {name} has {} characters", text(object, "/kind"), name.len());
    }
    let (fine, refusal) = template("", &[&format!("{longest}x")]);
    assert!(!fine && refusal.contains("maxLength"), "{refusal}");
}

#[test]
fn keys_of_limits_and_requests_of_every_tenant_are_checked() {
    for (wrong, words) in [
        ("tenants.defaultResources.request\\.cpu=8", "request.cpu"),
        ("tenants.defaultResources.example\\.com/fpga=8", "example.com/fpga"),
        ("tenants.defaultRequests.pods=1", "pods"),
    ] {
        let (fine, text) = template("", &[wrong]);
        assert!(!fine && text.contains(words), "{wrong}: {text}");
    }
    for right in ["tenants.defaultResources.requests\\.example\\.com/fpga=8", "tenants.defaultResources.count/pods=8"] {
        let (fine, text) = template("", &[right]);
        assert!(fine, "{right}: {text}");
    }
}

#[test]
fn common_labels_are_on_all_objects_and_pods_but_in_no_selector() {
    let (plain, labelled) = (release(&[]), release(&["commonLabels.team=platform", "commonLabels.example\\.com/a=b"]));
    for (before, after) in plain.iter().zip(&labelled) {
        let mut expected = before.clone();
        for at in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = expected.pointer_mut(at).filter(|_| before["kind"] != "CustomResourceDefinition") {
                labels["team"] = json!("platform");
                labels["example.com/a"] = json!("b");
            }
        }
        assert_eq!(*after, expected);
    }
    for (wrong, line) in [
        ("app\\.kubernetes\\.io/name=a", "the chart sets app.kubernetes.io/name itself"),
        ("gputenancy\\.io/x=a", "the chart sets gputenancy.io/x itself"),
        ("helm\\.sh/chart=a", "the chart sets helm.sh/chart itself"),
        ("team/=a", "team/ is not the key of a label"),
        ("team=a b", "at '/commonLabels/team': 'a b' does not match pattern"),
    ] {
        let (fine, text) = template("", &[&format!("commonLabels.{wrong}")]);
        assert!(!fine && text.contains(line), "{wrong}: {text}");
    }
}

/// Workloads with variables of the values: kind, file, and key of the values.
const CONTAINERS: [(&str, &str, &str); 4] = [
    ("Deployment", "operator", "operator"),
    ("DaemonSet", "agent", "agent"),
    ("DaemonSet", "simulator", "simulator"),
    ("Deployment", "virtual-clusters", "virtualClusters"),
];

#[test]
fn extra_variables_follow_those_of_the_chart_and_replace_none() {
    let everything = [
        "tenants.imagePullSecrets={a}",
        "migManager.namespace=a",
        "devicePlugin.namespace=b",
        "usageEndpoint.enabled=true",
        "usageEndpoint.tlsSecretName=a",
        "queueing.kueue.enabled=true",
        "agent.dcgmExporter=$(HOST_IP):9400",
        "simulator.nodeBoards.a=t4-16gb",
    ];
    for (kind, file, values) in CONTAINERS {
        let env = |sets: &[&str]| -> Vec<Value> {
            let all = of_file(&format!("{file}.yaml"), &[&everything[..], sets].concat());
            let pod = named(&all, kind, &format!("gputenancy-{file}"))
                .pointer("/spec/template/spec/containers/0/env")
                .unwrap()
                .clone();
            pod.as_array().unwrap().clone()
        };
        let extra = [&format!("{values}.extraEnv[0].name=A"), &*format!("{values}.extraEnv[0].value=b")];
        let (own, more) = (env(&[]), env(&extra));
        assert_eq!(more, [&own[..], &[json!({"name": "A", "value": "b"})]].concat());
        let set = |name: &str| format!("{values}.extraEnv[0].name={name}");
        for variable in own.iter().map(|variable| variable["name"].as_str().unwrap()) {
            let (fine, text) = template("", &[&WORKLOADS[..], &everything[..], &[&set(variable)]].concat());
            let line = format!("{values}.extraEnv sets {variable}, which the chart sets already");
            assert!(!fine && text.contains(&line), "{text}");
        }
        let twice = format!("{},{values}.extraEnv[1].name=A", set("A"));
        assert!(!template("", &[&WORKLOADS[..], &[&twice]].concat()).0, "{file}");
    }
}

#[test]
fn dcgm_exporter_and_address_of_the_node_are_in_the_agent_only_when_set() {
    let address = json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    for value in [None, Some("$(HOST_IP):9400"), Some("[$(HOST_IP)]:9400"), Some("exporter.gpus.svc:9400")] {
        let sets: Vec<String> = value.iter().map(|value| format!("agent.dcgmExporter={value}")).collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let all = of_file("agent.yaml", &sets);
        let pod = &named(&all, "DaemonSet", "gputenancy-agent")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let args = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
        let flags: Vec<&str> = args.filter_map(|arg| arg.strip_prefix("--dcgm-exporter=")).collect();
        assert_eq!(flags, value.as_slice());
        // Kubernetes expands $(HOST_IP) only if it is a variable of the container
        let variables = container["env"].as_array().unwrap().iter().filter(|variable| variable["name"] == "HOST_IP");
        assert_eq!(variables.collect::<Vec<_>>(), value.map(|_| &address).as_slice(), "{value:?}");
    }
    for wrong in ["http://exporter:9400", "exporter", "exporter:port", "exporter:9400/metrics", "a b:9400", "null"] {
        let (fine, text) = template("", &[&format!("agent.dcgmExporter={wrong}")]);
        assert!(!fine && text.contains("dcgmExporter"), "{wrong}: {text}");
    }
}

#[test]
fn operator_pods_spread_by_the_values() {
    let pod = |sets: &[&str]| {
        named(&of_file("operator.yaml", sets), "Deployment", "gputenancy-operator")
            .pointer("/spec/template/spec")
            .unwrap()
            .clone()
    };
    let default = pod(&[]);
    assert!(default.pointer("/affinity/podAntiAffinity").is_some() && default["topologySpreadConstraints"].is_null());
    let zone = "operator.topologySpreadConstraints[0]";
    let spread = [
        &format!("{zone}.maxSkew=1"),
        &*format!("{zone}.topologyKey=topology.kubernetes.io/zone"),
        &format!("{zone}.whenUnsatisfiable=DoNotSchedule"),
    ];
    let own = named(&of_file("operator.yaml", &[]), "Deployment", "gputenancy-operator")
        .pointer("/spec/selector")
        .unwrap()
        .clone();
    assert_eq!(pod(&spread)["topologySpreadConstraints"][0]["labelSelector"], own);
    let labelled = format!("{zone}.labelSelector.matchLabels.a=b");
    assert_eq!(
        pod(&[&spread[..], &[&labelled]].concat())["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchLabels": {"a": "b"}}),
        "as it is written"
    );
    let affinity = pod(&["operator.affinity.podAffinity.a=b"]);
    assert_eq!(affinity["affinity"], json!({"podAffinity": {"a": "b"}}), "replaces the default");
    let all = of_file("virtual-clusters.yaml", &["virtualClusters.affinity.podAffinity.a=b"]);
    let controller = named(&all, "Deployment", "gputenancy-virtual-clusters");
    assert_eq!(controller.pointer("/spec/template/spec/affinity/podAffinity/a"), Some(&json!("b")));
    let (fine, text) = template("", &["operator.affinity.podAntiAfinity.a=b"]);
    assert!(!fine && text.contains("additional properties 'podAntiAfinity' not allowed"), "{text}");
}

/// The terms of a `DaemonSet`, each as text: `key operator value`.
fn terms(set: &Value) -> Vec<BTreeSet<String>> {
    let at =
        "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let expressions = |term: &Value| {
        let all = term["matchExpressions"].as_array().unwrap().iter();
        all.map(|e| format!("{} {} {}", text(e, "/key"), text(e, "/operator"), text(e, "/values/0"))).collect()
    };
    set.pointer(at).unwrap().as_array().unwrap().iter().map(expressions).collect()
}

#[test]
fn agent_affinity_narrows_each_entry_of_the_node_selectors() {
    let at = "agent.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    let first = format!("{at}.matchExpressions[0]");
    let sets = [&format!("{first}.key=a"), &*format!("{first}.operator=DoesNotExist")];
    let all = of_file("agent.yaml", &[&sets[..], &["agent.affinity.podAntiAffinity.b=c"]].concat());
    let agent = named(&all, "DaemonSet", "gputenancy-agent");
    let found = terms(agent);
    assert!(found.len() == 3 && found.iter().all(|term| term.len() == 2 && term.contains("a DoesNotExist ")));
    assert_eq!(agent.pointer("/spec/template/spec/affinity/podAntiAffinity/b"), Some(&json!("c")));
    let preferred = "agent.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1";
    assert!(!template("", &[preferred]).0, "a DaemonSet has no preferences");
}

#[test]
fn each_node_group_has_a_daemonset_of_its_own_with_its_paths() {
    let (a, b) = ("agent.nodeGroups[0]", "agent.nodeGroups[1]");
    let sets = [
        &format!("{a}.name=host"),
        &*format!("{a}.nodeSelector.driver=host"),
        &format!("{a}.driverRoot=/"),
        &format!("{b}.name=k3s"),
        &format!("{b}.nodeSelector.dist=k3s"),
        &format!("{b}.kubeletDir=/k"),
        "agent.driverRoot=/run/nvidia/driver",
    ];
    let all = of_file("agent.yaml", &sets);
    let agents = ["gputenancy-agent", "gputenancy-agent-host", "gputenancy-agent-k3s"];
    let [rest, host, k3s] = agents.map(|name| named(&all, "DaemonSet", name));
    let args = |set: &Value| set.pointer("/spec/template/spec/containers/0/args").unwrap().to_string();
    for (set, root, kubelet) in [
        (rest, "\"--driver-root=/run/nvidia/driver\"", "\"--kubelet-dir=/var/lib/kubelet\""),
        (host, "\"--driver-root=/\"", "\"--kubelet-dir=/var/lib/kubelet\""),
        (k3s, "\"--driver-root=/run/nvidia/driver\"", "\"--kubelet-dir=/k\""),
    ] {
        assert!(args(set).contains(root) && args(set).contains(kubelet), "{}", args(set));
        assert!(terms(set).len() == 3, "the selectors, and the simulator's nodes");
    }
    // no node is in two of them
    let with = |set: &Value, driver: &str, dist: &str| {
        terms(set).iter().all(|t| t.contains(&format!("driver {driver}")) && t.contains(&format!("dist {dist}")))
    };
    assert!(with(rest, "NotIn host", "NotIn k3s") && with(k3s, "NotIn host", "In k3s"));
    assert!(terms(host).iter().all(|term| term.contains("driver In host") && term.len() == 2));
    // a node that changes between them has one agent at a time: the other one has to end first
    let own = "agent.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone";
    let agent = named(&of_file("agent.yaml", &[]), "DaemonSet", "gputenancy-agent").clone();
    let both = of_file("agent.yaml", &[&sets[..], &[own]].concat());
    for (all, expected) in [(&all, &["kubernetes.io/hostname"][..]), (&both, &["zone", "kubernetes.io/hostname"])] {
        let at = "/spec/template/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let anti = named(all, "DaemonSet", "gputenancy-agent-host").pointer(at).unwrap().as_array().unwrap();
        assert_eq!(anti.iter().map(|term| text(term, "/topologyKey")).collect::<Vec<_>>(), expected);
        assert_eq!(anti.last().unwrap()["labelSelector"], agent["spec"]["selector"]);
    }
    // the operator finds the pods of all of them, and each DaemonSet but the first one only its own
    let operator = rendered("operator.yaml", &sets);
    let labels = |set: &Value| set.pointer("/spec/template/metadata/labels").unwrap().clone();
    for set in [rest, host, k3s] {
        for key in ["app.kubernetes.io/name", "app.kubernetes.io/instance"] {
            let pair = format!("{key}={}", labels(set)[key].as_str().unwrap());
            assert!(operator.lines().any(|l| l.contains("AGENT_SELECTOR") && l.contains(&pair)), "{pair}");
        }
    }
    let group = |set: &Value| set["spec"]["selector"]["matchLabels"]["gputenancy.io/agent-group"].clone();
    assert_eq!([rest, host, k3s].map(group), [Value::Null, json!("host"), json!("k3s")]);
    assert_eq!(
        named(&of_file("agent.yaml", &[]), "DaemonSet", "gputenancy-agent")["spec"]["selector"],
        rest["spec"]["selector"]
    );
}

#[test]
fn wrong_node_groups_are_refused() {
    let group = |more: &str| format!("agent.nodeGroups[0].name=a,{}", more.replace('@', "agent.nodeGroups[0]."));
    for (more, words) in [
        ("@driverRoot=/,@kubeletDir=/k", "missing property 'nodeSelector'"),
        ("@nodeSelector.a=b", "minProperties: got 2, want 3"),
        ("@nodeSelector.a=b,@nodeSelector.c=d,@driverRoot=/", "maxProperties: got 2, want 1"),
        ("@nodeSelector.a=b,@driverRoot=run", "'run' does not match pattern"),
        ("@nodeSelector.a=b,@port=1", "additional properties 'port' not allowed"),
    ] {
        let (fine, text) = template("", &[&group(more)]);
        let lines = text.lines().filter(|line| line.starts_with("- at '/agent/nodeGroups/0")).count();
        assert!(!fine && text.contains(words) && lines == 1, "{more}: {text}");
    }
    let twice = "@nodeSelector.a=b,@driverRoot=/,agent.nodeGroups[1].name=a,agent.nodeGroups[1].nodeSelector.c=d,\
                 agent.nodeGroups[1].driverRoot=/";
    let (fine, text) = template("", &[&group(twice)]);
    assert!(!fine && text.contains("agent.nodeGroups has the name a twice"), "{text}");
}

#[test]
fn test_pod_checks_the_rights_of_the_operator_as_the_operator() {
    let everything = [
        "tenants.imagePullSecrets={a}",
        "migManager.namespace=a",
        "devicePlugin.namespace=b",
        "queueing.kueue.enabled=true",
    ];
    for sets in [&[][..], &everything] {
        let all = release(sets);
        let pod = named(&all, "Pod", "gputenancy-operator-rights");
        assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
        let operator = named(&all, "Deployment", "gputenancy-operator").pointer("/spec/template/spec").unwrap();
        let (test, run) = (&pod["spec"]["containers"][0], &operator["containers"][0]);
        assert_eq!(pod["spec"]["serviceAccountName"], operator["serviceAccountName"]);
        assert_eq!((&test["image"], &test["securityContext"]), (&run["image"], &run["securityContext"]));
        assert_eq!(test["args"], json!(["rights"]));
        // the variables that cluster/src/rights/locations.rs reads
        let env = run["env"].as_array().unwrap();
        assert!(test["env"].as_array().unwrap().iter().all(|variable| env.contains(variable)), "{test}");
        let locations = fs::read_to_string(product::root().join("cluster/src/rights/locations.rs")).unwrap();
        let read = locations.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let read: BTreeSet<&str> = read.collect();
        let has = |name: &&str| test["env"].as_array().unwrap().iter().any(|variable| variable["name"] == **name);
        let absent = ["MIG_CONFIG_NAMESPACE", "DEVICE_PLUGIN_CONFIG_NAMESPACE", "KUEUE", "PULL_SECRETS"];
        let missing: Vec<&&str> = read.iter().filter(|name| !has(name)).collect();
        assert!(read.len() >= 7 && missing.iter().all(|name| sets.is_empty() && absent.contains(name)), "{missing:?}");
    }
}
