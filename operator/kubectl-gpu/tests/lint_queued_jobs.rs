//! `lint` of Jobs in a queue: the queue and the priority that they name, and native gangs.

use kubectl_gpu::{
    input::Text,
    lint::{self, DEFAULT_POLICIES, Options, Policies},
};

/// A pool with queues, and a team in it.
const TEAM: &str = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: train}
spec: {device: {mig: {profile: 3g.40gb}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: training}
spec: {nodeSelector: {matchLabels: {a: b}}, profiles: [train], queueing: {system: Kueue}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: t}
spec:
  namespaces: [{name: t}]
  gpus: [{profile: train, count: 2}]
  priorityClasses: [production]
";

/// Findings about a team's file and another one, as object, field and message.
fn found(team: &str, text: &str) -> Vec<(String, String, String)> {
    let file = |(name, text): (&str, &str)| Text { name: name.into(), text: text.into() };
    let policies = Policies::read(&[file(("policies.yaml", DEFAULT_POLICIES))]).unwrap();
    let texts = [("team.yaml", team), ("job.yaml", text)].map(file);
    let report = lint::lint(&texts, Options { namespace: Some("t"), policies: &policies });
    report.findings.into_iter().map(|f| (f.object, f.field, f.message)).collect()
}

/// A Job with these labels and fields of its pods.
fn job(labels: &str, pod: &str) -> String {
    let container = "{name: c, image: i, resources: {limits: {nvidia.com/mig-3g.40gb: 1}}}";
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j, labels: {{{labels}}}}}\n\
         spec: {{template: {{spec: {{{pod}containers: [{container}]}}}}}}\n"
    )
}

#[test]
fn lint_accepts_the_queue_and_the_classes_of_the_team() {
    for labels in ["", "kueue.x-k8s.io/queue-name: default", "kueue.x-k8s.io/priority-class: production"] {
        assert_eq!(found(TEAM, &job(labels, "")), [], "{labels}");
    }
}

#[test]
fn lint_reports_a_foreign_queue_and_a_class_that_is_not_granted() {
    let cases = [
        ("queue-name: theirs", "theirs is not the queue of tenant t: write default, or leave it out"),
        ("priority-class: urgent", "urgent is not granted; Jobs of tenant t may have these priorities: production"),
    ];
    for (label, words) in cases {
        let labels = format!("kueue.x-k8s.io/{label}");
        let all = found(TEAM, &job(&labels, ""));
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].0 == "Job j" && all[0].1.contains("kueue.x-k8s.io/") && all[0].2.contains(words), "{all:?}");
    }
    let ungranted = TEAM.replace("  priorityClasses: [production]\n", "");
    let all = found(&ungranted, &job("kueue.x-k8s.io/priority-class: production", ""));
    assert!(all.len() == 1 && all[0].2.contains("may have these priorities: none"), "{all:?}");
    // without a queue nothing reads the labels
    let quotas = TEAM.replace(", queueing: {system: Kueue}", "");
    assert_eq!(found(&quotas, &job("kueue.x-k8s.io/queue-name: theirs", "")), []);
}

#[test]
fn lint_reports_native_gangs_of_jobs_in_a_queue() {
    let group = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: {}\n";
    let all = found(TEAM, group);
    assert!(all.iter().any(|f| f.1 == "kind" && f.2.contains("native gangs")), "{all:?}");
    let all = found(TEAM, &job("", "schedulingGroup: {podGroupName: g}, "));
    assert!(all.iter().any(|f| f.1.ends_with("schedulingGroup") && f.2.contains("native gangs")), "{all:?}");
}
