//! Tenants whose namespaces are not their own.

use super::*;

#[test]
fn tenant_without_a_namespace_of_its_own_is_planned_no_devices() {
    let mut seen =
        observed(&json!({"namespaces": [{"name": "kube-system"}], "gpus": [{"profile": "mig-1g", "count": 1000}]}));
    let foreign: SlimNamespace = serde_json::from_value(json!({"metadata": {"name": "kube-system"}})).unwrap();
    seen.namespaces.insert("kube-system".into(), Arc::new(foreign));
    let (_, found, message) = reason(&seen, "CapacityReady");
    assert_eq!(
        (found.as_str(), message.as_str()),
        ("NamespaceConflict", "no device is planned for the tenant while it has no namespace of its own")
    );
}

#[test]
fn tenant_without_a_namespace_of_its_own_reports_neither_a_grant_nor_a_quota() {
    let without_tenant = json!({"metadata": {"name": "a1"}});
    let labels = json!({"gputenancy.io/tenant": "team-b"});
    let of_another = json!({"metadata": {"name": "a1", "labels": labels}});
    for namespace in [without_tenant, of_another] {
        let foreign: SlimNamespace = serde_json::from_value(namespace).unwrap();
        for suspend in [false, true] {
            let mut seen = observed(&json!({"namespaces": [{"name": "a1"}], "suspend": suspend}));
            seen.namespaces.insert("a1".into(), Arc::new(foreign.clone()));
            for (type_, lacks) in
                [("PolicyReady", "no grant"), ("QuotaReady", "no quota"), ("CapacityReady", "no device")]
            {
                let (status, found, message) = reason(&seen, type_);
                assert_eq!((status.as_str(), found.as_str()), ("False", "NamespaceConflict"), "{type_}");
                assert!(message.starts_with(lacks) && message.contains("no namespace of its own"), "{message}");
            }
            assert_eq!(reason(&seen, "Ready").2, reason(&seen, "NamespacesReady").2, "it has the remedy");
        }
    }
}

#[test]
fn tenant_with_one_namespace_of_its_own_has_a_grant_and_a_quota() {
    let mut seen = observed(&json!({}));
    let foreign: SlimNamespace = serde_json::from_value(json!({"metadata": {"name": "a2"}})).unwrap();
    seen.namespaces.insert("a2".into(), Arc::new(foreign));
    converge(&mut seen);
    assert_eq!(reason(&seen, "NamespacesReady").1, "NamespaceConflict");
    assert_eq!(["PolicyReady", "QuotaReady"].map(|type_| reason(&seen, type_).1), ["Granted", "Enforced"]);
}
