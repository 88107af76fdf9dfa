//! `lint` of shares: acknowledgement, limits, decimals, gangs, and workloads that would be left with shares.

use std::{fs, path::Path};

use kubectl_gpu::{
    input::Text,
    lint::{self, DEFAULT_POLICIES, Options, Policies},
};

/// A catalog of whole GPUs and shares, and a team that may use all of it.
const TEAM: &str = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: gpu}
spec: {device: {whole: {}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: shared-4}
spec: {device: {timeSlice: {replicas: 4}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: half}
spec: {device: {fraction: {memory: 30Gi, compute: 50}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: p}
spec: {nodeSelector: {matchLabels: {a: b}}, profiles: [gpu, shared-4, half]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: t}
spec:
  trust: Internal
  sharing: {acknowledgedBy: lead@example.com}
  namespaces: [{name: t}]
  gpus: [{profile: gpu, count: 2}, {profile: shared-4, count: 4}]
";

/// Findings of files, as object, field and message.
fn found(files: &[&str]) -> Vec<(String, String, String)> {
    let text = |(number, text): (usize, &&str)| Text { name: format!("{number}.yaml"), text: (*text).into() };
    let policies = Policies::read(&[Text { name: "policies.yaml".into(), text: DEFAULT_POLICIES.into() }]).unwrap();
    let texts: Vec<Text> = files.iter().enumerate().map(text).collect();
    let report = lint::lint(&texts, Options { namespace: Some("t"), policies: &policies });
    report.findings.into_iter().map(|f| (f.object, f.field, f.message)).collect()
}

/// A pod with these labels or annotations and these limits of its containers.
fn pod(metadata: &str, containers: &[&str]) -> String {
    let container = |(number, limits): (usize, &&str)| {
        format!("{{name: c{number}, image: i, resources: {{limits: {{{limits}}}}}}}")
    };
    let containers: Vec<String> = containers.iter().enumerate().map(container).collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: w{metadata}}}\nspec: {{containers: [{}]}}\n",
        containers.join(", ")
    )
}

fn one(found: &[(String, String, String)]) -> &(String, String, String) {
    let [one] = found else { panic!("one finding is expected: {found:#?}") };
    one
}

#[test]
fn lint_reports_a_share_that_is_not_acknowledged() {
    assert_eq!(found(&[TEAM]), []);
    let silent = TEAM.replace("  sharing: {acknowledgedBy: lead@example.com}\n", "");
    let share = pod("", &["nvidia.com/gpu.shared: 1"]);
    let all = found(&[&silent, &share]);
    let [(tenant, field, message), (_, limit, refusal)] = &all[..] else { panic!("{all:#?}") };
    assert_eq!((tenant.as_str(), field.as_str()), ("GpuTenant t", "spec.gpus[1].profile"));
    for words in [
        "tenant t may not use profile shared-4",
        "spec.sharing.acknowledgedBy of GpuTenant t",
        "can bypass its limit of memory",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(limit, "spec.containers[0].resources.limits.nvidia.com/gpu.shared");
    assert!(refusal.contains("this namespace may use: nvidia.com/gpu"), "{refusal}");
    assert_eq!(found(&[TEAM, &share]), []);
}

#[test]
fn lint_reports_replicas_above_their_limit_and_a_limit_without_evidence() {
    let with = |replicas: i32, sharing: &str| {
        let device = format!("{{timeSlice: {{replicas: {replicas}}}}}, {sharing}");
        found(&[&TEAM.replace("{timeSlice: {replicas: 4}},", &device)]).into_iter().map(|f| f.2).collect::<Vec<_>>()
    };
    let evidence = "evidence: {p99Milliseconds: 40, memoryHeadroomPercent: 20, measuredAt: '2026-11-24'}";
    assert_eq!(with(8, ""), [""; 0]);
    assert_eq!(with(12, &format!("sharing: {{maxReplicas: 12, {evidence}}},")), [""; 0]);
    assert_eq!(with(12, "sharing: {maxReplicas: 12, reason: notebooks of a course},"), [""; 0]);
    for (replicas, sharing, words) in [
        (9, "", "raise spec.sharing.maxReplicas with spec.sharing.evidence or spec.sharing.reason"),
        (5, "sharing: {maxReplicas: 4},", "replicas are more than spec.sharing.maxReplicas"),
        (
            12,
            "sharing: {maxReplicas: 12},",
            "write spec.sharing.evidence {p99Milliseconds, memoryHeadroomPercent, measuredAt}",
        ),
    ] {
        let messages = with(replicas, sharing);
        assert!(messages.iter().any(|m| m.contains(words)), "{replicas} {sharing}: {messages:?}");
    }
}

#[test]
fn lint_names_the_share_that_fits_a_decimal() {
    for (amount, remedy) in [
        // of the tenant's own profiles
        ("0.1", "write nvidia.com/gpu.shared: 1, the share of GpuProfile shared-4 (25.0 % of a GPU)"),
        ("250m", "write nvidia.com/gpu.shared: 1, the share of GpuProfile shared-4 (25.0 % of a GPU)"),
        // of the catalog
        (
            "0.5",
            "write gputenancy.io/half: 1, the share of GpuProfile half (50.0 % of a GPU); list it in spec.gpus of GpuTenant t first",
        ),
        ("0.75", "a part of a GPU is a profile of its own"),
        ("1.5", "a part of a GPU is a profile of its own"),
    ] {
        let all = found(&[TEAM, &pod("", &[&format!("nvidia.com/gpu: {amount}")])]);
        let (_, field, message) = all.iter().find(|f| f.2.contains("must be an integer")).unwrap();
        assert_eq!(field, "spec.containers[0].resources.limits.nvidia.com/gpu", "{amount}");
        assert!(
            message.contains("must be an integer; ") && message.ends_with(remedy) || message.contains(remedy),
            "{message}"
        );
    }
}

#[test]
fn lint_refuses_a_pod_with_more_than_one_share() {
    let both =
        TEAM.replace("{profile: shared-4, count: 4}", "{profile: shared-4, count: 4}, {profile: half, count: 1}");
    for containers in [
        &["nvidia.com/gpu.shared: 2"][..],
        &["nvidia.com/gpu.shared: 1", "nvidia.com/gpu.shared: 1"],
        &["nvidia.com/gpu.shared: 1", "gputenancy.io/half: 1"],
        &["nvidia.com/gpu.shared: 1", "nvidia.com/gpu: 1"],
    ] {
        let all = found(&[&both, &pod("", containers)]);
        let refused = all.iter().find(|f| f.2.contains("a pod with a share of a GPU has one device in one container"));
        let (.., message) = refused.unwrap_or_else(|| panic!("{containers:?}: {all:#?}"));
        assert!(message.contains("use an exclusive profile: gpu (resource nvidia.com/gpu)"), "{message}");
    }
    for containers in
        [&["nvidia.com/gpu.shared: 1", ""][..], &["nvidia.com/gpu: 2"], &["nvidia.com/gpu: 1", "nvidia.com/gpu: 1"]]
    {
        assert_eq!(found(&[&both, &pod("", containers)]), [], "{containers:?}");
    }
}

#[test]
fn lint_refuses_gangs_on_shares_and_names_an_exclusive_profile() {
    let gangs = [
        ", labels: {training.kubeflow.org/job-name: j}",
        ", labels: {volcano.sh/job-name: j}",
        ", annotations: {scheduling.k8s.io/group-name: g}",
        ", labels: {kueue.x-k8s.io/pod-group-name: g}",
        ", labels: {scheduling.x-k8s.io/pod-group: g}",
    ];
    for gang in gangs {
        let all = found(&[TEAM, &pod(gang, &["nvidia.com/gpu.shared: 1"])]);
        let (_, field, message) = one(&all);
        assert!(field.starts_with("metadata.") || field.starts_with("spec.containers"), "{field}");
        assert!(message.contains("the pods of a gang wait for each other"), "{message}");
        assert!(message.contains("use an exclusive profile: gpu (resource nvidia.com/gpu)"), "{message}");
        assert_eq!(found(&[TEAM, &pod(gang, &["nvidia.com/gpu: 1"])]), [], "{gang} on a whole GPU");
    }
}

/// A Job, a `CronJob` or a `JobSet` whose pods ask for this resource.
fn job(kind: &str, numbers: &str, resource: &str) -> String {
    let template = format!(
        "template: {{spec: {{containers: [{{name: c, image: i, resources: {{limits: {{{resource}: 1}}}}}}]}}}}"
    );
    let (version, spec) = match kind {
        "Job" => ("batch/v1", format!("{{{numbers}, {template}}}")),
        "CronJob" => ("batch/v1", format!("{{jobTemplate: {{spec: {{{numbers}, {template}}}}}}}")),
        _ => (
            "jobset.x-k8s.io/v1alpha2",
            format!("{{replicatedJobs: [{{name: w, {numbers}, template: {{spec: {{{template}}}}}}}]}}"),
        ),
    };
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: j}}\nspec: {spec}\n")
}

#[test]
fn lint_refuses_parallel_jobs_on_shares() {
    let (shared, whole) = ("nvidia.com/gpu.shared", "nvidia.com/gpu");
    for (kind, numbers) in [
        ("Job", "parallelism: 2"),
        ("Job", "parallelism: 4, completions: 4"),
        ("CronJob", "parallelism: 2, completions: 8"),
        ("JobSet", "replicas: 2"),
    ] {
        let all = found(&[TEAM, &job(kind, numbers, shared)]);
        let (object, _, message) = one(&all);
        assert_eq!(object, &format!("{kind} j"));
        assert!(message.contains("may not use a share of a GPU (nvidia.com/gpu.shared)"), "{message}");
        assert!(message.contains("use an exclusive profile: gpu (resource nvidia.com/gpu)"), "{message}");
        assert_eq!(found(&[TEAM, &job(kind, numbers, whole)]), [], "{kind} {numbers} on whole GPUs");
    }
    for (kind, numbers) in [
        ("Job", "parallelism: 1, completions: 8"),
        ("Job", "parallelism: 4, completions: 1"),
        ("JobSet", "replicas: 1"),
    ] {
        assert_eq!(found(&[TEAM, &job(kind, numbers, shared)]), [], "{kind} {numbers}: one pod at a time");
    }
}

#[test]
fn lint_reports_annotations_of_fractions() {
    for annotation in ["gpu-fraction: '0.5'", "gpu-memory: '4096'"] {
        let all = found(&[TEAM, &pod(&format!(", annotations: {{{annotation}}}"), &[""])]);
        let (_, field, message) = one(&all);
        assert!(field.starts_with("metadata.annotations."), "{field}");
        assert!(
            message.contains("a resource of the grant, in whole numbers: nvidia.com/gpu, nvidia.com/gpu.shared"),
            "{message}"
        );
    }
}

#[test]
fn lint_accepts_annotations_of_the_size_of_a_granted_fraction() {
    let team = TEAM.replace("count: 4}]", "count: 4}, {profile: half, count: 2}]");
    let annotated = |annotation: &str| found(&[&team, &pod(&format!(", annotations: {{{annotation}}}"), &[""])]);
    for annotation in ["gpu-fraction: '0.5'", "gpu-memory: '30720'"] {
        assert_eq!(annotated(annotation), [], "{annotation}");
    }
    for annotation in ["gpu-fraction: '0.3'", "gpu-memory: '30Gi'"] {
        let all = annotated(annotation);
        let (_, _, message) = one(&all);
        let sizes = "in a pod that requests no GPU otherwise, write one annotation that fits exactly one profile: gpu-fraction: \"0.5\" or gpu-memory: \"30720\" (gputenancy.io/half)";
        assert!(message.contains(sizes), "{message}");
    }
    let device = found(&[&team, &pod(", annotations: {gpu-fraction: '0.5'}", &["nvidia.com/gpu: 1"])]);
    assert!(one(&device).2.contains("are not counted by quotas"), "{device:?}");
}

#[test]
fn lint_accepts_the_samples_of_shares() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("samples/sharing");
    let files = [
        ("time-slicing.yaml", 8),
        ("fractions.yaml", 4),
        ("burst.yaml", 4),
        ("nvidia-plugin.yaml", 2),
        ("mig-slices.yaml", 3),
        ("mps.yaml", 4),
        ("../../docs/sharing/single-strategy.yaml", 2),
    ];
    for (file, documents) in files {
        let text = fs::read_to_string(samples.join(file)).unwrap();
        assert_eq!(text.matches("\nkind: ").count(), documents, "{file}");
        assert_eq!(found(&[&text]), [], "{file}");
    }
}

#[test]
fn lint_lists_each_workload_that_would_be_left_with_shares() {
    let deployment = |name: &str, resource: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec: {{template: {{spec: {{containers: [{{name: c, image: i, resources: {{limits: {{{resource}: 1}}}}}}]}}}}}}\n"
        )
    };
    let workloads = ["a", "b"].map(|name| deployment(name, "nvidia.com/gpu"));
    let other = deployment("c", "nvidia.com/gpu.shared");
    let running = "
apiVersion: gputenancy.io/v1alpha1
kind: PlanSnapshot
items:
- apiVersion: v1
  kind: Pod
  metadata:
    name: d-1
    namespace: t
    ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: d, uid: u, controller: true}]
  spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]}
";
    let change = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: p}
spec: {nodeSelector: {matchLabels: {a: b}}, profiles: [shared-4, half]}
";
    let files = [TEAM, &workloads[0], &workloads[1], &other, running];
    assert_eq!(found(&files), [], "the pool offers whole GPUs");
    let all = found(&[&files[..], &[change]].concat());
    let left: Vec<_> = all.iter().filter(|f| f.2.contains("which no GpuPool among the files offers")).collect();
    let objects: Vec<(&str, &str)> = left.iter().map(|f| (f.0.as_str(), f.1.as_str())).collect();
    let limit = "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu";
    assert_eq!(objects, [("Deployment a", limit), ("Deployment b", limit), ("GpuPool p", "spec.profiles")], "{all:#?}");
    assert!(left[2].2.starts_with("ReplicaSet t/d requests nvidia.com/gpu"), "{left:?}");
    assert!(left.iter().all(|f| f.2.contains("nvidia.com/gpu.shared (profile shared-4)")), "{left:?}");
    // the budget, too, names a profile that no pool offers
    assert_eq!(all.len(), 4, "{all:#?}");
}
