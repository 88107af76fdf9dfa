//! Deletion of a tenant, and of its namespaces.

use super::*;

fn delete_grant(namespace: &str) -> Write {
    Write::Delete { kind: Managed::Grant, namespace: namespace.into() }
}

#[test]
fn deletion_deletes_created_namespaces_and_releases_others() {
    let mut seen = converged(&json!({}));
    let mut adopted = (*seen.namespaces["a2"]).clone();
    adopted.metadata.annotations = None;
    seen.namespaces.insert("a2".into(), Arc::new(adopted));
    let mut seen = deleted(seen, 0);
    let writes = to_write(&seen);
    assert_eq!(
        writes,
        [delete_grant("a1"), Write::ReleaseNamespace { namespace: "a2".into(), created: false }],
        "no new pods are admitted"
    );
    apply_writes(&mut seen, writes);
    let writes = to_write(&seen);
    assert!(matches!(writes.as_slice(), [Write::DeleteNamespace { namespace, .. }] if namespace == "a1"), "{writes:?}");
    apply_writes(&mut seen, writes);
    assert_eq!(to_write(&seen), [Write::RemoveFinalizer(None)]);
}

#[test]
fn deletion_that_is_blocked_ends_after_a_time_and_reports_the_reason() {
    let mut seen = converged(&json!({"namespaces": [{"name": "a1"}]}));
    let mut going = (*seen.namespaces["a1"]).clone();
    going.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    going.status.conditions = serde_json::from_value(json!([{"type": "NamespaceFinalizersRemaining", "status": "True", "message": "Some content has finalizers remaining: example.com/keep"}])).unwrap();
    seen.namespaces.insert("a1".into(), Arc::new(going));
    let mut early = deleted(seen.clone(), MAX_WAIT.as_secs() - 1);
    assert_eq!(to_write(&early), [delete_grant("a1")], "the namespace controller may not know grants yet");
    apply_writes(&mut early, vec![delete_grant("a1")]);
    assert_eq!(to_write(&early), []);
    assert!(reason(&early, "Reconciling").2.contains("example.com/keep"));
    let late = deleted(Observed { managed: BTreeMap::new(), ..seen }, MAX_WAIT.as_secs());
    assert_eq!(reason(&late, "Stalled").1, "DeletionBlocked");
    assert!(
        matches!(to_write(&late).as_slice(), [Write::RemoveFinalizer(Some(note))] if note.contains("example.com/keep"))
    );
}

#[test]
fn namespace_that_is_deleted_alone_is_named_with_what_keeps_it() {
    let mut seen = converged(&json!({"namespaces": [{"name": "a1"}, {"name": "a2"}, {"name": "a3"}, {"name": "a4"}]}));
    let condition =
        |type_: &str, status: &str, message: &str| json!({"type": type_, "status": status, "message": message});
    let mut delete = |name: &str, conditions: Value, finalizers: Option<Vec<String>>| {
        let mut going = (*seen.namespaces[name]).clone();
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        going.metadata.finalizers = finalizers;
        going.status.conditions = serde_json::from_value(conditions).unwrap();
        seen.namespaces.insert(name.into(), Arc::new(going));
    };
    let kept = "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances";
    delete(
        "a1",
        json!([
            condition("NamespaceDeletionContentFailure", "False", "none"),
            condition("NamespaceFinalizersRemaining", "True", kept)
        ]),
        None,
    );
    let discovery = "Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1";
    delete("a2", json!([condition("NamespaceDeletionDiscoveryFailure", "True", discovery)]), None);
    delete("a3", json!([]), Some(vec!["example.com/hold".into()]));
    let (_, reason, message) = reason(&seen, "NamespacesReady");
    assert_eq!(reason, "NamespaceTerminating");
    let expected = format!(
        "a1 ({kept}), a2 ({discovery}), a3 (the namespace has the finalizers example.com/hold) is being deleted; it is created again"
    );
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn protected_tenant_is_not_deleted() {
    let seen = deleted(converged(&json!({"deletionProtection": true})), 10_000);
    assert_eq!(to_write(&seen), []);
    assert_eq!(reason(&seen, "Stalled").1, "DeletionProtected");
}
