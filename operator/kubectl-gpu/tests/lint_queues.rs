//! `lint` of queues: fields without an effect, pools with different systems, and pods that belong to no Job.

use std::{fs, path::Path};

use kubectl_gpu::{
    input::Text,
    lint::{self, DEFAULT_POLICIES, Options, Policies},
};

/// A pool with queues, one without, and a team that borrows and lends in the former.
const TEAM: &str = "
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: train}
spec: {device: {mig: {profile: 3g.40gb}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: serve}
spec: {device: {mig: {profile: 1g.10gb}}, support: {expected: e, incident: i}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: training}
spec: {nodeSelector: {matchLabels: {a: b}}, profiles: [train], queueing: {system: Kueue}}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuPool
metadata: {name: serving}
spec: {nodeSelector: {matchLabels: {a: c}}, profiles: [serve]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: t}
spec:
  namespaces: [{name: t}]
  gpus: [{profile: train, count: 2, borrow: 3, lend: 1}, {profile: serve, count: 2}]
";
const TRAIN: &str = "nvidia.com/mig-3g.40gb";
const SERVE: &str = "nvidia.com/mig-1g.10gb";

/// Findings of files, as object, field and message.
fn found(files: &[&str]) -> Vec<(String, String, String)> {
    let text = |(number, text): (usize, &&str)| Text { name: format!("{number}.yaml"), text: (*text).into() };
    let policies = Policies::read(&[Text { name: "policies.yaml".into(), text: DEFAULT_POLICIES.into() }]).unwrap();
    let texts: Vec<Text> = files.iter().enumerate().map(text).collect();
    let report = lint::lint(&texts, Options { namespace: Some("t"), policies: &policies });
    report.findings.into_iter().map(|f| (f.object, f.field, f.message)).collect()
}

/// Object and field of findings.
fn places(found: &[(String, String, String)]) -> Vec<(&str, &str)> {
    found.iter().map(|(object, field, _)| (object.as_str(), field.as_str())).collect()
}

/// An object with pods that ask for one device of a resource.
fn workload(version: &str, kind: &str, resource: &str) -> String {
    let pod = format!("{{containers: [{{name: c, image: i, resources: {{limits: {{{resource}: 1}}}}}}]}}");
    let template = format!("template: {{spec: {pod}}}");
    let spec = match kind {
        "Pod" => pod,
        "CronJob" => format!("{{jobTemplate: {{spec: {{{template}}}}}}}"),
        _ => format!("{{{template}}}"),
    };
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: w}}\nspec: {spec}\n")
}

#[test]
fn lint_accepts_borrow_and_lend_in_a_pool_with_a_queueing_system() {
    assert_eq!(found(&[TEAM]), []);
}

#[test]
fn lint_reports_borrow_and_lend_where_no_pool_has_a_queueing_system() {
    let quotas = TEAM.replace(", queueing: {system: Kueue}", "");
    let all = found(&[&quotas]);
    assert_eq!(places(&all), [("GpuTenant t", "spec.gpus[0].borrow"), ("GpuTenant t", "spec.gpus[0].lend")]);
    for ((.., message), field) in all.iter().zip(["borrow", "lend"]) {
        for words in [
            format!(
                "{field} has no effect, because no GpuPool among the files offers profile train with a queueing system"
            ),
            format!("write spec.queueing.system: Kueue in the pools that offer it, or leave {field} out"),
        ] {
            assert!(message.contains(&words), "{words}: {message}");
        }
    }
    let only_borrows = quotas.replace("count: 2, borrow: 3, lend: 1", "count: 0, borrow: 3");
    let unserved = only_borrows.replace("profiles: [train]", "profiles: [serve]");
    for files in [&only_borrows, &unserved] {
        assert_eq!(places(&found(&[files])), [("GpuTenant t", "spec.gpus[0].borrow")], "{files}");
    }
    // a team's file alone does not show which pools there are
    let (_, team) = TEAM.rsplit_once("---").unwrap();
    assert_eq!(found(&[team]), []);
}

#[test]
fn lint_reports_pools_with_different_systems_for_one_profile() {
    let mixed = TEAM.replace("profiles: [serve]", "profiles: [serve, train]");
    let all = found(&[&mixed]);
    assert_eq!(places(&all), [("GpuPool serving", "spec.queueing.system")]);
    let words =
        "train is also offered by pool training with spec.queueing.system: Kueue, so that jobs for train have no queue";
    assert!(all[0].2.starts_with(words), "{all:?}");
    // without a queue pods of every kind are admitted
    assert_eq!(places(&found(&[&mixed, &workload("apps/v1", "Deployment", TRAIN)])), places(&all));
    let named = "
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuProfile
metadata: {name: other}
spec: {device: {mig: {profile: 3g.40gb}}, resourceName: gputenancy.io/other, support: {expected: e, incident: i}}
";
    let apart = TEAM.replace("profiles: [serve]", "profiles: [serve, other]");
    assert_eq!(found(&[&apart, named]), [], "the same instance with a resource of its own");
}

#[test]
fn lint_reports_borrow_and_lend_of_a_tenant_with_a_virtual_cluster() {
    let virtual_cluster = TEAM.replace("  namespaces:", "  virtualCluster: {version: 0.36.1}\n  namespaces:");
    let all = found(&[&virtual_cluster]);
    assert_eq!(places(&all), [("GpuTenant t", "spec.gpus[0].borrow"), ("GpuTenant t", "spec.gpus[0].lend")]);
    let words = "because a tenant with spec.virtualCluster has no queue";
    assert!(all.iter().all(|(.., message)| message.contains(words)), "{all:?}");
}

#[test]
fn lint_reports_pods_of_no_job_that_request_a_resource_with_a_queue() {
    for (version, kind, prefix) in [
        ("v1", "Pod", "spec"),
        ("apps/v1", "Deployment", "spec.template.spec"),
        ("apps/v1", "StatefulSet", "spec.template.spec"),
        ("apps/v1", "ReplicaSet", "spec.template.spec"),
    ] {
        let all = found(&[TEAM, &workload(version, kind, TRAIN)]);
        let (object, field) = (format!("{kind} w"), format!("{prefix}.containers[0].resources.limits.{TRAIN}"));
        assert_eq!(places(&all), [(object.as_str(), field.as_str())], "{all:?}");
        let words = format!(
            "jobs of tenant t wait for {TRAIN} in a queue of Kueue, and a pod that asks for it comes from a Job only: write a Job (batch/v1)"
        );
        assert!(all[0].2.contains(&words), "{all:?}");
        assert_eq!(found(&[TEAM, &workload(version, kind, SERVE)]), [], "{kind} in a pool without queues");
    }
    for kind in ["Job", "CronJob"] {
        assert_eq!(found(&[TEAM, &workload("batch/v1", kind, TRAIN)]), [], "{kind}");
    }
}

#[test]
fn lint_accepts_requests_of_what_a_team_only_borrows() {
    let borrower = TEAM.replace("count: 2, borrow: 3, lend: 1", "count: 0, borrow: 3");
    let job = workload("batch/v1", "Job", TRAIN);
    assert_eq!(found(&[&borrower, &job]), []);
    let more = found(&[&borrower, &job.replace(": 1}", ": 4}")]);
    assert!(more.len() == 1 && more[0].2.contains("may ask for at most"), "{more:?}");
    let quotas = borrower.replace(", queueing: {system: Kueue}", "");
    let refused = found(&[&quotas, &job]);
    assert!(
        refused.iter().any(|f| f.0 == "Job w" && f.2.contains("this namespace may use: nvidia.com/mig-1g.10gb")),
        "{refused:?}"
    );
}

#[test]
fn lint_accepts_the_samples_of_queues() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("samples/queues");
    let texts = ["pool.yaml", "tenants.yaml", "job.yaml"].map(|file| fs::read_to_string(samples.join(file)).unwrap());
    let [pool, tenants, job] = &texts;
    // the commands of the sample name the namespace
    let job = job.replacen("metadata: {", "metadata: {namespace: team-a, ", 1);
    assert_eq!(found(&[pool, tenants, &job]), []);
    let deployment =
        workload("apps/v1", "Deployment", "gputenancy.io/train").replace("name: w", "name: w, namespace: team-b");
    assert_eq!(found(&[pool, tenants, &deployment]).len(), 1, "team-b has the resource, and a queue for it");
}
