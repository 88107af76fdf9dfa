//! `lint` of profiles, pools and tenants: mistakes of the schema, and what the operator would refuse.

use crate::lint::{check, lines, lint, text};

#[test]
fn lint_reports_what_the_operator_refuses_also_with_a_mistake_of_the_schema() {
    let pool = |more: &str| {
        format!(
            "apiVersion: gputenancy.io/v1alpha1\nkind: GpuPool\nmetadata: {{name: p}}\nspec: {{nodeSelector: {{matchLabels: {{x: z}}}}, profiles: [a], {more}}}\n"
        )
    };
    let profile = |device: &str, more: &str| {
        format!(
            "apiVersion: gputenancy.io/v1alpha1\nkind: GpuProfile\nmetadata: {{name: f}}\nspec: {{device: {device}, {more}}}\n"
        )
    };
    let support = "support: {expected: e, incident: i}";
    let found = |manifest: &str| {
        let report = lint(&[text("a.yaml", manifest)]);
        assert_eq!(report.documents, 1);
        let mut fields: Vec<String> =
            report.findings.into_iter().map(|f| format!("{}: {}", f.field, f.message)).collect();
        fields.sort();
        fields
    };
    let starts = |found: Vec<String>, expected: &[&str]| {
        let fits =
            found.len() == expected.len() && found.iter().zip(expected).all(|(line, start)| line.starts_with(start));
        assert!(fits, "{found:#?}, expected {expected:#?}");
    };
    let window =
        "disruption: {drainTimeout: 30, windows: [{schedule: '*/61 2 * * *', duration: 1d, timeZone: Europe/Berln}]}";
    starts(
        found(&pool(window)),
        &[
            "spec.disruption.drainTimeout: is 30",
            "spec.disruption.windows[0].duration: write a duration",
            "spec.disruption.windows[0].schedule: `*/61 2 * * *` is no schedule: 61 is no step of the minute",
            "spec.disruption.windows[0].timeZone: `Europe/Berln` is unknown",
        ],
    );
    starts(
        found(&profile("{mig: {profile: 1g.11gb}}", "")),
        &["spec.device.mig.profile: no board", "spec.support: is missing"],
    );
    // each once, and with what to write
    for (manifest, expected) in [
        (profile("{}", support), "spec.device: write exactly one of"),
        (profile("{mps: {}}", support), "spec.device.mps: write either replicas"),
        (
            pool("layout: {spare: {policy: fill, profile: a}}"),
            "spec.layout.spare.policy: \"fill\" is none of the values Keep, Whole, Fill",
        ),
        (profile("{mig: {profile: 1g10gb}}", support), "spec.device.mig.profile: write NVIDIA's name"),
        (
            profile("{mig: {slices: 8}}", support),
            "spec.device.mig.slices: no board has 8 compute slices: write 7 or less",
        ),
        (profile("{mig: {slices: 1, memory: 900Gi}}", support), "spec.device.mig.memory: no board that is known"),
        (
            profile("{fraction: {memory: 10, compute: 20}}", support),
            "spec.device.fraction.memory: 10 is 10 bytes: write a unit, such as 10Gi",
        ),
        (
            pool("disruption: {windows: [{schedule: '@weekly', duration: 4h}]}"),
            "spec.disruption.windows[0].schedule: write five fields",
        ),
        (
            pool("disruption: {windows: [{schedule: 0 2 * *, duration: 4h}]}"),
            "spec.disruption.windows[0].schedule: write five fields",
        ),
        (
            pool("disruption: {windows: [{schedule: 0 2 * * 8, duration: 4h}]}"),
            "spec.disruption.windows[0].schedule: `0 2 * * 8` is no schedule: 8 is no day of the week",
        ),
    ] {
        starts(found(&manifest), &[expected]);
    }
    let selector = |selector: &str| pool("").replace("{matchLabels: {x: z}}", selector);
    for (text, expected) in [
        ("{matchLabels: {a b: c}}", "spec.nodeSelector.matchLabels.a b: no node has a label \"a b\""),
        ("{matchLabels: {x: c d}}", "spec.nodeSelector.matchLabels.x: no node has a label with the value \"c d\""),
        (
            "{matchExpressions: [{key: a_/b, operator: Exists}]}",
            "spec.nodeSelector.matchExpressions[0].key: no node has a label",
        ),
        ("{matchExpressions: [{key: x, operator: Is}]}", "spec.nodeSelector"),
    ] {
        starts(found(&selector(text)), &[expected]);
    }
    assert_eq!(found(&selector("{matchLabels: {example.com/gpus: A100_80-GB, x: ''}}")), [""; 0]);
}

#[test]
fn lint_counts_every_document_and_takes_a_text_for_no_object() {
    let report = lint(&[text("a.yaml", "hello\n")]);
    assert_eq!(
        lines(&report),
        ["a.yaml:1  : is no object: write apiVersion, kind, metadata and spec, as kubectl takes it"]
    );
    assert_eq!(report.documents, 1);
}

#[test]
fn lint_names_each_key_that_no_quota_counts() {
    let tenant = "apiVersion: gputenancy.io/v1alpha1\nkind: GpuTenant\nmetadata: {name: a}\nspec: {namespaces: [{name: a}], resources: {request.cpu: 8, gold: 1, pods: 5}}\n";
    let found = lines(&check(tenant));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("spec.resources.gold: is not counted by a ResourceQuota: write keys that a ResourceQuota counts: requests.cpu, limits.memory, pods and the like, count/<resource>.<group>, <class>.storageclass.storage.k8s.io/requests.storage, or requests.<domain>/<name> with at most 63 characters after the slash"), "{found:?}");
    assert!(
        found[1].ends_with("spec.resources.request.cpu: is not counted by a ResourceQuota: did you mean requests.cpu?"),
        "{found:?}"
    );
}

#[test]
fn lint_reports_a_namespace_that_two_tenants_list() {
    let manifest = "apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: team-a}
spec: {namespaces: [{name: shared}, {name: a}]}
---
apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: team-b}
spec: {namespaces: [{name: b}, {name: shared}]}
";
    let expected = "a.yaml:9 GpuTenant team-b spec.namespaces[1].name: GpuTenant team-a lists shared as well, and a namespace has one tenant: choose another name";
    assert_eq!(lines(&lint(&[text("a.yaml", manifest)])), [expected]);
}

#[test]
fn lint_reports_windows_and_mig_profiles_that_the_operator_refuses() {
    let windows = |windows: &str| {
        let pool = "apiVersion: gputenancy.io/v1alpha1\nkind: GpuPool\nmetadata: {name: late}\nspec:\n  nodeSelector: {matchLabels: {late: a}}\n";
        lines(&check(&format!("{pool}  profiles: [mig-1g]\n  disruption:\n    windows:\n{windows}")))
    };
    let one = |line: &str| windows(&format!("      - {line}\n"));
    assert_eq!(one("{schedule: 0 2 * * 6, duration: 4h, timeZone: Europe/Berlin}"), [""; 0]);
    for (window, field, message) in [
        (
            "{schedule: 0 25 * * *, duration: 4h}",
            "schedule",
            "`0 25 * * *` is no schedule: 25 is no hour: write 0 to 23",
        ),
        ("{schedule: 0 2 31 2 *, duration: 4h}", "schedule", "`0 2 31 2 *` never comes"),
        ("{schedule: 0 2 * * 6, duration: 4h, timeZone: Europe/Berln}", "timeZone", "`Europe/Berln` is unknown"),
    ] {
        let found = one(window);
        let start = format!("GpuPool late spec.disruption.windows[0].{field}: {message}");
        assert!(found.len() == 1 && found[0].contains(&start), "{found:?}");
    }
    let second = windows("      - {schedule: 0 2 * * 6, duration: 4h}\n      - {schedule: 0 25 * * *, duration: 4h}\n");
    assert!(second.len() == 1 && second[0].contains("windows[1].schedule"), "{second:?}");
    let mig = |profile: &str| {
        lines(&check(&format!(
            "apiVersion: gputenancy.io/v1alpha1\nkind: GpuProfile\nmetadata: {{name: odd}}\nspec: {{device: {{mig: {{profile: {profile}}}}}, support: {{expected: e, incident: i}}}}\n"
        )))
    };
    assert_eq!((mig("1g.12gb"), mig("1g.24gb+me")), (vec![], vec![]));
    let unknown = mig("1g.11gb");
    assert!(unknown.len() == 1 && unknown[0].contains("has 1g.11gb: write one of 1g.10gb, 1g.12gb, "), "{unknown:?}");
    let slices = mig("5g.40gb");
    assert!(slices.len() == 1 && slices[0].contains("has 5g.40gb: write slices and memory"), "{slices:?}");
}

#[test]
fn lint_reports_mistakes_in_metadata_with_all_others() {
    let tenant = |metadata: &str, count: &str| {
        let spec = format!("{{namespaces: [{{name: a}}], gpus: [{{profile: small, count: {count}}}]}}");
        format!("apiVersion: gputenancy.io/v1alpha1\nkind: GpuTenant\nmetadata: {metadata}\nspec: {spec}\n")
    };
    let found = |metadata: &str, count: &str| {
        let report = lint(&[text("new.yaml", &tenant(metadata, count))]);
        report.findings.into_iter().map(|f| (f.field, f.message)).collect::<Vec<_>>()
    };
    for (metadata, count, expected) in [
        ("{}", "x", &[("metadata.name", "is missing"), ("spec.gpus[0].count", "is the text \"x\"")][..]),
        ("{name: Team_A}", "1", &[("metadata.name", "\"Team_A\" is no name")]),
        ("{name: a, lables: {b: c}}", "1", &[("metadata.lables", "did you mean labels?")]),
    ] {
        let found = found(metadata, count);
        for (field, words) in expected {
            assert!(found.iter().any(|(f, m)| f == field && m.contains(words)), "{metadata}: {field} in {found:?}");
        }
    }
}

#[test]
fn lint_reports_keys_and_amounts_that_no_quota_counts() {
    let found = |resources: &str| {
        let spec = format!("{{namespaces: [{{name: a}}], resources: {{{resources}}}}}");
        let tenant =
            format!("apiVersion: gputenancy.io/v1alpha1\nkind: GpuTenant\nmetadata: {{name: a}}\nspec: {spec}\n");
        let report = lint(&[text("new.yaml", &tenant)]);
        report.findings.into_iter().map(|f| format!("{}: {}", f.field, f.message)).collect::<Vec<_>>()
    };
    for key in [
        "requests.cpu",
        "pods",
        "hugepages-2Mi",
        "count/jobs.batch",
        "requests.example.com/fpga",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
        "request.cpu",
        "example.com/fpga",
        "limits.example.com/fpga",
        "count/",
        "gold.storageclass.storage.k8s.io/limits.storage",
    ] {
        let found = found(&format!("{key}: 8"));
        // the rule of the schema and the function of the operator
        assert_eq!(found.is_empty(), gputenancy_crds::quota::is_counted(key), "{key}: {found:?}");
    }
    for (resources, fine) in [
        ("pods: 8", true),
        ("pods: 1k", true),
        ("pods: 1500m", false),
        ("count/jobs.batch: '0.5'", false),
        ("services.nodeports: '1.5'", false),
        ("requests.cpu: 1500m", true),
        ("requests.memory: 1.5Gi", true),
        ("requests.example.com/fpga: 500m", true),
    ] {
        let found = found(resources);
        assert_eq!(found.is_empty(), fine, "{resources}: {found:?}");
        assert!(fine || found[0].contains("spec.resources: write whole numbers"), "{found:?}");
    }
}

/// A plan of a fleet whose tenants were written before a rule must be possible.
#[test]
fn objects_of_a_snapshot_keep_to_the_rules_of_their_time() {
    let tenant = "{apiVersion: gputenancy.io/v1alpha1, kind: GpuTenant, metadata: {name: a}, spec: {namespaces: [{name: a}], resources: {request.cpu: 8}}}";
    let snapshot = format!("apiVersion: gputenancy.io/v1alpha1\nkind: PlanSnapshot\nitems: [{tenant}]\n");
    let read = kubectl_gpu::input::documents(&[text("snapshot.yaml", &snapshot)]).unwrap();
    assert_eq!(read.documents.len(), 1);
    let refused = kubectl_gpu::input::documents(&[text("manifest.yaml", tenant)]).unwrap_err().to_string();
    assert!(refused.contains("spec.resources.request.cpu: is not counted by a ResourceQuota"), "{refused}");
}
