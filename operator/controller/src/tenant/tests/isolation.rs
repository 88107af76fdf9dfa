//! Tests of network policies, default requests, role bindings, Pod Security labels, and the adoption of namespaces.
#![allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands before json!")]

use std::sync::Arc;

use gputenancy_cluster::desired::OwnedObject;
use gputenancy_crds::projection::SlimNamespace;
use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{apply_writes, converge, converged, endpoint, is_apply, observed, reason, render, roles, stored, to_write};
use crate::tenant::{
    decide::{desired, roles::Role, write::Write},
    observe::{Observed, managed::Managed},
    render::namespace_defaults::Standard,
    report::event_of,
};

/// Changes the tenant's spec.
fn change(seen: &mut Observed, fields: Value) {
    let mut spec = serde_json::to_value(&seen.tenant.spec).unwrap();
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    seen.tenant.spec = serde_json::from_value(spec).unwrap();
}

/// Number of objects of this type.
fn count(seen: &Observed, kind: Managed) -> usize {
    seen.managed.keys().filter(|(present, _)| *present == kind).count()
}

#[test]
fn open_tenant_has_no_network_policy_until_it_is_isolated() {
    let mut seen = converged(&json!({}));
    assert_eq!(count(&seen, Managed::NetworkPolicy), 2);
    change(&mut seen, json!({"network": "Open"}));
    assert!(reason(&seen, "PolicyReady").2.contains("network policy gputenancy does not match spec.network yet"));
    converge(&mut seen);
    assert!(count(&seen, Managed::NetworkPolicy) == 0);
    let (status, _, message) = reason(&seen, "PolicyReady");
    assert!(status == "True" && message.contains("spec.network is Open"), "{message}");
    change(&mut seen, json!({"network": "Isolated"}));
    converge(&mut seen);
    assert_eq!((count(&seen, Managed::NetworkPolicy), reason(&seen, "PolicyReady").0.as_str()), (2, "True"));
}

#[test]
fn namespace_is_isolated_before_its_grant() {
    let writes = to_write(&observed(&json!({})));
    let first = |found: fn(&Write) -> bool| writes.iter().position(found).unwrap();
    let last = |found: fn(&Write) -> bool| writes.iter().rposition(found).unwrap();
    let isolation = last(|w| is_apply(w, Managed::NetworkPolicy)).max(last(|w| is_apply(w, Managed::LimitRange)));
    assert!(isolation < first(|w| is_apply(w, Managed::Grant)), "{writes:?}");
}

#[test]
fn network_policy_and_limit_range_drift_is_repaired_and_reported() {
    let mut seen = converged(&json!({}));
    let mut policy = serde_json::to_value(desired::network_policy(&seen, "a1").unwrap()).unwrap();
    policy["spec"]["ingress"].as_array_mut().unwrap().push(json!({}));
    seen.managed.insert((Managed::NetworkPolicy, "a1".into()), Arc::new(stored(Managed::NetworkPolicy, policy)));
    seen.managed.remove(&(Managed::LimitRange, "a2".into()));
    let writes = to_write(&seen);
    assert!(
        matches!(writes.as_slice(), [
            Write::Apply { kind: Managed::NetworkPolicy, namespace: first, .. },
            Write::Apply { kind: Managed::LimitRange, namespace: second, .. },
        ] if first == "a1" && second == "a2"),
        "{writes:?}"
    );
    let (status, why, message) = reason(&seen, "PolicyReady");
    assert_eq!((status.as_str(), why.as_str()), ("False", "Applying"));
    assert!(message.contains("namespace a1: network policy gputenancy"), "{message}");
    apply_writes(&mut seen, writes);
    assert_eq!(to_write(&seen), []);
}

#[test]
fn network_policy_follows_api_server_addresses_and_none_is_reported() {
    let mut seen = converged(&json!({}));
    seen.api_endpoints = [endpoint("fd00::5", 6443)].into();
    converge(&mut seen);
    let spec = serde_json::to_string(&desired::network_policy(&seen, "a1").unwrap()).unwrap();
    assert!(spec.contains("fd00::5/128") && !spec.contains("10.0.0.5"), "{spec}");
    seen.api_endpoints.clear();
    converge(&mut seen);
    let (_, why, message) = reason(&seen, "Stalled");
    assert!(why == "NoApiServer" && message.contains("Service kubernetes in namespace default"), "{message}");
}

#[test]
fn limit_range_without_default_requests_is_deleted() {
    let mut seen = converged(&json!({}));
    seen.standard = Arc::default();
    let writes = to_write(&seen);
    let removed = writes.iter().filter(|w| matches!(w, Write::Delete { kind: Managed::LimitRange, .. })).count();
    assert_eq!(removed, 2, "{writes:?}");
    converge(&mut seen);
    assert!(count(&seen, Managed::LimitRange) == 0 && to_write(&seen).is_empty());
}

#[test]
fn tenant_with_priority_classes_has_a_quota_that_admits_no_others() {
    let mut seen = converged(&json!({}));
    assert!(count(&seen, Managed::PriorityClassQuota) == 0);
    change(&mut seen, json!({"priorityClasses": ["batch", "serving"]}));
    converge(&mut seen);
    assert_eq!(to_write(&seen), []);
    let quota = |seen: &Observed| render::priority_class_quota(&seen.tenant, "a2", &seen.standard).unwrap();
    insta::assert_yaml_snapshot!(render::priority_class_quota(&seen.tenant, "a1", &seen.standard).unwrap());
    // a changed quota admits a pod
    let mut open = quota(&seen);
    open.spec.as_mut().unwrap().hard = Some([("pods".to_owned(), Quantity("1".into()))].into());
    seen.managed.insert((Managed::PriorityClassQuota, "a2".into()), Arc::new(OwnedObject::of(&open)));
    let (_, why, message) = reason(&seen, "PolicyReady");
    assert!(why == "Applying" && message.contains("a2: quota gputenancy-priority-classes"), "{message}");
    assert!(
        matches!(to_write(&seen).as_slice(), [Write::Apply { kind: Managed::PriorityClassQuota, namespace, .. }] if namespace == "a2")
    );
    converge(&mut seen);
    // none at all
    change(&mut seen, json!({"priorityClasses": []}));
    converge(&mut seen);
    let scope = quota(&seen).spec.unwrap().scope_selector.unwrap().match_expressions.unwrap();
    assert_eq!((scope.len(), scope[0].operator.as_str()), (1, "Exists"));
    // but for a class that the platform permits to all, such as the cluster's default class
    seen.standard =
        Arc::new(Standard { priority_classes: vec!["standard".to_owned()], ..Standard::clone(&seen.standard) });
    let scope = quota(&seen).spec.unwrap().scope_selector.unwrap().match_expressions.unwrap();
    assert_eq!(scope[1].values, Some(vec!["standard".to_owned()]));
    // any
    change(&mut seen, json!({"priorityClasses": null}));
    converge(&mut seen);
    assert!(count(&seen, Managed::PriorityClassQuota) == 0 && to_write(&seen).is_empty());
}

#[test]
fn every_namespace_has_a_quota_that_counts_only_pods_whose_affinity_names_namespaces() {
    let mut seen = converged(&json!({}));
    assert_eq!(count(&seen, Managed::PodAffinityQuota), 2);
    insta::assert_yaml_snapshot!(render::pod_affinity_quota(&seen.tenant, "a1"));
    // a changed or deleted quota comes back
    let mut open = render::pod_affinity_quota(&seen.tenant, "a2");
    open.spec.as_mut().unwrap().hard = Some([("pods".to_owned(), Quantity("1".into()))].into());
    seen.managed.insert((Managed::PodAffinityQuota, "a2".into()), Arc::new(OwnedObject::of(&open)));
    seen.managed.remove(&(Managed::PodAffinityQuota, "a1".into()));
    let writes = to_write(&seen);
    assert!(writes.len() == 2 && writes.iter().all(|w| is_apply(w, Managed::PodAffinityQuota)), "{writes:?}");
    converge(&mut seen);
    assert!(to_write(&seen).is_empty());
}

#[test]
fn viewers_binding_exists_while_there_are_viewers() {
    let mut seen = converged(&json!({}));
    assert!(count(&seen, Managed::Viewers) == 0);
    change(&mut seen, json!({"viewers": [{"kind": "Group", "name": "guests"}]}));
    assert!(reason(&seen, "PolicyReady").2.contains("role binding gputenancy-viewers does not match spec.viewers yet"));
    converge(&mut seen);
    assert!(seen.managed(Managed::Viewers, "a2").is_some());
    assert!(seen.managed(Managed::Owners, "a2").unwrap().fixed != seen.managed(Managed::Viewers, "a2").unwrap().fixed);
    change(&mut seen, json!({"viewers": []}));
    converge(&mut seen);
    assert!(count(&seen, Managed::Viewers) == 0);
}

#[test]
fn owners_binding_exists_while_there_are_owners() {
    let mut seen = converged(&json!({"owners": []}));
    assert!(count(&seen, Managed::Owners) == 0 && to_write(&seen).is_empty());
    assert_eq!(reason(&seen, "Ready").0, "True");
    change(&mut seen, json!({"owners": [{"kind": "Group", "name": "team-a"}]}));
    let (_, _, message) = reason(&seen, "PolicyReady");
    assert!(message.contains("role binding gputenancy-owners does not match spec.owners yet"), "{message}");
    converge(&mut seen);
    assert_eq!(count(&seen, Managed::Owners), 2);
    change(&mut seen, json!({"owners": []}));
    let writes = to_write(&seen);
    let removed = |w: &Write| matches!(w, Write::Delete { kind: Managed::Owners, .. });
    assert!(writes.len() == 2 && writes.iter().all(removed), "{writes:?}");
    assert_eq!(reason(&seen, "PolicyReady").1, "Applying");
    converge(&mut seen);
    assert!(count(&seen, Managed::Owners) == 0 && reason(&seen, "Ready").0 == "True");
}

#[test]
fn pod_security_label_follows_the_spec() {
    let mut seen = converged(&json!({}));
    let enforced = |seen: &Observed| seen.namespaces["a1"].labels()["pod-security.kubernetes.io/enforce"].clone();
    assert_eq!(enforced(&seen), "restricted");
    change(&mut seen, json!({"podSecurity": "Baseline"}));
    converge(&mut seen);
    assert_eq!(enforced(&seen), "baseline");
}

#[test]
fn retained_namespace_stays_isolated() {
    let mut seen = converged(&json!({}));
    change(&mut seen, json!({"namespaces": [{"name": "a1"}]}));
    converge(&mut seen);
    assert_eq!(roles(&seen)[1], ("a2".into(), Role::Retained));
    assert!(seen.managed(Managed::NetworkPolicy, "a2").is_some() && seen.managed(Managed::LimitRange, "a2").is_some());
    seen.managed.remove(&(Managed::NetworkPolicy, "a2".into()));
    assert!(matches!(to_write(&seen).as_slice(), [Write::Apply { kind: Managed::NetworkPolicy, .. }]));
}

/// Labels of a namespace that a tenant may adopt.
fn adoptable() -> Value {
    json!({"gputenancy.io/adoptable": "true"})
}

/// A tenant that lists `a2`, which exists with these labels.
fn with_existing(adopt: bool, labels: Value) -> Observed {
    let mut seen = observed(&json!({"namespaces": [{"name": "a1"}, {"name": "a2", "adopt": adopt}]}));
    let there: SlimNamespace =
        serde_json::from_value(json!({"metadata": {"name": "a2", "resourceVersion": "7", "labels": labels}})).unwrap();
    seen.namespaces.insert("a2".into(), Arc::new(there));
    seen
}

#[test]
fn namespace_without_tenant_is_adopted_on_request_and_released_on_deletion() {
    let mut seen =
        with_existing(true, json!({"app.kubernetes.io/managed-by": "Helm", "gputenancy.io/adoptable": "true"}));
    assert_eq!(roles(&seen)[1].1, Role::Adoptable);
    let writes = to_write(&seen);
    let of_a2 = |w: &Write| matches!(w, Write::ApplyQuota(q) if q.namespace().as_deref() == Some("a2"));
    assert!(!writes.iter().any(of_a2), "its label is written first: {writes:?}");
    apply_writes(&mut seen, writes);
    converge(&mut seen);
    let labels = seen.namespaces["a2"].labels();
    assert_eq!(
        (labels["gputenancy.io/tenant"].as_str(), labels["app.kubernetes.io/managed-by"].as_str()),
        ("team-a", "Helm")
    );
    assert_eq!(reason(&seen, "Ready").0, "True");
    assert_eq!(seen.quotas.len() + count(&seen, Managed::NetworkPolicy) + count(&seen, Managed::LimitRange), 6);
    let seen = super::deleted(seen, 0);
    let released = Write::ReleaseNamespace { namespace: "a2".into(), created: false };
    assert!(to_write(&seen).contains(&released), "{:?}", to_write(&seen));
}

/// Reasons of the events of these writes, and whether they are about `a2`.
fn events(writes: &[Write]) -> Vec<(&'static str, bool)> {
    writes
        .iter()
        .filter_map(event_of)
        .map(|(reason, note)| (reason.as_str(), note.starts_with("namespace a2 ")))
        .collect()
}

#[test]
fn namespace_adopted_retained_or_released_has_one_event() {
    let mut seen = with_existing(true, adoptable());
    let writes = to_write(&seen);
    assert_eq!(events(&writes), [("NamespaceAdopted", true)]);
    apply_writes(&mut seen, writes);
    converge(&mut seen);
    change(&mut seen, json!({"namespaces": [{"name": "a1"}]}));
    let writes = to_write(&seen);
    assert_eq!(events(&writes), [("NamespaceRetained", true)]);
    apply_writes(&mut seen, writes);
    converge(&mut seen);
    // a removed label is repaired without an event
    let mut namespace = (*seen.namespaces["a2"]).clone();
    namespace.labels_mut().remove("pod-security.kubernetes.io/enforce");
    seen.namespaces.insert("a2".into(), Arc::new(namespace));
    let writes = to_write(&seen);
    assert_eq!((writes.len(), events(&writes)), (1, vec![]));
    apply_writes(&mut seen, writes);
    let mut seen = super::deleted(seen, 0);
    let writes = to_write(&seen);
    assert_eq!(events(&writes), [("NamespaceReleased", true)]);
    apply_writes(&mut seen, writes);
    assert_eq!(events(&to_write(&seen)), []);
}

#[test]
fn namespace_that_cannot_be_adopted_is_not_changed_and_the_message_has_a_remedy() {
    let mut going = with_existing(true, adoptable());
    let mut namespace = (*going.namespaces["a2"]).clone();
    namespace.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    going.namespaces.insert("a2".into(), Arc::new(namespace));
    let mut own = with_existing(true, adoptable());
    own.operator_namespace = "a2".into();
    let command = "kubectl label namespace a2 gputenancy.io/adoptable=true";
    let (conflict, unlabelled) = ("NamespaceConflict", "NamespaceNotAdoptable");
    let cases = vec![
        (with_existing(false, json!({})), conflict, "set adopt: true for its name"),
        (with_existing(false, json!({})), conflict, command),
        (with_existing(false, adoptable()), conflict, "set adopt: true for its name"),
        (with_existing(true, json!({})), unlabelled, command),
        (with_existing(true, json!({"gputenancy.io/adoptable": "false"})), unlabelled, command),
        (with_existing(true, json!({"gputenancy.io/adoptable": ""})), unlabelled, command),
        (
            with_existing(true, json!({"gputenancy.io/tenant": "team-b", "gputenancy.io/adoptable": "true"})),
            conflict,
            "belongs to tenant team-b: choose another name",
        ),
        (going, conflict, "is created again afterwards"),
        (own, conflict, "is the operator's"),
    ];
    for (mut seen, expected, text) in cases {
        let before = seen.namespaces["a2"].labels().clone();
        let writes = to_write(&seen);
        apply_writes(&mut seen, writes);
        assert_eq!((roles(&seen)[1].1, seen.namespaces["a2"].labels()), (Role::Foreign, &before));
        let (_, why, message) = reason(&seen, "Ready");
        assert!(why == expected && message.contains(text), "{why}: {message}");
        assert_eq!(reason(&seen, "Stalled").0, "True");
    }
}

#[test]
fn namespace_refused_without_the_label_is_adopted_once_it_has_it() {
    let mut seen = with_existing(true, json!({}));
    converge(&mut seen);
    assert_eq!(to_write(&seen), [], "nothing is tried again until the namespace changes");
    let mut namespace = (*seen.namespaces["a2"]).clone();
    namespace.labels_mut().insert("gputenancy.io/adoptable".into(), "true".into());
    seen.namespaces.insert("a2".into(), Arc::new(namespace));
    converge(&mut seen);
    let labels = seen.namespaces["a2"].labels();
    assert_eq!(
        (labels["gputenancy.io/tenant"].as_str(), labels["gputenancy.io/adoptable"].as_str()),
        ("team-a", "true")
    );
    assert_eq!(reason(&seen, "Ready").0, "True");
}
