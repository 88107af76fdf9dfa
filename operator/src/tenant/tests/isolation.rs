//! What every namespace gets beside limits and grants: its network policy, default requests, viewers, Pod Security; and how one
//! that exists becomes a tenant's.
#![allow(clippy::needless_pass_by_value, reason = "a test reads better without ampersands before json!")]

use std::sync::Arc;

use gputenancy_engine::projection::SlimNamespace;
use k8s_openapi::{api::networking::v1::NetworkPolicy, apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{carry_out, decide, endpoint, observed, reason, render, settle, settled, teardown};
use crate::{
    cache::OwnedObject,
    tenant::{
        decide::{Optional, Write},
        observe::{Observed, Role},
        report::news,
    },
};

/// The spec of the tenant changes.
fn change(seen: &mut Observed, fields: Value) {
    let mut spec = serde_json::to_value(&seen.tenant.spec).unwrap();
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    seen.tenant.spec = serde_json::from_value(spec).unwrap();
}

#[test]
fn an_open_tenant_has_no_policy_of_ours_and_comes_back_from_it() {
    let mut seen = settled(&json!({}));
    assert_eq!(seen.networks.len(), 2);
    change(&mut seen, json!({"network": "Open"}));
    assert!(reason(&seen, "PolicyReady").2.contains("network policy gputenancy is still there"));
    settle(&mut seen);
    assert!(seen.networks.is_empty());
    let (status, _, message) = reason(&seen, "PolicyReady");
    assert!(status == "True" && message.contains("spec.network is Open"), "{message}");
    change(&mut seen, json!({"network": "Isolated"}));
    settle(&mut seen);
    assert_eq!((seen.networks.len(), reason(&seen, "PolicyReady").0.as_str()), (2, "True"));
}

#[test]
fn a_namespace_is_fenced_in_before_its_first_pod_can_come() {
    let writes = decide::writes(&observed(&json!({})));
    let first = |found: fn(&Write) -> bool| writes.iter().position(found).unwrap();
    let last = |found: fn(&Write) -> bool| writes.iter().rposition(found).unwrap();
    let fence = last(|w| matches!(w, Write::Network(_))).max(last(|w| matches!(w, Write::Limits(_))));
    assert!(fence < first(|w| matches!(w, Write::Grant(_))), "{writes:?}");
}

#[test]
fn what_somebody_changes_or_deletes_is_set_right_and_said_until_then() {
    let mut seen = settled(&json!({}));
    let mut policy = serde_json::to_value(render::network("team-a", "a1", seen.network().unwrap())).unwrap();
    policy["spec"]["ingress"].as_array_mut().unwrap().push(json!({}));
    seen.networks
        .insert("a1".into(), Arc::new(OwnedObject::of(&serde_json::from_value::<NetworkPolicy>(policy).unwrap())));
    seen.limits.remove("a2");
    let writes = decide::writes(&seen);
    assert!(
        matches!(writes.as_slice(), [Write::Network(n), Write::Limits(l)]
        if n.namespace().as_deref() == Some("a1") && l.namespace().as_deref() == Some("a2")),
        "{writes:?}"
    );
    let (status, why, message) = reason(&seen, "PolicyReady");
    assert_eq!((status.as_str(), why.as_str()), ("False", "Applying"));
    assert!(message.contains("namespace a1: network policy gputenancy"), "{message}");
    carry_out(&mut seen, writes);
    assert_eq!(decide::writes(&seen), []);
}

#[test]
fn an_api_server_that_moves_takes_the_policies_along_and_one_that_is_nowhere_is_said() {
    let mut seen = settled(&json!({}));
    seen.api_endpoints = [endpoint("fd00::5", 6443)].into();
    settle(&mut seen);
    let spec = serde_json::to_string(&seen.network().unwrap()).unwrap();
    assert!(spec.contains("fd00::5/128") && !spec.contains("10.0.0.5"), "{spec}");
    seen.api_endpoints.clear();
    settle(&mut seen);
    let (_, why, message) = reason(&seen, "Stalled");
    assert!(why == "NoApiServer" && message.contains("Service kubernetes in namespace default"), "{message}");
}

#[test]
fn without_default_requests_there_is_no_limit_range() {
    let mut seen = settled(&json!({}));
    seen.standard = Arc::default();
    let writes = decide::writes(&seen);
    let removed = writes.iter().filter(|w| matches!(w, Write::Remove { what: Optional::Limits, .. })).count();
    assert_eq!(removed, 2, "{writes:?}");
    settle(&mut seen);
    assert!(seen.limits.is_empty() && decide::writes(&seen).is_empty());
}

#[test]
fn a_tenant_that_names_priority_classes_has_a_quota_that_lets_in_no_others() {
    let mut seen = settled(&json!({}));
    assert!(seen.classes.is_empty());
    change(&mut seen, json!({"priorityClasses": ["batch", "serving"]}));
    settle(&mut seen);
    assert_eq!(decide::writes(&seen), []);
    insta::assert_yaml_snapshot!(render::classes("team-a", "a1", render::no_other_classes(&seen.tenant).unwrap()));
    // somebody lets one in
    let mut open = (*seen.classes["a2"]).clone();
    open.spec.hard.insert("pods".into(), Quantity("1".into()));
    seen.classes.insert("a2".into(), Arc::new(open));
    let (_, why, message) = reason(&seen, "PolicyReady");
    assert!(why == "Applying" && message.contains("a2: quota gputenancy-priority-classes"), "{message}");
    assert!(matches!(decide::writes(&seen).as_slice(), [Write::Classes(q)] if q.namespace().as_deref() == Some("a2")));
    settle(&mut seen);
    // none at all
    change(&mut seen, json!({"priorityClasses": []}));
    settle(&mut seen);
    let scope = seen.classes["a1"].spec.scope.clone().unwrap().match_expressions.unwrap();
    assert_eq!((scope.len(), scope[0].operator.as_str()), (1, "Exists"));
    // any
    change(&mut seen, json!({"priorityClasses": null}));
    settle(&mut seen);
    assert!(seen.classes.is_empty() && decide::writes(&seen).is_empty());
}

#[test]
fn viewers_are_bound_while_there_are_any() {
    let mut seen = settled(&json!({}));
    assert!(seen.viewers.is_empty());
    change(&mut seen, json!({"viewers": [{"kind": "Group", "name": "guests"}]}));
    assert!(reason(&seen, "PolicyReady").2.contains("role binding gputenancy-viewers"));
    settle(&mut seen);
    assert!(seen.viewers["a2"].is_like(&render::viewers(&seen.tenant, "a2").unwrap()));
    assert!(seen.bindings["a2"].fixed != seen.viewers["a2"].fixed);
    change(&mut seen, json!({"viewers": []}));
    settle(&mut seen);
    assert!(seen.viewers.is_empty());
}

#[test]
fn a_tenant_without_owners_has_no_binding_for_them_and_loses_it_with_the_last() {
    let mut seen = settled(&json!({"owners": []}));
    assert!(seen.bindings.is_empty() && decide::writes(&seen).is_empty());
    assert_eq!(reason(&seen, "Ready").0, "True");
    change(&mut seen, json!({"owners": [{"kind": "Group", "name": "team-a"}]}));
    let (_, _, message) = reason(&seen, "PolicyReady");
    assert!(message.contains("role binding gputenancy-owners is not as spec.owners says yet"), "{message}");
    settle(&mut seen);
    assert_eq!(seen.bindings.keys().collect::<Vec<_>>(), ["a1", "a2"]);
    assert!(seen.bindings["a1"].is_like(&render::owners(&seen.tenant, "a1").unwrap()));
    change(&mut seen, json!({"owners": []}));
    let writes = decide::writes(&seen);
    let removed = |w: &Write| matches!(w, Write::Remove { what: Optional::Owners, .. });
    assert!(writes.len() == 2 && writes.iter().all(removed), "{writes:?}");
    assert_eq!(reason(&seen, "PolicyReady").1, "Applying");
    settle(&mut seen);
    assert!(seen.bindings.is_empty() && reason(&seen, "Ready").0 == "True");
}

#[test]
fn pod_security_is_what_the_spec_says_and_is_set_right() {
    let mut seen = settled(&json!({}));
    let enforced = |seen: &Observed| seen.namespaces["a1"].labels()["pod-security.kubernetes.io/enforce"].clone();
    assert_eq!(enforced(&seen), "restricted");
    change(&mut seen, json!({"podSecurity": "Baseline"}));
    settle(&mut seen);
    assert_eq!(enforced(&seen), "baseline");
}

#[test]
fn a_namespace_that_is_no_longer_listed_stays_fenced_in() {
    let mut seen = settled(&json!({}));
    change(&mut seen, json!({"namespaces": [{"name": "a1"}]}));
    settle(&mut seen);
    assert_eq!(seen.roles()[1], ("a2".into(), Role::Retained));
    assert!(seen.networks.contains_key("a2") && seen.limits.contains_key("a2"));
    seen.networks.remove("a2");
    assert!(matches!(decide::writes(&seen).as_slice(), [Write::Network(_)]));
}

/// A tenant that lists `a2`, which is there and is labelled so.
fn finds(adopt: bool, labels: Value) -> Observed {
    let mut seen = observed(&json!({"namespaces": [{"name": "a1"}, {"name": "a2", "adopt": adopt}]}));
    let there: SlimNamespace =
        serde_json::from_value(json!({"metadata": {"name": "a2", "resourceVersion": "7", "labels": labels}})).unwrap();
    seen.namespaces.insert("a2".into(), Arc::new(there));
    seen
}

#[test]
fn a_namespace_of_nobody_is_adopted_where_that_is_said_and_let_go_with_the_tenant() {
    let mut seen = finds(true, json!({"app.kubernetes.io/managed-by": "Helm"}));
    assert_eq!(seen.roles()[1].1, Role::Adoptable);
    let writes = decide::writes(&seen);
    let of_a2 = |w: &Write| matches!(w, Write::Quota(q) if q.namespace().as_deref() == Some("a2"));
    assert!(!writes.iter().any(of_a2), "nothing but its labels before it is ours: {writes:?}");
    carry_out(&mut seen, writes);
    settle(&mut seen);
    let labels = seen.namespaces["a2"].labels();
    assert_eq!(
        (labels["gputenancy.io/tenant"].as_str(), labels["app.kubernetes.io/managed-by"].as_str()),
        ("team-a", "Helm")
    );
    assert_eq!(reason(&seen, "Ready").0, "True");
    assert_eq!(seen.quotas.len() + seen.networks.len() + seen.limits.len(), 6);
    let seen = super::deleted(seen, 0);
    let released = Write::Release { namespace: "a2".into(), made: false };
    assert!(teardown::writes(&seen).contains(&released), "{:?}", teardown::writes(&seen));
}

/// The reasons of what is told when these writes have been carried out, with the namespaces that the sentences name.
fn told(writes: &[Write]) -> Vec<(&'static str, bool)> {
    writes.iter().filter_map(news).map(|(reason, note)| (reason.as_str(), note.starts_with("namespace a2 "))).collect()
}

#[test]
fn what_becomes_of_a_namespace_is_told_once_when_it_is_adopted_dropped_and_let_go() {
    let mut seen = finds(true, json!({}));
    let writes = decide::writes(&seen);
    assert_eq!(told(&writes), [("NamespaceAdopted", true)]);
    carry_out(&mut seen, writes);
    settle(&mut seen);
    change(&mut seen, json!({"namespaces": [{"name": "a1"}]}));
    let writes = decide::writes(&seen);
    assert_eq!(told(&writes), [("NamespaceRetained", true)]);
    carry_out(&mut seen, writes);
    settle(&mut seen);
    // a label that somebody took off is put back without a word
    let mut namespace = (*seen.namespaces["a2"]).clone();
    namespace.labels_mut().remove("pod-security.kubernetes.io/enforce");
    seen.namespaces.insert("a2".into(), Arc::new(namespace));
    let writes = decide::writes(&seen);
    assert_eq!((writes.len(), told(&writes)), (1, vec![]));
    carry_out(&mut seen, writes);
    let mut seen = super::deleted(seen, 0);
    let writes = teardown::writes(&seen);
    assert_eq!(told(&writes), [("NamespaceReleased", true)]);
    carry_out(&mut seen, writes);
    assert_eq!(told(&teardown::writes(&seen)), []);
}

#[test]
fn what_is_not_to_be_adopted_is_left_alone_and_the_message_says_what_helps() {
    let mut going = finds(true, json!({}));
    let mut namespace = (*going.namespaces["a2"]).clone();
    namespace.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    going.namespaces.insert("a2".into(), Arc::new(namespace));
    let mut own = finds(true, json!({}));
    own.home = "a2".into();
    for (mut seen, words) in [
        (finds(false, json!({})), "say adopt: true beside its name"),
        (finds(true, json!({"gputenancy.io/tenant": "team-b"})), "belongs to tenant team-b: choose another name"),
        (going, "made anew when it is gone"),
        (own, "the operator's own"),
    ] {
        let before = seen.namespaces["a2"].labels().clone();
        let writes = decide::writes(&seen);
        carry_out(&mut seen, writes);
        assert_eq!((seen.roles()[1].1, seen.namespaces["a2"].labels()), (Role::Foreign, &before));
        let (_, why, message) = reason(&seen, "Ready");
        assert!(why == "NamespaceForeign" && message.contains(words), "{message}");
    }
}
