//! Queues of Kueue in the chart: variable, rights and policies.

use crate::offline::chart::{rendered, template};

const ON: &str = "queueing.kueue.enabled=true";

#[test]
fn queues_are_rendered_only_when_enabled() {
    let signs = [
        "{name: KUEUE, value: \"true\"}",
        "apiGroups: [kueue.x-k8s.io]",
        "name: gputenancy-operator-queues",
        "name: gputenancy-tenant-queued-pods",
        "name: gputenancy-tenant-queued-jobs",
        "name: gputenancy-tenant-queue-priorities",
        "name: gputenancy-tenant-queue-objects",
    ];
    let (without, with) = (rendered("", &[]), rendered("", &[ON]));
    for sign in signs {
        assert!(!without.contains(sign) && with.contains(sign), "{sign}");
    }
}

#[test]
fn queues_without_policies_are_refused() {
    let (fine, text) = template("", &[ON, "policies.enabled=false"]);
    assert!(!fine && text.contains("queueing.kueue.enabled requires policies.enabled"), "{text}");
}

#[test]
fn user_of_kueue_is_that_of_the_values() {
    let value = |user: &str| format!("queueing.kueue.serviceAccount={user}");
    let user = "system:serviceaccount:jobs:kueue";
    let text = rendered("tenant-queues.yaml", &[ON, &value(user)]);
    assert_eq!(text.matches(&format!("'{user}'")).count(), 3, "{text}");
    assert!(!text.contains("kueue-controller-manager"), "{text}");
    for wrong in ["kueue", "system:serviceaccount:kueue", "system:serviceaccount:a:b'", "system:masters"] {
        let (fine, text) = template("tenant-queues.yaml", &[ON, &value(wrong)]);
        assert!(!fine && text.contains("/queueing/kueue/serviceAccount"), "{wrong}: {text}");
    }
}

#[test]
fn class_of_all_tenants_is_one_of_jobs() {
    let classes = |sets: &[&str]| rendered("tenant-queues.yaml", &[&[ON], sets].concat());
    assert!(classes(&["policies.priorityClasses={batch}"]).contains("\"['batch'] + params.spec.?priorityClasses"));
    assert!(classes(&[]).contains("\"[] + params.spec.?priorityClasses"));
}
