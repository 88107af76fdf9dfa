//! What a grant names, and when it is written.

use std::sync::Arc;

use kube::ResourceExt as _;
use serde_json::json;

use super::{carry_out, decide, observed, reason, render, settled, view};
use crate::{cache::OwnedObject, tenant::decide::Write};

#[test]
fn a_grant_names_each_profile_that_the_tenant_may_use_and_no_other() {
    let gpus = json!([
        {"profile": "mig-1g", "count": 8}, {"profile": "gpu", "count": 2}, {"profile": "shared", "count": 3}, {"profile": "nope", "count": 1}
    ]);
    let grant = settled(&json!({"gpus": gpus})).grant("a1");
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
fn one_pod_may_ask_for_what_the_profile_allows_but_never_for_more_than_the_budget() {
    let mut seen = observed(&json!({"gpus": [{"profile": "mig-1g", "count": 3}]}));
    for (max, expected) in [(None, 3), (Some(1), 1), (Some(3), 3), (Some(9), 3)] {
        let mut view = view();
        view.profiles.get_mut("mig-1g").unwrap().contract.max_per_pod = max;
        seen.view = Arc::new(view);
        assert_eq!(seen.grant("a1").resources["nvidia.com/mig-1g.10gb"], expected, "{max:?}");
    }
}

#[test]
fn every_namespace_has_its_grant_before_its_limits() {
    let writes = decide::writes(&observed(&json!({})));
    for namespace in ["a1", "a2"] {
        let at = |found: &dyn Fn(&Write) -> bool| writes.iter().position(found).unwrap();
        let grant = at(&|w| matches!(w, Write::Grant(g) if g.namespace().as_deref() == Some(namespace)));
        let quota = at(&|w| matches!(w, Write::Quota(q) if q.namespace().as_deref() == Some(namespace)));
        assert!(grant < quota, "{writes:?}");
    }
}

#[test]
fn a_grant_that_is_missing_or_changed_is_written_again_and_said() {
    let mut seen = settled(&json!({}));
    assert_eq!(reason(&seen, "PolicyReady").0, "True");
    let mut changed = seen.grant("a1");
    changed.resources.insert("nvidia.com/gpu".into(), 8);
    seen.grants.insert("a1".into(), Arc::new(OwnedObject::of(&render::grant("team-a", "a1", changed))));
    seen.grants.remove("a2");
    let (status, why, message) = reason(&seen, "PolicyReady");
    assert_eq!((status.as_str(), why.as_str()), ("False", "Applying"));
    assert!(message.contains("namespace a1"), "{message}");
    let writes = decide::writes(&seen);
    assert!(writes.iter().all(|w| matches!(w, Write::Grant(_))) && writes.len() == 2, "{writes:?}");
    carry_out(&mut seen, writes);
    assert_eq!(decide::writes(&seen), []);
    assert_eq!(reason(&seen, "PolicyReady").0, "True");
}

#[test]
fn a_namespace_that_is_dropped_may_use_nothing() {
    let mut seen = settled(&json!({"namespaces": [{"name": "a1"}]}));
    seen.tenant.spec.namespaces = serde_json::from_value(json!([{"name": "b1"}])).unwrap();
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    assert!(seen.has_grant("a1") && seen.has_grant("b1"));
    assert!(seen.grant("a1").resources.is_empty() && seen.grant("a1").pools.is_empty());
    assert_eq!(seen.grant("b1").resources.len(), 1);
}
