//! Tests of grants: content, and order of writes.

use std::sync::Arc;

use kube::ResourceExt as _;
use serde_json::json;

use super::{apply_writes, converged, is_apply, observed, reason, render, stored, to_write, view};
use crate::tenant::{decide::write::Write, observe::managed::Managed};

#[test]
fn grant_lists_only_profiles_that_the_tenant_may_use() {
    let gpus = json!([
        {"profile": "mig-1g", "count": 8}, {"profile": "gpu", "count": 2}, {"profile": "shared", "count": 3}, {"profile": "nope", "count": 1}
    ]);
    let grant = converged(&json!({"gpus": gpus})).grant("a1");
    assert_eq!(grant.tenant, "team-a");
    assert_eq!(
        grant.resources,
        [("nvidia.com/mig-1g.10gb".to_owned(), 8)].into(),
        "too little trust, not served, unknown"
    );
    assert_eq!(grant.profiles.iter().map(|p| (p.name.as_str(), p.budget)).collect::<Vec<_>>(), [("mig-1g", 8)]);
    assert_eq!(grant.pools, ["inference"]);
}

#[test]
fn grant_limits_one_pod_to_the_profile_maximum_and_the_budget() {
    let mut seen = observed(&json!({"gpus": [{"profile": "mig-1g", "count": 3}]}));
    for (max, expected) in [(None, 3), (Some(1), 1), (Some(3), 3), (Some(9), 3)] {
        let mut view = view();
        view.profiles.get_mut("mig-1g").unwrap().contract.max_per_pod = max;
        seen.view = Arc::new(view);
        assert_eq!(seen.grant("a1").resources["nvidia.com/mig-1g.10gb"], expected, "{max:?}");
    }
}

#[test]
fn grant_is_written_before_the_quota() {
    let writes = to_write(&observed(&json!({})));
    for namespace in ["a1", "a2"] {
        let at = |found: &dyn Fn(&Write) -> bool| writes.iter().position(found).unwrap();
        let grant =
            at(&|w| is_apply(w, Managed::Grant) && matches!(w, Write::Apply { namespace: of, .. } if of == namespace));
        let quota = at(&|w| matches!(w, Write::ApplyQuota(q) if q.namespace().as_deref() == Some(namespace)));
        assert!(grant < quota, "{writes:?}");
    }
}

#[test]
fn grant_missing_or_changed_is_written_and_reported() {
    let mut seen = converged(&json!({}));
    assert_eq!(reason(&seen, "PolicyReady").0, "True");
    let mut changed = seen.grant("a1");
    changed.resources.insert("nvidia.com/gpu".into(), 8);
    let changed = serde_json::to_value(render::grant(&seen.tenant, "a1", changed)).unwrap();
    seen.managed.insert((Managed::Grant, "a1".into()), Arc::new(stored(Managed::Grant, changed)));
    seen.managed.remove(&(Managed::Grant, "a2".into()));
    let (status, why, message) = reason(&seen, "PolicyReady");
    assert_eq!((status.as_str(), why.as_str()), ("False", "Applying"));
    assert!(message.contains("namespace a1"), "{message}");
    let writes = to_write(&seen);
    assert!(writes.iter().all(|w| is_apply(w, Managed::Grant)) && writes.len() == 2, "{writes:?}");
    apply_writes(&mut seen, writes);
    assert_eq!(to_write(&seen), []);
    assert_eq!(reason(&seen, "PolicyReady").0, "True");
}

#[test]
fn retained_namespace_is_granted_nothing() {
    let mut seen = converged(&json!({"namespaces": [{"name": "a1"}]}));
    seen.tenant.spec.namespaces = serde_json::from_value(json!([{"name": "b1"}])).unwrap();
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    assert!(["a1", "b1"].iter().all(|ns| seen.managed(Managed::Grant, ns).is_some()));
    assert!(seen.grant("a1").resources.is_empty() && seen.grant("a1").pools.is_empty());
    assert_eq!(seen.grant("b1").resources.len(), 1);
}
