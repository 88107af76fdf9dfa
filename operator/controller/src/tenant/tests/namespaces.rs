//! Tenants whose namespaces are not their own.

use super::*;

#[test]
fn tenant_without_a_namespace_of_its_own_is_planned_no_devices() {
    let mut seen =
        observed(&json!({"namespaces": [{"name": "kube-system"}], "gpus": [{"profile": "mig-1g", "count": 1000}]}));
    let foreign: SlimNamespace = serde_json::from_value(json!({"metadata": {"name": "kube-system"}})).unwrap();
    seen.namespaces.insert("kube-system".into(), Arc::new(foreign));
    let conditions = status_of(&seen, None).conditions;
    let capacity = conditions.iter().find(|c| c.type_ == "CapacityReady").unwrap();
    assert_eq!(
        (capacity.reason.as_str(), capacity.message.as_str()),
        ("NamespaceConflict", "no device is planned for the tenant while it has no namespace of its own")
    );
}
