//! Manifests checked without a cluster: every mistake with its place, and nothing said of what is right.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics says what it found"
)]

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use kubectl_gpu::{
    input::{self, Text},
    lint::{Assumed, LintReport, lint},
};

/// The teams of the manifests in `integration/bypass`, as the end-to-end tests make them.
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

fn text(name: &str, text: &str) -> Text {
    Text { name: name.into(), text: text.into() }
}

/// Workloads that name no namespace are in that of team t.
const T: Assumed<'static> = Assumed { namespace: Some("t"), image_pull_policy_always: false };

fn check(manifest: &str) -> LintReport {
    lint(&[text("teams.yaml", TEAMS), text("new.yaml", manifest)], T)
}

fn said(report: &LintReport) -> Vec<String> {
    let line =
        |f: &kubectl_gpu::lint::Finding| format!("{}:{} {} {}: {}", f.file, f.line, f.object, f.field, f.message);
    report.findings.iter().map(line).collect()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The documents of a file of `integration/bypass`, each with the words that the API server refuses it with.
fn tried(file: &str) -> Vec<(String, Option<String>)> {
    let all = fs::read_to_string(repository().join("integration/bypass").join(file)).unwrap();
    let words = |document: &str| Some(document.split_once("refused-with: \"")?.1.split('"').next()?.to_owned());
    all.split("\n---").map(|d| (d.to_owned(), words(d))).collect()
}

#[test]
fn what_the_api_server_refuses_in_the_tests_is_found_with_the_same_words() {
    let mut by_words: BTreeMap<String, usize> = BTreeMap::new();
    for file in ["resources.yaml", "environment.yaml", "devices.yaml", "placement.yaml", "claims.yaml"] {
        for (document, words) in tried(file) {
            let words = words.unwrap_or_else(|| panic!("{file}: no words: {document}"));
            // an ephemeral container comes later, and not by a manifest
            let report = check(&document);
            assert!(
                report.findings.iter().any(|f| f.message.contains(&words)),
                "{words}: {:?}\n{document}",
                said(&report)
            );
            assert!(report.findings.iter().all(|f| f.file == "new.yaml"), "{:?}", said(&report));
            *by_words.entry(words).or_default() += 1;
        }
    }
    assert!(by_words.len() >= 14, "{by_words:?}");
    assert!(by_words.values().sum::<usize>() >= 80, "{by_words:?}");
}

#[test]
fn what_the_api_server_admits_in_the_tests_is_let_pass() {
    let admitted = tried("admitted.yaml");
    assert!(admitted.len() > 20);
    for (document, _) in admitted {
        assert_eq!(said(&check(&document)), [""; 0], "{document}");
    }
}

#[test]
fn a_fraction_is_found_in_every_namespace_and_names_field_and_line() {
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
    assert_eq!(found.len(), 1, "{:?}", said(&report));
    assert_eq!((found[0].line, found[0].object.as_str()), (13, "CronJob nightly"));
    assert_eq!(found[0].field, "spec.jobTemplate.spec.template.spec.containers[0].resources.limits.nvidia.com/gpu");
    assert!(found[0].message.contains("must be an integer"));
    let open = report.not_checked.iter().any(|w| w.contains("elsewhere (1)") && w.contains("add the tenant's file"));
    assert!(open, "{:?}", report.not_checked);
}

#[test]
fn objects_are_held_to_each_other() {
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
    insta::assert_snapshot!(said(&check(manifest)).join("\n"));
}

#[test]
fn files_that_say_too_little_lead_to_fewer_questions_and_not_to_false_answers() {
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
    let report = lint(&[text("a.yaml", tenant)], Assumed::default());
    assert_eq!(said(&report), [""; 0]);
    for words in ["no GpuProfile", "no GpuPool", "no GpuNode", "which resources tenant a may use", "CEL"] {
        assert!(report.not_checked.iter().any(|w| w.contains(words)), "{words}: {:?}", report.not_checked);
    }
}

#[test]
fn our_own_samples_pass() {
    let samples = repository().join("samples");
    let lab = ["catalog.yaml", "pool.yaml", "tenants.yaml", "pods"].map(|f| samples.join(f));
    for paths in [Vec::from(lab), vec![samples.join("gitops")]] {
        let report = lint(&input::read(&paths).unwrap(), Assumed::default());
        assert_eq!(said(&report), [""; 0], "{paths:?}");
        assert!(report.documents >= 8, "{paths:?}");
    }
}

#[test]
fn the_exit_code_tells_whether_something_was_found() {
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
    let place = "m.yaml:20: Pod w: spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES: devices and limits";
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
fn services_that_reach_out_of_the_teams_namespaces_are_found_with_the_policys_words() {
    let outside = found(&service("t", "externalIPs: [192.0.2.1]"));
    assert_eq!((outside.len(), outside[0].0.as_str()), (1, "spec.externalIPs"));
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
    let one = lint(&[text("teams.yaml", &some), text("new.yaml", &service("t", "type: NodePort"))], T);
    assert_eq!(said(&one), [""; 0], "the tenant may have one");
}

#[test]
fn the_operators_role_bindings_are_not_for_manifests_and_others_are() {
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
fn what_is_said_of_services_and_role_bindings_is_what_the_chart_says() {
    let chart = fs::read_to_string(repository().join("helm/gputenancy/templates/tenant-policies.yaml")).unwrap();
    let chart = chart.split_whitespace().collect::<Vec<_>>().join(" ");
    let binding = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: gputenancy-viewers, namespace: t}\n";
    for manifest in [&service("t", "externalIPs: [192.0.2.1]"), binding] {
        let message = &found(manifest)[0].1;
        assert!(chart.contains(message), "{message}");
    }
}

#[test]
fn a_cap_in_whole_gpus_asks_for_boards_that_carry_each_profile() {
    let capped = TEAMS.replace("queues: [team-t]", "gpuEquivalents: '1'");
    let unknown = |report: &LintReport| {
        report.findings.iter().any(|f| f.message.contains("counts against spec.gpuEquivalents is not known"))
    };
    let report = lint(&[text("teams.yaml", &capped)], T);
    let open = report.not_checked.iter().any(|w| w.contains("gpuEquivalents") && w.contains("no GpuNode"));
    assert!(open && !unknown(&report), "{report:?}");
    // with boards: the snapshot's pool lists the profile of team a, and none lists mig-7g
    let fleet = fs::read_to_string(repository().join("kubectl-gpu/tests/fixtures/two-teams.yaml")).unwrap();
    let tenant = |profile: &str| {
        format!(
            "apiVersion: gputenancy.io/v1alpha1\nkind: GpuTenant\nmetadata: {{name: c}}\nspec:\n  namespaces: [{{name: c}}]\n  gpuEquivalents: '1'\n  gpus:\n  - {{profile: {profile}, count: 1}}\n---\napiVersion: gputenancy.io/v1alpha1\nkind: GpuProfile\nmetadata: {{name: unlisted}}\nspec: {{device: {{mig: {{profile: 7g.80gb}}}}, support: {{expected: e, incident: i}}}}\n"
        )
    };
    let told = |profile: &str| lint(&[text("fleet.yaml", &fleet), text("c.yaml", &tenant(profile))], T);
    let wrong = told("unlisted");
    let finding = wrong.findings.iter().find(|f| f.message.contains("counts against"));
    assert_eq!(finding.map(|f| (f.line, f.field.as_str())), Some((8, "spec.gpus[0].profile")), "{wrong:?}");
    assert!(!unknown(&told("mig-1g")), "{:?}", told("mig-1g"));
}

/// A deployment of team t with one container, and one before it.
fn deployment(first: &str, container: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  template:\n    spec:\n      initContainers:\n      - {{name: i, {first}}}\n      containers:\n      - {{name: c, {container}}}\n"
    )
}

#[test]
fn an_image_that_its_registry_is_not_asked_for_is_found_where_the_platform_refuses_it_and_nowhere_else() {
    let strict = Assumed { image_pull_policy_always: true, ..T };
    let found = |manifest: &str, assumed| {
        let report = lint(&[text("teams.yaml", TEAMS), text("new.yaml", manifest)], assumed);
        let of = |f: &kubectl_gpu::lint::Finding| (f.line, f.field.clone(), f.message.clone());
        report.findings.iter().map(of).collect::<Vec<_>>()
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
        assert_eq!(found(&manifest, T), [], "off by default: {lax}");
        let [(line, field, message)] = &found(&manifest, strict)[..] else { panic!("{lax}") };
        assert_eq!((*line, field.as_str()), (10, "spec.template.spec.containers[0].imagePullPolicy"), "{lax}");
        assert!(message.starts_with("imagePullPolicy of container c: write Always"), "{message}");
        let [(line, field, message)] = &found(&deployment(lax, always), strict)[..] else { panic!("{lax}") };
        assert_eq!((*line, field.as_str()), (8, "spec.template.spec.initContainers[0].imagePullPolicy"), "{lax}");
        assert!(message.contains("container i"), "{message}");
        let elsewhere = manifest.replace("{name: d}", "{name: d, namespace: elsewhere}");
        assert_eq!(found(&elsewhere, strict), [], "no tenant's namespace");
    }
    // the API server writes Always into these
    for fine in [always, "image: r:5000/a/b", "image: a:latest", "image: a:latest@sha256:0"] {
        assert_eq!(found(&deployment(fine, fine), strict), [], "{fine}");
    }
}

#[test]
fn what_is_said_of_images_is_what_the_chart_says() {
    let templates = fs::read_dir(repository().join("helm/gputenancy/templates")).unwrap();
    let chart: String = templates.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    for words in [
        "'imagePullPolicy of '",
        "'container ' + c.name",
        "': write Always; an image that a node has from another team would be used without asking its registry'",
    ] {
        assert!(chart.contains(words), "{words}");
    }
}
