//! The rendered chart: snapshots of every object, and invalid values.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use e2e::product;
use gputenancy_crds::{GpuPool, GpuProfile};
use serde_json::{Value, json};

pub(crate) fn chart() -> PathBuf {
    product::root().join("helm/gputenancy")
}

/// Runs helm without a cluster: success, and output.
pub(crate) fn helm(args: &[&str]) -> (bool, String) {
    let helm = product::root().join("target/toolset/bin/helm");
    assert!(helm.exists(), "{} is missing: run `make tools`", helm.display());
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(helm).args(args).env("HOME", home.path()).env_remove("KUBECONFIG").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

pub(crate) fn template(file: &str, sets: &[&str]) -> (bool, String) {
    let chart = chart().display().to_string();
    let mut args =
        vec!["template", "gputenancy", &chart, "--namespace", "gputenancy-system", "--kube-version", "1.36.3"];
    let path = format!("templates/{file}");
    if !file.is_empty() {
        args.extend(["--show-only", &path]);
    }
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    helm(&args)
}

pub(crate) fn rendered(file: &str, sets: &[&str]) -> String {
    let (success, text) = template(file, sets);
    assert!(success, "{text}");
    text
}

/// Values that switch on what is off by default.
const ALL: [&str; 9] = [
    "simulator.enabled=true",
    "simulator.nodeSelector.lab=yes",
    "serviceMonitor.enabled=true",
    "serviceMonitor.labels.release=prometheus",
    "image.pullSecrets={registry}",
    "agent.driverRoot=/run/nvidia/driver",
    "agent.runtimeSocket=/run/own.sock",
    "policies.hiddenVariables=Report",
    "virtualClusters.enabled=true",
];

/// Secrets that tenants may pull images with.
const PULLS: &str = "tenants.imagePullSecrets={registry,mirror.example}";
/// Queues of Kueue.
const QUEUES: &str = "queueing.kueue.enabled=true";

#[test]
fn images_of_other_registries_are_refused_or_a_warning() {
    for (value, action) in [("Deny", "validationActions: [Deny]"), ("Warn", "validationActions: [Warn]")] {
        let text = rendered("tenant-images.yaml", &[&format!("policies.otherRegistries={value}")]);
        assert_eq!(text.matches(action).count(), 1, "{text}");
    }
    let (success, text) = template("tenant-images.yaml", &["policies.otherRegistries=Audit"]);
    assert!(!success && text.contains("otherRegistries"), "{text}");
}

#[test]
fn digest_of_an_image_replaces_its_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    for (image, file) in [("operator", "operator"), ("agent", "agent"), ("virtualClusters", "virtual-clusters")] {
        let set = format!("image.{image}.digest={digest}");
        let text = rendered(&format!("{file}.yaml"), &["virtualClusters.enabled=true", &set]);
        assert!(text.contains(&format!("image: gputenancy-{file}@{digest}\n")), "{text}");
    }
}

#[test]
fn chart_without_image_pull_secrets_renders_no_secret_rights() {
    let signs = [
        "PULL_SECRETS",
        "gputenancy-operator-secrets",
        "gputenancy-tenant-pull-secrets",
        "resources: [serviceaccounts]\n    resourceNames",
    ];
    let (without, with) = (rendered("", &[]), rendered("", &[PULLS]));
    for sign in signs {
        assert!(!without.contains(sign) && with.contains(sign), "{sign}");
    }
    assert!(with.contains("{name: PULL_SECRETS, value: \"registry,mirror.example\"}"));
    assert!(!rendered("", &[PULLS, "policies.enabled=false"]).contains("AdmissionPolicy"));
}

#[test]
fn chart_passes_helm_lint() {
    let chart = chart().display().to_string();
    for sets in [&[][..], &ALL[..], &[PULLS][..], &[QUEUES], &["usageEndpoint.enabled=true"]] {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let (fine, text) = helm(&[&["lint", "--strict", &chart][..], &sets].concat());
        assert!(fine, "{text}");
    }
}

#[test]
fn chart_templates_match_snapshots() {
    for file in [
        "operator",
        "operator-rbac",
        "operator-roles",
        "agent",
        "agent-rbac",
        "mig-manager",
        "device-plugin",
        "canary",
        "tenant-roles",
        "policies",
        "tenant-pods",
        "tenant-policies",
        "tenant-grace-periods",
        "tenant-pod-defaults",
        "tenant-controllers",
        "tenant-images",
        "tenant-ingresses",
        "operator-objects",
        "tenant-adoption",
        "unmanaged-namespaces",
        "network-policy",
        "metrics",
        "release-finalizers",
    ] {
        insta::assert_snapshot!(file, rendered(&format!("{file}.yaml"), &[]));
    }
    for (name, set) in [
        ("tenant-pod-defaults-toleration-only", "policies.hideGpus=None"),
        ("tenant-pod-defaults-hidden-only", "policies.gpuTaint.toleration=Require"),
    ] {
        insta::assert_snapshot!(name, rendered("tenant-pod-defaults.yaml", &[set]));
    }
    insta::assert_snapshot!(rendered("tenant-toleration.yaml", &["policies.gpuTaint.toleration=Require"]));
    insta::assert_snapshot!("virtual-clusters", rendered("virtual-clusters.yaml", &["virtualClusters.enabled=true"]));
    let classes = "policies.priorityClasses={batch}";
    insta::assert_snapshot!(
        "virtual-clusters-priority",
        rendered("virtual-clusters-priority.yaml", &["virtualClusters.enabled=true", classes])
    );
    for file in ["pull-secrets", "tenant-pull-secrets"] {
        insta::assert_snapshot!(file, rendered(&format!("{file}.yaml"), &[PULLS]));
    }
    for file in ["tenant-queues", "operator-queues"] {
        insta::assert_snapshot!(file, rendered(&format!("{file}.yaml"), &[QUEUES]));
    }
    for file in ["agent", "simulator", "metrics"] {
        insta::assert_snapshot!(format!("{file}-with-everything"), rendered(&format!("{file}.yaml"), &ALL));
    }
}

/// The manifests of the examples, by key of their `ConfigMap`.
pub(crate) fn examples(sets: &[&str]) -> BTreeMap<String, String> {
    let object: Value = serde_saphyr::from_str(&rendered("examples.yaml", sets)).unwrap();
    serde_json::from_value(object["data"].clone()).unwrap()
}

#[test]
fn chart_notes_name_only_objects_of_the_release() {
    let chart = chart().display().to_string();
    let (fine, text) = helm(&["install", "gputenancy", &chart, "--dry-run=client", "--namespace", "gpus"]);
    assert!(fine, "{text}");
    let (_, notes) = text.split_once("NOTES:").unwrap();
    assert!(!notes.contains("samples/") && !notes.contains("-f files/"), "{notes}");
    let keys: Vec<&str> = notes.split("{.data.").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    assert_eq!(keys, ["catalog", "pool", "tenant"]);
    assert!(keys.iter().all(|key| examples(&[]).contains_key(*key)));
    let commands = notes.matches("kubectl -n gpus get configmap gputenancy-examples").count();
    assert_eq!(commands, keys.len(), "{notes}");
    assert!(notes.contains("nvidia.com/gpu.present=true"), "{notes}");
}

#[test]
fn chart_examples_select_nodes_of_the_release() {
    let pool = |sets: &[&str]| -> GpuPool { serde_saphyr::from_str(&examples(sets)["pool"]).unwrap() };
    let labels = |sets: &[&str]| pool(sets).spec.node_selector.match_labels.unwrap();
    assert_eq!(labels(&[]), [("nvidia.com/gpu.present".to_owned(), "true".to_owned())].into());
    let simulated = labels(&["simulator.enabled=true", "simulator.nodeSelector.lab=yes"]);
    assert_eq!(simulated, [("lab".to_owned(), "yes".to_owned())].into());
}

#[test]
fn catalog_profiles_fit_every_mig_board() {
    let profiles: Vec<GpuProfile> = serde_saphyr::from_multiple(&examples(&[])["catalog"]).unwrap();
    assert_eq!(profiles.len(), 4);
    for board in silicon::boards::mig_keys().into_iter().map(|key| silicon::boards::load(key).unwrap()) {
        for profile in &profiles {
            let Some(mig) = &profile.spec.device.mig else { continue };
            let memory = u64::try_from(mig.memory.as_ref().unwrap().mib().unwrap()).unwrap();
            let slices = u32::try_from(mig.slices.unwrap()).unwrap();
            let fits = board.profiles.iter().any(|p| p.slices >= slices && p.memory_mib >= memory);
            assert!(fits, "{} has no profile for {}", board.name, profile.metadata.name.as_deref().unwrap());
        }
    }
}

#[test]
fn user_roles_grant_no_writes_on_objects_of_the_programs() {
    let roles: Vec<Value> = serde_saphyr::from_multiple(&rendered("user-roles.yaml", &[])).unwrap();
    let named = |name: &str| roles.iter().find(|role| role["metadata"]["name"] == name);
    for kind in ["gpuprofile", "gpupool", "gputenant"] {
        for (role, verbs) in [("viewer", 3), ("editor", 7), ("admin", 8)] {
            let role = named(&format!("gputenancy:{kind}-{role}")).unwrap();
            assert_eq!(role["rules"][0]["verbs"].as_array().unwrap().len(), verbs, "{role}");
        }
    }
    for kind in ["gpunode", "gpugrant"] {
        assert!(named(&format!("gputenancy:{kind}-viewer")).is_some());
        assert!(named(&format!("gputenancy:{kind}-editor")).is_none());
    }
    for role in roles.iter().filter(|role| role["kind"] == "ClusterRole") {
        let labels = &role["metadata"]["labels"];
        for built_in in ["edit", "admin"] {
            assert!(labels[format!("rbac.authorization.k8s.io/aggregate-to-{built_in}")].is_null(), "{role}");
        }
    }
    assert!(named("gputenancy:catalog-readers").is_some());
    assert!(!rendered("user-roles.yaml", &["tenants.catalogReaders=null"]).contains("catalog-readers"));
}

#[test]
fn users_of_forced_deletion_are_those_of_the_values() {
    let user = "system:serviceaccount:failover:controller";
    let listed = |values: &[&str]| rendered("tenant-grace-periods.yaml", values).contains(&format!("\"{user}\"]"));
    assert!(listed(&[&format!("policies.forcedDeletionUsers[0]={user}")]));
    assert!(!listed(&[]) && !listed(&["policies.forcedDeletionUsers=null"]));
}

#[test]
fn preset_of_nvsentinel_names_its_drainer_and_takes_the_agent_off_a_node_that_it_resets() {
    let (on, user) = ("presets.nvsentinel.enabled=true", "system:serviceaccount:sentinel:drainer");
    let values = ["presets.nvsentinel.namespace=sentinel", "presets.nvsentinel.drainerServiceAccount=drainer"];
    let users = |values: &[&str]| rendered("tenant-grace-periods.yaml", values).matches(user).count();
    assert_eq!((users(&[&values[..], &[on]].concat()), users(&values)), (1, 0));
    let listed = format!("policies.forcedDeletionUsers[0]={user}");
    assert_eq!(users(&[&values[..], &[on, &listed]].concat()), 1, "named twice");
    assert!(
        rendered("tenant-grace-periods.yaml", &[on]).contains("\"system:serviceaccount:nvsentinel:node-drainer\"]")
    );
    // in each term, as one is enough
    let terms = "- {key: nvidia.com/gpu.deploy.dcgm, operator: NotIn, values: [\"false\"]}";
    let simulated = ["simulator.enabled=true", "simulator.nodeSelector.lab=yes"];
    let agent = |values: &[&str]| rendered("agent.yaml", values).matches(terms).count();
    assert_eq!((agent(&[on]), agent(&[&simulated[..], &[on]].concat()), agent(&[])), (2, 3, 0));
}

#[test]
fn pods_of_all_namespaces_get_devices_if_the_values_say_so() {
    let listed =
        |values: &[&str]| rendered("unmanaged-namespaces.yaml", values).contains("\"gputenancy-system\",\"a\"]");
    assert!(listed(&["policies.unmanagedNamespaces={a}"]) && !listed(&[]));
    assert!(
        rendered("unmanaged-namespaces.yaml", &["policies.unmanagedNamespaces=null"])
            .contains("[\"gputenancy-system\"]")
    );
    assert!(!rendered("", &["policies.unmanagedNamespaces={*}"]).contains("gputenancy-unmanaged-namespaces"));
    let (success, text) = template("unmanaged-namespaces.yaml", &["policies.unmanagedNamespaces={team-*}"]);
    assert!(!success && text.contains("unmanagedNamespaces"), "{text}");
}

#[test]
fn lint_embeds_policies_of_default_values() {
    let lines =
        |text: &str| text.lines().map(str::trim_end).filter(|l| !l.is_empty()).map(String::from).collect::<Vec<_>>();
    let file = product::root().join("operator/kubectl-gpu/default-policies.yaml");
    let files = [
        "tenant-pods",
        "tenant-pod-defaults",
        "tenant-policies",
        "tenant-controllers",
        "tenant-images",
        "tenant-ingresses",
    ];
    let text = files.map(|file| rendered(&format!("{file}.yaml"), &[])).concat();
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(
        lines(&fs::read_to_string(&file).unwrap()),
        lines(&text),
        "{} is stale: run this test with INSTA_UPDATE=always",
        file.display()
    );
}

#[test]
fn annotations_of_networks_and_ingresses_are_those_of_the_values() {
    let networks = "k8s.v1.cni.cncf.io/networks";
    let permits = |values: &[&str]| rendered("tenant-pods.yaml", values).contains(&format!("!(k in ['{networks}']))"));
    assert!(permits(&[&format!("policies.networkAnnotations={{{networks}}}")]));
    assert!(!permits(&[]) && !permits(&["policies.networkAnnotations=null"]));
    let ingresses = |values: &[&str], words: &str| rendered("tenant-ingresses.yaml", values).contains(words);
    let (refused, starts) =
        ("policies.refusedIngressAnnotations", "'alb.ingress.kubernetes.io/conditions.'].exists(s, k.startsWith(s))");
    assert!(ingresses(&[], starts) && !ingresses(&[&format!("{refused}={{-snippet}}")], starts));
    assert!(!ingresses(&[&format!("{refused}=null")], starts));
    // opened for all rules of annotations
    let opened = "!(k in ['example.com/a'] || ['b.example.com/'].exists(s, k.startsWith(s)))";
    let more = ["policies.ingressAnnotations={example.com/a,b.example.com/*}"];
    assert!(rendered("tenant-ingresses.yaml", &more).matches(opened).count() == 3 && !ingresses(&[], opened));
    let known = "policies.knownIngressAnnotations={example.com/a}";
    assert!(ingresses(&[known], "(!k.contains('/') || k in ['example.com/a'] || [].exists(s, k.startsWith(s)))"));
    let (field, key) = ("object.spec.?loadBalancerIP", "!(k in ['metallb.io/loadBalancerIPs'])");
    assert!(ingresses(&[], field) && !ingresses(&[], key));
    let addresses = "policies.loadBalancerAddresses={spec.loadBalancerIP,metallb.io/loadBalancerIPs}";
    assert!(!ingresses(&[addresses], field));
    assert!(ingresses(&["policies.loadBalancerAddresses={metallb.io/loadBalancerIPs}"], key));
    // ends of keys, which the list of refused annotations has, would open more than one key
    let (success, text) = template("tenant-ingresses.yaml", &["policies.ingressAnnotations={-snippet}"]);
    assert!(!success && text.contains("ingressAnnotations"), "{text}");
    let (success, text) = template("tenant-pods.yaml", &["policies.networkAnnotations={cni.projectcalico.org/*}"]);
    assert!(!success && text.contains("networkAnnotations"), "{text}");
    let obeyed = |values: &[&str]| rendered("tenant-pods.yaml", values).contains("|ovn[.]kubernetes[.]io|");
    assert!(obeyed(&[]) && !obeyed(&["policies.reservedAnnotations={example.com}"]));
    assert!(!obeyed(&["policies.reservedAnnotations=null"]));
    let (success, text) = template("tenant-pods.yaml", &["policies.reservedAnnotations={ovn.kubernetes.io/vpc}"]);
    assert!(!success && text.contains("reservedAnnotations"), "{text}");
}

#[test]
fn chart_crds_equal_generated_crds() {
    let (shipped, generated) = (chart().join("files/crds"), product::root().join("crds/generated"));
    let names =
        |folder: &PathBuf| -> BTreeSet<_> { fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name()).collect() };
    assert_eq!(names(&shipped), names(&generated));
    let all = rendered("crds.yaml", &[]);
    for name in names(&generated) {
        let text = fs::read_to_string(generated.join(&name)).unwrap();
        assert_eq!(
            fs::read_to_string(shipped.join(&name)).unwrap(),
            text,
            "{} is stale: run `make crds`",
            name.display()
        );
        assert!(all.contains(text.trim_end()), "{} is rendered differently", name.display());
    }
    let (fine, _) = template("crds.yaml", &["crds.install=false"]);
    assert!(!fine, "crds.install=false still renders the CRDs");
}

/// The agent's `DaemonSet` from `helm template`, which contacts no cluster, with this kind in `--api-versions`.
fn agent_with_api(kind: Option<&str>, set: &str) -> String {
    let chart = chart().display().to_string();
    let base = ["template", "gputenancy", &chart, "--show-only", "templates/agent.yaml", "--set", set];
    let kinds: Vec<&str> = kind.iter().flat_map(|kind| ["--api-versions", *kind]).collect();
    let (fine, text) = helm(&[&base[..], &kinds].concat());
    assert!(fine, "{text}");
    text
}

#[test]
fn gpu_operator_client_auto_is_off_without_a_cluster() {
    let policy = Some("nvidia.com/v1/ClusterPolicy");
    let label = "nvidia.com/gpu.deploy.client: \"true\"";
    for kind in [None, policy] {
        let client = |value: &str| agent_with_api(kind, &format!("agent.gpuOperatorClient={value}"));
        let (auto, no, yes) = (client("auto"), client("false"), client("true"));
        assert!(yes.contains(label) && !no.contains(label), "{kind:?}: {yes}");
        // without a cluster no node's labels are known, and a selector for a missing label would leave no agent
        assert_eq!(auto, no, "{kind:?}");
    }
    let simulated = agent_with_api(policy, "simulator.enabled=true,simulator.nodeSelector.lab=yes");
    assert!(!simulated.contains(label), "{simulated}");
}

#[test]
fn tenancy_doc_lists_every_policy_message() {
    let document = fs::read_to_string(product::root().join("docs/tenancy.md")).unwrap();
    let rows = document.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.rsplit_once(" | `"));
    let quoted: Vec<&str> = rows.filter_map(|(_, words)| words.split('`').next()).collect();
    let toleration = rendered("tenant-toleration.yaml", &["policies.gpuTaint.toleration=Require"]);
    let schedulers = "policies.schedulerNames={default-scheduler,volcano,kai-scheduler}";
    let pods = rendered("tenant-pods.yaml", &["policies.imagePullPolicyAlways=true", schedulers]);
    let policies = pods + &rendered("tenant-policies.yaml", &[schedulers]) + &toleration;
    let more = ["tenant-controllers.yaml", "tenant-images.yaml", "tenant-ingresses.yaml", "tenant-adoption.yaml"];
    let policies = policies + &more.map(|file| rendered(file, &[])).concat();
    let policies = policies + &rendered("tenant-grace-periods.yaml", &[]) + &rendered("unmanaged-namespaces.yaml", &[]);
    assert!(!rendered("tenant-pods.yaml", &[]).contains("imagePullPolicy"), "required by default");
    let policies = policies + &rendered("tenant-pull-secrets.yaml", &[PULLS]);
    let policies = policies + &rendered("tenant-queues.yaml", &[QUEUES]);
    // the text between a validation's message and its reason, in one line
    let messages = policies.split("      message").skip(1).filter_map(|rest| rest.split("      reason:").next());
    let messages: Vec<String> = messages.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(!quoted.is_empty() && !messages.is_empty());
    for message in &messages {
        let lines = quoted.iter().filter(|words| message.contains(**words)).count();
        assert_eq!(lines, 1, "lines of docs/tenancy.md for: {message}");
    }
    for words in &quoted {
        assert!(messages.iter().any(|message| message.contains(words)), "no policy has the message {words:?}");
    }
}

#[test]
fn pod_policy_match_condition_equals_all_validations() {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sets in [&[][..], &["policies.imagePullPolicyAlways=true"], &["policies.gpuTaint.key="]] {
        let text = rendered("tenant-pods.yaml", sets);
        let (conditions, rest) = text.split_once("\n  variables:").unwrap();
        let (_, condition) = conditions.split_once("expression: |-").unwrap();
        let (_, validations) = rest.split_once("\n  validations:").unwrap();
        let rules =
            validations.split("- expression: |-").skip(1).filter_map(|rule| rule.split("\n      message").next());
        let halves = rules.map(|rule| {
            let rule = plain(rule);
            let rule = rule.strip_prefix("request.operation == 'CREATE' ? ").unwrap();
            let (create, update) = rule.split_once(") : (").unwrap();
            assert!(!update.contains(") : ("), "no unique start of the update rule: {rule}");
            (format!("{create})"), format!("({update}"))
        });
        let (create, update): (Vec<String>, Vec<String>) = halves.unzip();
        let update: Vec<String> = update.into_iter().filter(|rule| rule != "(true)").collect();
        assert!(create.len() > 10 && update.len() > 5);
        let (create, update) = (create.join(" && "), update.join(" && "));
        assert_eq!(plain(condition), format!("!(request.operation == 'CREATE' ? {create} : true && {update})"));
    }
}

#[test]
fn policies_mutate_from_kubernetes_1_36() {
    let chart = chart().display().to_string();
    let kinds_at = |version: &str, set: &str, name: &str| -> Vec<String> {
        let args = ["template", "gputenancy", &chart, "--kube-version", version, "--set", set];
        let (fine, text) = helm(&args);
        assert!(fine, "{text}");
        let named = text.split("---\n").filter(|object| object.contains(&format!("\n  name: {name}\n")));
        named
            .filter_map(|object| object.lines().find_map(|line| line.strip_prefix("kind: ")))
            .map(str::to_owned)
            .collect()
    };
    let template_at = |version: &str, set: &str| {
        let (fine, text) = helm(&["template", "gputenancy", &chart, "--kube-version", version, "--set", set]);
        assert!(fine, "{text}");
        text.split("---\n")
            .find(|object| object.contains("\nkind: MutatingAdmissionPolicy\n"))
            .unwrap_or_default()
            .to_owned()
    };
    let hidden = |version: &str, set: &str| template_at(version, set).contains("NVIDIA_VISIBLE_DEVICES");
    assert!(hidden("1.36.0", "policies.enabled=true") && !hidden("1.35.4", "policies.enabled=true"));
    assert!(hidden("1.35.4", "policies.hideGpus=Mutate") && !hidden("1.36.0", "policies.hideGpus=None"));
    assert!(!hidden("1.36.0", "policies.enabled=false"));
    let at = |version: &str, set: &str| {
        let filled_in = template_at(version, set).contains("path: '/spec/tolerations");
        (filled_in, filled_in || !kinds_at(version, set, "gputenancy-tenant-toleration").is_empty())
    };
    assert_eq!(at("1.36.0", "policies.enabled=true"), (true, true));
    assert_eq!(at("1.37.2-gke.1", "policies.enabled=true"), (true, true));
    assert_eq!(at("1.35.4", "policies.enabled=true"), (false, true));
    assert_eq!(at("1.36.0", "policies.gpuTaint.toleration=Require"), (false, true));
    assert_eq!(at("1.36.0", "policies.gpuTaint.key="), (false, false), "no taint, no toleration");
    assert_eq!(at("1.36.0", "policies.enabled=false"), (false, false));
}

#[test]
fn tenant_standard_is_passed_to_the_operator() {
    let standard = |sets: &[&str]| -> Value {
        let text = rendered("operator.yaml", sets);
        let line = text.lines().skip_while(|line| !line.contains("TENANT_STANDARD")).nth(1).unwrap();
        let json: String = serde_json::from_str(line.trim().strip_prefix("value: ").unwrap()).unwrap();
        serde_json::from_str(&json).unwrap()
    };
    let all = standard(&[]);
    let blocks = all["egress"][0]["to"].as_array().unwrap();
    let except: Vec<&Value> = blocks.iter().flat_map(|block| block["ipBlock"]["except"].as_array().unwrap()).collect();
    for network in ["10.0.0.0/8", "169.254.0.0/16", "fc00::/7"] {
        assert!(except.iter().any(|e| *e == network), "{except:?}");
    }
    assert_eq!(all["defaultRequests"], json!({"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"}));
    let limits = &all["defaultResources"];
    assert!(limits["services.nodeports"] == "0" && limits["services.loadbalancers"] == "2", "{limits}");
    assert_eq!(all["priorityClasses"], json!([]));
    let none =
        standard(&["tenants.defaultRequests=null", "tenants.network.egress=null", "tenants.defaultResources=null"]);
    let expected = json!({"egress": [], "defaultRequests": null, "defaultResources": null, "priorityClasses": []});
    assert_eq!(none, expected);
}

#[test]
fn owner_role_writes_require_the_bindings_policy() {
    let right = |sets: &[&str]| rendered("tenant-roles.yaml", sets).contains("gputenancy:tenant-owner-roles");
    assert!(right(&[]) && !right(&["tenants.selfServiceRoles=false"]) && !right(&["policies.enabled=false"]));
    assert!(
        rendered("tenant-policies.yaml", &["tenants.selfServiceRoles=false"]).contains("gputenancy-tenant-bindings")
    );
}

#[test]
fn operator_writes_cluster_roles_only_where_a_policy_confines_it() {
    for (sets, on) in
        [(&[][..], true), (&["tenants.ownersReadTenant=false"][..], false), (&["policies.enabled=false"][..], false)]
    {
        let text = rendered("", sets);
        assert_eq!(text.contains("resources: [clusterroles, clusterrolebindings]"), on, "{sets:?}");
        assert_eq!(text.contains("name: gputenancy-operator-clusterrolebindings"), on, "{sets:?}");
        assert!(text.contains(&format!("{{name: OWNERS_READ_TENANT, value: \"{on}\"}}")), "{sets:?}");
    }
}

#[test]
fn disabled_features_render_no_objects() {
    let none = rendered("", &["policies.enabled=false", "crds.install=false", "operator.replicas=1"]);
    for absent in [
        "AdmissionPolicy",
        "CustomResourceDefinition",
        "PodDisruptionBudget",
        "nvsim",
        "ServiceMonitor",
        "--hidden-variables",
    ] {
        assert!(!none.contains(absent), "{absent} is still there");
    }
}

#[test]
fn boards_of_single_nodes_are_one_variable_of_the_simulator() {
    let simulated = ["simulator.enabled=true", "simulator.nodeSelector.lab=yes"];
    assert!(!rendered("simulator.yaml", &simulated).contains("NVSIM_NODE_BOARDS"));
    let boards = ["simulator.nodeBoards.b=h100-80gb", "simulator.nodeBoards.a\\.example=a100-80gb+h100-94gb"];
    let text = rendered("simulator.yaml", &[simulated, boards].concat());
    let variable = "{name: NVSIM_NODE_BOARDS, value: \"a.example=a100-80gb+h100-94gb,b=h100-80gb\"}";
    assert!(text.contains(variable), "{text}");
}

#[test]
fn values_schema_rejects_invalid_values_by_path() {
    for (set, words) in [
        ("operator.replicaz=3", "additional properties 'replicaz' not allowed"),
        ("operator.replicas=0", "/operator/replicas"),
        ("simulator.enabled=true", "/simulator/nodeSelector"),
        ("simulator.board=rtx-4090", "/simulator/board"),
        ("simulator.nodeBoards.gpu-1=a100-80gb+rtx-4090", "/simulator/nodeBoards/gpu-1"),
        ("simulator.nodeBoards.GPU=a100-80gb", "invalid propertyName 'GPU'"),
        ("simulator.latency=slow", "/simulator/latency"),
        ("agent.extraCdiDevices={nonsense}", "/agent/extraCdiDevices/0"),
        ("agent.unattributedProcesses=Kill", "/agent/unattributedProcesses"),
        ("agent.unattributedDeadline=soon", "/agent/unattributedDeadline"),
        ("agent.kubeletDir=kubelet", "/agent/kubeletDir"),
        ("policies.resourceDomains={}", "/policies/resourceDomains"),
        ("policies.breakGlassGroups={a'b}", "/policies/breakGlassGroups/0"),
        ("policies.driverCapabilities={all}", "/policies/driverCapabilities/0"),
        ("policies.schedulerNames={}", "/policies/schedulerNames"),
        ("policies.gpuTaint.toleration=Perhaps", "/policies/gpuTaint/toleration"),
        ("policies.gpuTaint.key=a'b", "/policies/gpuTaint/key"),
        ("policies.imagePullPolicyAlways=Never", "/policies/imagePullPolicyAlways"),
        ("policies.hiddenVariables=Hide", "/policies/hiddenVariables"),
        ("agent.runtimeSocket=containerd.sock", "/agent/runtimeSocket"),
        ("policies.runtimeClassNames={a'b}", "/policies/runtimeClassNames/0"),
        ("agent.kubeletDir=/a'b", "/agent/kubeletDir"),
        ("tenants.network.egress={all}", "/tenants/network/egress/0"),
        ("tenants.network.egress[0].ports[0].port=443", "/tenants/network/egress/0"),
        ("tenants.network.egress[0].to[0].ipBlock.cidr=internet", "/tenants/network/egress/0/to/0/ipBlock/cidr"),
        ("tenants.defaultRequests.cpu=much", "/tenants/defaultRequests/cpu"),
        ("tenants.defaultLimits.cpu=1", "/tenants"),
        ("tenants.defaultResources.pods=many", "/tenants/defaultResources/pods"),
        ("tenants.defaultResources.requests\\.nvidia\\.com/gpu=1", "invalid propertyName 'requests.nvidia.com/gpu'"),
        ("tenants.imagePullSecrets={Registry}", "/tenants/imagePullSecrets/0"),
        ("tenants.imagePullSecrets={a,a}", "/tenants/imagePullSecrets"),
        ("usageEndpoint.tlsSecretName=Own", "/usageEndpoint/tlsSecretName"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
    ] {
        let (fine, text) = template("", &[set]);
        assert!(!fine && text.contains(words), "{set}: {text}");
    }
}

#[test]
fn values_schema_lists_every_simulated_board() {
    let schema: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let simulator = &schema["properties"]["simulator"]["properties"];
    let known = simulator["board"]["enum"].as_array().unwrap();
    let known: BTreeSet<String> = known.iter().map(|b| b.as_str().unwrap().to_owned()).collect();
    let files = fs::read_dir(product::root().join("integration/sim/silicon/boards")).unwrap();
    let stems = files.map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(known, stems.filter(|s| s != "geometries").collect::<BTreeSet<_>>());
    let any = known.into_iter().collect::<Vec<_>>().join("|");
    let list = format!("^({any})(\\+({any}))*$");
    assert_eq!(simulator["nodeBoards"]["additionalProperties"]["pattern"], list);
}
