//! Tests of tenants with a virtual cluster: rights of its controller, network policy, condition, deletion.

use std::sync::Arc;

use gputenancy_crds::Price;
use serde_json::{Value, json};

use super::{apply_writes, is_apply, observed, reason, render, status_of, teardown, to_write};
use crate::tenant::{
    decide::{desired, write::Write},
    observe::{Observed, managed::Managed},
};

fn spec() -> Value {
    json!({"namespaces": [{"name": "a1"}], "virtualCluster": {"version": "0.36.1"}})
}

fn converged() -> Observed {
    let mut seen = observed(&spec());
    seen.virtual_clusters = true;
    for _ in 0..3 {
        let writes = to_write(&seen);
        apply_writes(&mut seen, writes);
    }
    assert_eq!(to_write(&seen), []);
    seen
}

fn reported(seen: &mut Observed, generation: i64, status: &str, why: &str) {
    let generation_now = seen.tenant.metadata.generation;
    let condition = json!({"type": "Ready", "status": status, "reason": why, "message": "as reported", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let report = json!({"virtualCluster": {"observedGeneration": generation, "conditions": [condition]}});
    seen.tenant.status = Some(serde_json::from_value(report).unwrap());
    assert_eq!(generation_now, Some(3));
}

#[test]
fn controller_gets_its_rights_in_the_namespace_and_its_way_through_the_network() {
    let seen = converged();
    assert!(seen.managed(Managed::VirtualCluster, "a1").is_some());
    let binding = serde_json::to_value(render::virtual_cluster(&seen.tenant, "a1", "gputenancy-system")).unwrap();
    assert_eq!(binding["roleRef"]["name"], "gputenancy:virtual-clusters");
    assert_eq!(
        (&binding["subjects"][0]["kind"], &binding["subjects"][0]["namespace"]),
        (&json!("ServiceAccount"), &json!("gputenancy-system"))
    );
    let policy = serde_json::to_value(desired::network_policy(&seen, "a1").unwrap()).unwrap();
    let rule = &policy["spec"]["ingress"][1];
    assert_eq!(rule["ports"][0]["port"], 8443, "{policy}");
    assert_eq!(rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "gputenancy-system");
    assert_eq!(rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], "gputenancy-virtual-clusters");
}

#[test]
fn grant_names_the_syncer_only_where_a_virtual_cluster_is() {
    let mut seen = converged();
    assert!(seen.grant("a1").virtual_cluster);
    seen.tenant.spec.virtual_cluster = None;
    assert!(!seen.grant("a1").virtual_cluster, "the field is gone, and so is the virtual cluster");
    let mut plain = converged();
    plain.virtual_clusters = false;
    assert!(!plain.grant("a1").virtual_cluster, "no controller serves virtual clusters");
}

#[test]
fn rights_go_with_the_field_and_stay_while_the_virtual_cluster_is_deleted() {
    let mut seen = converged();
    seen.tenant.spec.virtual_cluster = None;
    seen.tenant.metadata.finalizers = Some(vec!["gputenancy.io/virtual-cluster".into()]);
    assert_eq!(to_write(&seen), [], "its controller still needs them");
    seen.tenant.metadata.finalizers = None;
    let writes = to_write(&seen);
    assert!(writes.iter().any(|w| matches!(w, Write::Delete { kind: Managed::VirtualCluster, .. })), "{writes:?}");
    assert!(writes.iter().any(|w| is_apply(w, Managed::NetworkPolicy)), "{writes:?}");
}

#[test]
fn tenant_is_ready_with_its_virtual_cluster() {
    let mut seen = converged();
    assert_eq!(reason(&seen, "VirtualClusterReady").1, "VirtualClusterPending");
    reported(&mut seen, 3, "True", "Ready");
    assert_eq!(reason(&seen, "VirtualClusterReady").0, "True");
    assert_eq!(reason(&seen, "Ready").0, "True");
    reported(&mut seen, 2, "True", "Ready");
    assert_eq!(reason(&seen, "VirtualClusterReady").1, "VirtualClusterPending", "of an earlier generation");
    reported(&mut seen, 3, "False", "ValuesRefused");
    assert_eq!(reason(&seen, "Ready").1, "ValuesRefused");
    assert_eq!(reason(&seen, "Stalled").0, "True");
    seen.virtual_clusters = false;
    assert_eq!(reason(&seen, "Ready").1, "VirtualClustersDisabled");
}

#[test]
fn namespace_waits_for_the_deletion_of_the_virtual_cluster() {
    let mut seen = converged();
    seen.tenant.spec.deletion_protection = false;
    seen.tenant.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seen.now));
    seen.tenant.metadata.finalizers = Some(vec!["gputenancy.io/virtual-cluster".into()]);
    assert_eq!(to_write(&seen), []);
    seen.managed.remove(&(Managed::VirtualCluster, "a1".into()));
    let writes = to_write(&seen);
    assert!(matches!(writes.as_slice(), [w] if is_apply(w, Managed::VirtualCluster)), "{writes:?}");
    seen.now += teardown::VIRTUAL_CLUSTER_WAIT;
    assert!(to_write(&seen).iter().all(|w| !is_apply(w, Managed::VirtualCluster)), "bounded in time");
    // the time under protection does not count
    let protected = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "DeletionProtected", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}]});
    seen.tenant.status = Some(serde_json::from_value(protected).unwrap());
    assert!(to_write(&seen).iter().any(|w| is_apply(w, Managed::VirtualCluster)));
    let begun = json!({"virtualCluster": {"deletingSince": "1970-01-01T00:14:00Z"}});
    seen.tenant.status = Some(serde_json::from_value(begun).unwrap());
    assert!(to_write(&seen).iter().any(|w| is_apply(w, Managed::VirtualCluster)), "as its controller reports");
    seen.tenant.status = None;
    seen.now -= teardown::VIRTUAL_CLUSTER_WAIT;
    seen.tenant.metadata.finalizers = None;
    assert_ne!(to_write(&seen), []);
}

#[test]
fn status_carries_the_price_for_the_catalog_inside() {
    let mut seen = observed(&json!({"gpus": [{"profile": "mig-1g", "count": 2}, {"profile": "gone", "count": 1}]}));
    let price = Price { per_hour: "0.51".into(), currency: "USD".into() };
    let view = Arc::make_mut(&mut seen.view);
    view.profiles.get_mut("mig-1g").unwrap().contract.price = Some(price.clone());
    let prices: Vec<_> = status_of(&seen, None).gpus.into_iter().map(|gpu| gpu.price).collect();
    assert_eq!(prices, [Some(price), None]);
}

#[test]
fn pods_that_the_quota_refuses_inside_wait() {
    let mut seen = observed(&json!({
        "namespaces": [{"name": "a1"}], "gpus": [{"profile": "mig-1g", "count": 2}], "virtualCluster": {"version": "0.36.1"},
    }));
    seen.virtual_clusters = true;
    let refused = json!([{"profile": "mig-1g", "count": 3}, {"profile": "other", "count": 5}, {"profile": "mig-1g", "count": -9}]);
    let report = |refused: &Value| serde_json::from_value(json!({"virtualCluster": {"refused": refused}})).unwrap();
    seen.tenant.status = Some(report(&refused));
    let waiting = |seen: &Observed| status_of(seen, None).gpus[0].waiting;
    assert_eq!(waiting(&seen), 3);
    seen.virtual_clusters = false;
    assert_eq!(waiting(&seen), 0, "no controller serves virtual clusters");
    seen.virtual_clusters = true;
    seen.tenant.spec.virtual_cluster = None;
    assert_eq!(waiting(&seen), 0, "the virtual cluster is being deleted");
}
