//! `lint`: every mistake is found in its place, and correct manifests have no findings.

use std::{collections::BTreeMap, fs, path::Path, process::Command, sync::LazyLock};

use kubectl_gpu::{
    input::{self, Text},
    lint::{self, DEFAULT_POLICIES, LintReport, Options, Policies},
};

/// The teams of the manifests in `integration/bypass`, as in the end-to-end tests.
const TEAMS: &str = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: mig-1g}
spec: {device: {mig: {profile: 1g.10gb}}, maxPerPod: 1, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: p}
spec: {nodeSelector: {matchLabels: {a: b}}, profiles: [mig-1g]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: t}
spec: {namespaces: [{name: t}], gpus: [{profile: mig-1g, count: 2}], priorityClasses: [batch], queues: [team-t]}
";

pub(crate) fn text(name: &str, text: &str) -> Text {
    Text { name: name.into(), text: text.into() }
}

fn policies(yaml: &str) -> Policies {
    Policies::read(&[text("policies.yaml", yaml)]).unwrap()
}

/// Workloads without a namespace are in that of team t.
pub(crate) fn lint(texts: &[Text]) -> LintReport {
    static DEFAULT: LazyLock<Policies> = LazyLock::new(|| policies(DEFAULT_POLICIES));
    lint::lint(texts, Options { namespace: Some("t"), policies: &DEFAULT })
}

pub(crate) fn check(manifest: &str) -> LintReport {
    lint(&[text("teams.yaml", TEAMS), text("new.yaml", manifest)])
}

pub(crate) fn lines(report: &LintReport) -> Vec<String> {
    let line =
        |f: &kubectl_gpu::input::Finding| format!("{}:{} {} {}: {}", f.file, f.line, f.object, f.field, f.message);
    report.findings.iter().map(line).collect()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The documents of a file of `integration/bypass`, each with the message of its refusal.
fn refused_documents(file: &str) -> Vec<(String, Option<String>)> {
    let all = fs::read_to_string(repository().join("integration/bypass").join(file)).unwrap();
    let words = |document: &str| Some(document.split_once("refused-with: \"")?.1.split('"').next()?.to_owned());
    all.split("\n---").map(|d| (d.to_owned(), words(d))).collect()
}

#[test]
fn lint_reports_what_the_api_server_refuses_with_the_same_message() {
    let mut by_words: BTreeMap<String, usize> = BTreeMap::new();
    for file in ["resources.yaml", "environment.yaml", "devices.yaml", "placement.yaml", "claims.yaml"] {
        for (document, words) in refused_documents(file) {
            let words = words.unwrap_or_else(|| panic!("{file}: no words: {document}"));
            let report = check(&document);
            if words.starts_with("write at most 1 of") {
                // lint counts in thousandths, and says so where they exceed 64 bits
                let known = |text: &String| text.contains("gputenancy-tenant-pods");
                assert!(report.not_checked.iter().any(known), "{:?}", report.not_checked);
                continue;
            }
            assert!(
                report.findings.iter().any(|f| f.message.contains(&words)),
                "{words}: {:?}\n{document}",
                lines(&report)
            );
            assert!(report.findings.iter().all(|f| f.file == "new.yaml"), "{:?}", lines(&report));
            *by_words.entry(words).or_default() += 1;
        }
    }
    assert!(by_words.len() >= 14, "{by_words:?}");
    assert!(by_words.values().sum::<usize>() >= 80, "{by_words:?}");
}

#[test]
fn lint_accepts_what_the_api_server_admits() {
    let admitted = refused_documents("admitted.yaml");
    assert!(admitted.len() > 20);
    for (document, _) in admitted {
        assert_eq!(lines(&check(&document)), [""; 0], "{document}");
    }
}

#[test]
fn lint_reports_fractions_of_gpus_in_every_namespace() {
    let cron = "apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: elsewhere}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          containers:
          - name: c
            resources:
              limits:
                nvidia.com/gpu: 0.5
                nvidia.com/mig-1g.10gb: '2'
";
    let report = check(cron);
    let found = &report.findings;
    assert_eq!(found.len(), 1, "{:?}", lines(&report));
    assert_eq!((found[0].line, found[0].object.as_str()), (13, "CronJob nightly"));
    assert_eq!(found[0].field, "spec.jobTemplate.spec.template.spec.containers[0].resources.limits.nvidia.com/gpu");
    assert!(found[0].message.contains("must be an integer"));
    let open = report.not_checked.iter().any(|w| w.contains("elsewhere (1)") && w.contains("add the tenant's file"));
    assert!(open, "{:?}", report.not_checked);
}

#[test]
fn lint_reports_broken_references() {
    let manifest = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: a}
spec: {trust: Untrusted, namespaces: [{name: a}], gpus: [{profile: gone, count: 1}, {profile: unserved, count: 1}, {profile: mig-1g, count: seven}]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: b}
spec: {namespaces: [{name: b}], gpus: [{profile: gone, count: 1}, {profile: unserved, count: 1}]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: unserved}
spec: {device: {whole: {}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: narrow}
spec: {nodeSelector: {matchLabels: {a: b, c: d}}, profiles: [mig-1g, mig-9g]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: apart}
spec: {nodeSelector: {matchLabels: {a: c}}, profiles: [mig-1g]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: q, namespace: b}
spec: {hard: {limits.nvidia.com/gpu: 1, requests.nvidia.com/gpu: 1, limits.cpu: 8}}
";
    insta::assert_snapshot!(lines(&check(manifest)).join("\n"));
}

#[test]
fn lint_of_incomplete_files_has_no_false_findings() {
    let tenant = "apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: a}
spec: {namespaces: [{name: a}], gpus: [{profile: mig-1g, count: 1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: w, namespace: a}
spec: {nodeSelector: {gputenancy.io/pool: p}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}
";
    let report = lint(&[text("a.yaml", tenant)]);
    assert_eq!(lines(&report), [""; 0]);
    for words in ["no GpuProfile", "no GpuPool", "no GpuNode", "which resources tenant a may use"] {
        assert!(report.not_checked.iter().any(|w| w.contains(words)), "{words}: {:?}", report.not_checked);
    }
}

#[test]
fn lint_accepts_the_samples() {
    let samples = repository().join("samples");
    let lab = ["catalog.yaml", "pool.yaml", "tenants.yaml", "pods"].map(|f| samples.join(f));
    for paths in [Vec::from(lab), vec![samples.join("gitops")], vec![samples]] {
        let report = lint(&input::read(&paths).unwrap());
        assert_eq!(lines(&report), [""; 0], "{paths:?}");
        assert!(report.documents >= 8, "{paths:?}");
    }
}

#[test]
fn lint_exits_with_1_if_it_finds_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let run = |manifest: &str| {
        let file = folder.path().join("m.yaml");
        fs::write(&file, [TEAMS, "---\n", manifest].concat()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-gpu"))
            .args(["lint", "-n", "t"])
            .arg(&file)
            .env("KUBECONFIG", "/nonexistent")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let pod = |env: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: w}}\nspec: {{containers: [{{name: c, env: [{{name: {env}, value: x}}]}}]}}\n"
        )
    };
    let (code, out) = run(&pod("HOME"));
    assert_eq!(code, Some(0), "{out}");
    let (code, out) = run(&pod("NVIDIA_VISIBLE_DEVICES"));
    assert_eq!(code, Some(1), "{out}");
    let place =
        "m.yaml:20: Pod w: spec.containers[0].env[0].name: NVIDIA_VISIBLE_DEVICES in container c: devices and limits";
    assert!(out.contains(place) && out.contains("1 mistake found"), "{out}");
}

/// Findings of a manifest in the namespace of team t, as field and message.
fn found(manifest: &str) -> Vec<(String, String)> {
    check(manifest).findings.into_iter().map(|f| (f.field, f.message)).collect()
}

fn service(namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: {namespace}}}\nspec: {{ports: [{{port: 80}}], {spec}}}\n"
    )
}

#[test]
fn lint_reports_services_with_external_addresses_or_node_ports() {
    let outside = found(&service("t", "externalIPs: [192.0.2.1]"));
    assert_eq!((outside.len(), outside[0].0.as_str()), (1, "spec.externalIPs[0]"));
    for (spec, remedy) in [
        ("type: NodePort", "write type: ClusterIP"),
        ("type: LoadBalancer", "write allocateLoadBalancerNodePorts: false"),
    ] {
        let ports = found(&service("t", spec));
        assert_eq!((ports.len(), ports[0].0.as_str()), (1, "spec.type"), "{ports:?}");
        for words in ["exceeded quota: gputenancy", remedy, "services.nodeports in spec.resources"] {
            assert!(ports[0].1.contains(words), "{ports:?}");
        }
    }
    for spec in ["type: ClusterIP", "type: LoadBalancer, allocateLoadBalancerNodePorts: false"] {
        assert_eq!(found(&service("t", spec)), [], "{spec}");
    }
    assert_eq!(found(&service("elsewhere", "type: NodePort, externalIPs: [192.0.2.1]")), [], "no tenant's namespace");
    let some = TEAMS.replace("queues: [team-t]", "resources: {services.nodeports: '1'}");
    let one = lint(&[text("teams.yaml", &some), text("new.yaml", &service("t", "type: NodePort"))]);
    assert_eq!(lines(&one), [""; 0], "the tenant may have one");
}

#[test]
fn lint_reports_images_and_hosts_that_the_tenant_does_not_list() {
    let teams =
        TEAMS.replace("queues: [team-t]", "imageRegistries: [docker.io/library], ingressHosts: ['*.t.example.com']");
    let found = |manifest: &str| lines(&lint(&[text("teams.yaml", &teams), text("new.yaml", manifest)]));
    let pod = |image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: x, namespace: t}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    };
    let ingress = |host: &str| {
        let backend = "{service: {name: s, port: {number: 80}}}";
        let paths = format!("{{paths: [{{path: /, pathType: Prefix, backend: {backend}}}]}}");
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: x, namespace: t}}\nspec: {{rules: [{{host: {host}, http: {paths}}}]}}\n"
        )
    };
    for admitted in [pod("nginx"), pod("docker.io/library/nginx:1"), ingress("a.t.example.com")] {
        assert_eq!(found(&admitted), [""; 0], "{admitted}");
    }
    for (refused, words) in [
        (pod("ghcr.io/x/y"), "container c (ghcr.io/x/y): tenant t uses images of docker.io/library"),
        (ingress("a.b.t.example.com"), "may serve these hosts: *.t.example.com"),
    ] {
        let all = found(&refused);
        assert!(all.len() == 1 && all[0].contains(words), "{all:?}");
    }
}

#[test]
fn lint_reports_role_bindings_of_the_operator() {
    let binding = |name: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: {name}, namespace: t}}\nsubjects: []\n"
        )
    };
    let own = found(&binding("gputenancy-owners"));
    assert_eq!((own.len(), own[0].0.as_str()), (1, "metadata.name"));
    assert_eq!(found(&binding("ci")), []);
}

#[test]
fn lint_reports_profiles_without_weight_for_gpu_equivalents() {
    let capped = TEAMS.replace("queues: [team-t]", "gpuEquivalents: '1'");
    let unknown = |report: &LintReport| {
        report.findings.iter().any(|f| f.message.contains("counts against spec.gpuEquivalents is not known"))
    };
    let report = lint(&[text("teams.yaml", &capped)]);
    let open = report.not_checked.iter().any(|w| w.contains("gpuEquivalents") && w.contains("no GpuNode"));
    assert!(open && !unknown(&report), "{report:?}");
    // with boards: the snapshot's pool lists the profile of team a, and none lists mig-7g
    let fleet = fs::read_to_string(repository().join("operator/kubectl-gpu/tests/fixtures/two-teams.yaml")).unwrap();
    let tenant = |profile: &str| {
        format!(
            "apiVersion: gputenancy.io/v1alpha1\nkind: GpuTenant\nmetadata: {{name: c}}\nspec:\n  namespaces: [{{name: c}}]\n  gpuEquivalents: '1'\n  gpus:\n  - {{profile: {profile}, count: 1}}\n---\napiVersion: gputenancy.io/v1alpha1\nkind: GpuProfile\nmetadata: {{name: unlisted}}\nspec: {{device: {{mig: {{profile: 7g.80gb}}}}, support: {{expected: e, incident: i}}}}\n"
        )
    };
    let lint_tenant = |profile: &str| lint(&[text("fleet.yaml", &fleet), text("c.yaml", &tenant(profile))]);
    let wrong = lint_tenant("unlisted");
    let finding = wrong.findings.iter().find(|f| f.message.contains("counts against"));
    assert_eq!(finding.map(|f| (f.line, f.field.as_str())), Some((8, "spec.gpus[0].profile")), "{wrong:?}");
    assert!(!unknown(&lint_tenant("mig-1g")), "{:?}", lint_tenant("mig-1g"));
}

/// A deployment of team t with one container, and one before it.
fn deployment(first: &str, container: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  template:\n    spec:\n      initContainers:\n      - {{name: i, {first}}}\n      containers:\n      - {{name: c, {container}}}\n"
    )
}

/// The policies with the rule that `policies.imagePullPolicyAlways=true` adds.
fn strict() -> Policies {
    let always = "c.?imagePullPolicy.orValue('') == 'Always'";
    let rule = format!(
        "(dyn(object.spec.containers).all(c, {always}) && dyn(object.spec.?initContainers.orValue([])).all(c, {always}))"
    );
    let (first, create) = ("  validations:\n", "!(request.operation == 'CREATE' ?\n");
    assert!(DEFAULT_POLICIES.contains(first) && DEFAULT_POLICIES.contains(create));
    let message = "'imagePullPolicy of ' + variables.brought.filter(c, c.?imagePullPolicy.orValue('') != 'Always').map(c, 'container ' + \
                   c.name).join(', ') + ': write Always; an image that a node has from another team would be used without asking its registry'";
    let yaml = DEFAULT_POLICIES.replacen(create, &format!("{create}          {rule} &&\n"), 1);
    let validation =
        format!("{first}    - expression: |-\n        {rule}\n      messageExpression: |-\n        {message}\n");
    policies(&yaml.replacen(first, &validation, 1))
}

#[test]
fn lint_with_given_policies_ignores_the_default_ones() {
    let strict = strict();
    let found = |manifest: &str, policies: Option<&Policies>| {
        let texts = [text("teams.yaml", TEAMS), text("new.yaml", manifest)];
        let report = match policies {
            Some(policies) => lint::lint(&texts, Options { namespace: Some("t"), policies }),
            None => lint(&texts),
        };
        report.findings.into_iter().map(|f| (f.line, f.field, f.message)).collect::<Vec<_>>()
    };
    let always = "image: r:5000/a/b:v1, imagePullPolicy: Always";
    for lax in [
        "image: r:5000/a/b:v1",
        "image: a@sha256:0, imagePullPolicy: IfNotPresent",
        "image: a@sha256:0",
        "image: a:v1@sha256:0",
        "image: a, imagePullPolicy: Never",
        "image: a:latest, imagePullPolicy: IfNotPresent",
    ] {
        let manifest = deployment(always, lax);
        assert_eq!(found(&manifest, None), [], "not in the default policies: {lax}");
        let [(line, field, message)] = &found(&manifest, Some(&strict))[..] else { panic!("{lax}") };
        assert_eq!((*line, field.as_str()), (10, "spec.template.spec.containers[0]"), "{lax}");
        assert!(message.starts_with("imagePullPolicy of container c: write Always"), "{message}");
        let [(line, field, message)] = &found(&deployment(lax, always), Some(&strict))[..] else { panic!("{lax}") };
        assert_eq!((*line, field.as_str()), (8, "spec.template.spec.initContainers[0]"), "{lax}");
        assert!(message.contains("container i"), "{message}");
        let elsewhere = manifest.replace("{name: d}", "{name: d, namespace: elsewhere}");
        assert_eq!(found(&elsewhere, Some(&strict)), [], "no tenant's namespace");
    }
    // the API server sets Always for these
    for fine in [always, "image: r:5000/a/b", "image: a:latest", "image: a:latest@sha256:0"] {
        assert_eq!(found(&deployment(fine, fine), Some(&strict)), [], "{fine}");
    }
}

#[test]
fn lint_reports_policies_that_depend_on_the_user_as_not_checked() {
    let namespace =
        |labels: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: ns, labels: {{{labels}}}}}\n");
    let labelled = check(&namespace("gputenancy.io/tenant: t"));
    assert_eq!(lines(&labelled), [""; 0]);
    let [open] = &labelled.not_checked.iter().filter(|n| n.contains("admission policy")).collect::<Vec<_>>()[..] else {
        panic!("{:?}", labelled.not_checked)
    };
    assert!(open.contains("gputenancy-tenant-namespaces") && open.contains("Namespace ns"), "{open}");
    assert!(open.ends_with(": it depends on the rights of the user"), "{open}");
    assert!(!check(&namespace("team: t")).not_checked.iter().any(|n| n.contains("admission policy")));
}

#[test]
fn lint_reports_each_mistake_of_a_rule_in_its_place() {
    let env = |name: &str| format!("image: i, env: [{{name: HOME, value: x}}, {{name: {name}, value: x}}]");
    let found = found(&deployment(&env("CUDA_MPS_PIPE_DIRECTORY"), &env("NVIDIA_VISIBLE_DEVICES")));
    let expected = [
        (
            "spec.template.spec.initContainers[0].env[1].name",
            "CUDA_MPS_PIPE_DIRECTORY in container i: devices and limits",
        ),
        ("spec.template.spec.containers[0].env[1].name", "NVIDIA_VISIBLE_DEVICES in container c"),
    ];
    assert_eq!(found.len(), 2, "{found:?}");
    for ((field, message), (place, words)) in found.iter().zip(expected) {
        assert!(field == place && message.contains(words), "{found:?}");
    }
}

#[test]
fn policies_refuse_the_variables_of_the_admission_module() {
    use gputenancy_crds::admission::{
        CAPABILITIES_VARIABLE, DEVICE_VARIABLES, LIMIT_VARIABLE_PREFIXES, PRELOAD_VARIABLES,
    };
    let list = |names: &[&str]| names.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
    let prefixes = LIMIT_VARIABLE_PREFIXES.iter().map(|p| format!("e.name.startsWith('{p}')")).collect::<Vec<_>>();
    let (visible, others) = DEVICE_VARIABLES.split_first().unwrap();
    let unless_void = format!("(e.name == '{visible}' && e.?value.orValue('') != 'void')");
    for expression in [
        format!("filter(e, {unless_void} || e.name in [{}] || {})", list(others), prefixes.join(" || ")),
        format!("filter(e, e.name in [{}])", list(PRELOAD_VARIABLES)),
        format!("e.name != '{CAPABILITIES_VARIABLE}' ||"),
    ] {
        assert!(DEFAULT_POLICIES.contains(&expression), "{expression}");
    }
}

#[test]
fn policies_and_rust_agree_on_what_a_gpu_resource_is() {
    let mut found = BTreeMap::from([(false, 0), (true, 0)]);
    for resource in [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/foo",
        "gputenancy.io/small",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        "deviceclass.resource.kubernetes.io/gpu.example.com",
        "example.com/nvidia.com",
        "requests.nvidia.com/gpu",
        "amd.com/gpu",
        "cpu",
    ] {
        let tolerations = "tolerations: [{key: nvidia.com/gpu, operator: Exists}]";
        let container = format!("{{name: c, image: i, resources: {{limits: {{{resource}: 1}}}}}}");
        let spec = format!("{{{tolerations}, containers: [{container}]}}");
        let report = check(&format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: w}}\nspec: {spec}\n"));
        // taints of GPUs are tolerated only by pods that ask for a GPU
        let refused = lines(&report).iter().any(|line| line.contains("may not be tolerated by this pod"));
        assert_eq!(!refused, gputenancy_crds::names::is_gpu_resource(resource), "{resource}: {:?}", lines(&report));
        *found.get_mut(&!refused).unwrap() += 1;
    }
    assert_eq!(found, [(false, 5), (true, 6)].into());
}
