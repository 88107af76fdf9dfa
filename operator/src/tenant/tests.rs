//! Decisions about tenants, without a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuTenant, Support, Trust};
use gputenancy_engine::projection::{SlimNamespace, SlimQuota};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    decide::{self, Optional, Write},
    observe::{Observed, Role},
    pull::Pulls,
    refused_controllers::{Refused, RefusedControllers},
    render, status,
    teardown::{self, PATIENCE},
    tenant_role,
    wake_controllers::WakeTarget,
};
use crate::{
    cache::{ApiEndpoint, ControllerRef, OwnedObject, pull::Named},
    fleet_view::{Contract, FleetView, ProfileView, TenantView},
    object_name::ObjectName,
};

mod equivalents;
mod grants;
mod isolation;
mod opinion;
mod pull;
mod weight;

fn tenant(spec: &Value) -> GpuTenant {
    let mut whole = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant",
        "metadata": {"name": "team-a", "uid": "u-1", "generation": 3, "finalizers": ["gputenancy.io/finalizer"]},
        "spec": {"owners": [{"kind": "Group", "name": "team-a"}, {"kind": "ServiceAccount", "name": "ci", "namespace": "ci"}],
                 "trust": "Internal", "namespaces": [{"name": "a1"}, {"name": "a2"}],
                 "gpus": [{"profile": "mig-1g", "count": 8}],
                 "resources": {"requests.memory": "1024Gi", "pods": "20"}, "deletionProtection": false},
    });
    for (key, value) in spec.as_object().unwrap() {
        whole["spec"][key] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

fn view() -> FleetView {
    let profile = |resource: &str, trust| {
        let contract =
            Contract { max_per_pod: None, pools: ["inference".to_owned()].into(), support: Support::default() };
        ProfileView { resource: resource.into(), trust, refused: None, free: 8, contract }
    };
    FleetView {
        complete: true,
        profiles: [
            ("mig-1g".to_owned(), profile("nvidia.com/mig-1g.10gb", Trust::Untrusted)),
            ("gpu".to_owned(), profile("nvidia.com/gpu", Trust::Trusted)),
            (
                "shared".to_owned(),
                ProfileView {
                    refused: Some((gputenancy_crds::reasons::NOT_SERVED, "a later release serves it".into())),
                    ..profile("gputenancy.io/shared", Trust::Internal)
                },
            ),
        ]
        .into(),
        resources: ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "gputenancy.io/shared"].map(str::to_owned).into(),
        tenants: [("team-a".into(), TenantView { generation: Some(3), shortages: Box::default() })].into(),
        ..FleetView::default()
    }
}

/// As the chart has it, but shorter.
const STANDARD: &str = r#"{
    "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}],
    "defaultRequests": {"cpu": "100m", "memory": "256Mi"},
    "defaultResources": {"services.nodeports": "0"}
}"#;

fn endpoint(address: &str, port: i32) -> ApiEndpoint {
    ApiEndpoint { addresses: [address.parse().unwrap()].into(), ports: [port].into() }
}

fn observed(spec: &Value) -> Observed {
    Observed {
        tenant: tenant(spec),
        namespaces: BTreeMap::new(),
        quotas: BTreeMap::new(),
        bindings: BTreeMap::new(),
        viewers: BTreeMap::new(),
        networks: BTreeMap::new(),
        limits: BTreeMap::new(),
        classes: BTreeMap::new(),
        pulls: Pulls::default(),
        standard: Arc::new(STANDARD.parse().unwrap()),
        api_endpoints: [("10.0.0.5", 6443), ("10.96.0.1", 443)].map(|(at, port)| endpoint(at, port)).into(),
        home: "gputenancy-system".into(),
        firm: BTreeSet::new(),
        unsteady: BTreeSet::new(),
        counted: BTreeMap::new(),
        unseen: BTreeSet::new(),
        refused: RefusedControllers::default(),
        grants: BTreeMap::new(),
        view: Arc::new(view()),
        now: Timestamp::UNIX_EPOCH,
    }
}

/// Carries out writes as an API server and a quota controller would.
fn carry_out(seen: &mut Observed, writes: Vec<Write>) {
    for write in writes {
        match write {
            Write::Create(ns) => {
                let slim: SlimNamespace = serde_json::from_value(serde_json::to_value(*ns).unwrap()).unwrap();
                assert!(seen.namespaces.insert(slim.name_any(), Arc::new(slim)).is_none(), "created, never adopted");
            }
            Write::Adopt(namespace) => {
                let mut slim = (*seen.namespaces[&namespace.name_any()]).clone();
                assert_eq!(slim.metadata.resource_version, namespace.metadata.resource_version);
                slim.labels_mut().extend(namespace.metadata.labels.unwrap());
                seen.namespaces.insert(slim.name_any(), Arc::new(slim));
            }
            Write::Network(policy) => {
                seen.networks.insert(policy.namespace().unwrap(), Arc::new(OwnedObject::of(&*policy)));
            }
            Write::Limits(limits) => {
                seen.limits.insert(limits.namespace().unwrap(), Arc::new(OwnedObject::of(&*limits)));
            }
            Write::Classes(quota) => {
                let slim: SlimQuota = serde_json::from_value(serde_json::to_value(*quota).unwrap()).unwrap();
                seen.classes.insert(slim.namespace().unwrap(), Arc::new(slim));
            }
            Write::Remove { what, namespace } => {
                let gone = match what {
                    Optional::Classes => seen.classes.remove(&namespace).is_some(),
                    Optional::Network => seen.networks.remove(&namespace).is_some(),
                    Optional::Limits => seen.limits.remove(&namespace).is_some(),
                    Optional::Owners => seen.bindings.remove(&namespace).is_some(),
                    Optional::Viewers => seen.viewers.remove(&namespace).is_some(),
                };
                assert!(gone, "only what is there is removed");
            }
            Write::Label { namespace, .. } => {
                let mut slim = (*seen.namespaces[&namespace.name_any()]).clone();
                slim.metadata.labels = namespace.metadata.labels;
                slim.metadata.annotations = namespace.metadata.annotations;
                seen.namespaces.insert(slim.name_any(), Arc::new(slim));
            }
            Write::Grant(grant) => {
                _ = seen.grants.insert(grant.namespace().unwrap(), Arc::new(OwnedObject::of(&*grant)));
            }
            Write::Quota(quota) => {
                let mut slim: SlimQuota = serde_json::from_value(serde_json::to_value(*quota).unwrap()).unwrap();
                slim.status.hard = slim.spec.hard.clone();
                seen.firm.insert(slim.namespace().unwrap());
                seen.quotas.insert(slim.namespace().unwrap(), Arc::new(slim));
            }
            Write::Binding { binding, .. } => {
                let all = if binding.name_any() == render::VIEWERS { &mut seen.viewers } else { &mut seen.bindings };
                all.insert(binding.namespace().unwrap(), Arc::new(OwnedObject::of(&*binding)));
            }
            Write::Pull(copy) => {
                let secret = serde_json::to_value(render::pull_secret("team-a", &copy)).unwrap();
                seen.pulls
                    .secrets
                    .insert((copy.namespace, copy.name), Arc::new(serde_json::from_value(secret).unwrap()));
            }
            Write::Account(account) => {
                let mut slim = (*seen.pulls.accounts[&account.namespace]).clone();
                assert_eq!(slim.metadata.resource_version, account.version);
                slim.image_pull_secrets = account.names.into_iter().map(|name| Named { name }).collect();
                seen.pulls.accounts.insert(account.namespace, Arc::new(slim));
            }
            Write::Unpull { namespace, name, .. } => {
                assert!(seen.pulls.secrets.remove(&(namespace, name)).is_some(), "only what is there is removed");
            }
            Write::Revoke(namespace) => _ = seen.grants.remove(&namespace),
            Write::Delete { namespace, .. } => {
                seen.namespaces.remove(&namespace);
            }
            Write::Release { namespace, .. } => {
                let mut slim = (*seen.namespaces[&namespace]).clone();
                slim.metadata.labels = None;
                seen.namespaces.insert(namespace, Arc::new(slim));
            }
            Write::Wake(wake) => seen.refused.woken(&wake),
            Write::Finish(_) => seen.tenant.metadata.finalizers = None,
        }
    }
}

fn settled(spec: &Value) -> Observed {
    let mut seen = observed(spec);
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    seen
}

fn reason(seen: &Observed, type_: &str) -> (String, String, String) {
    let status = status::status(seen, None);
    let found = status.conditions.into_iter().find(|c| c.type_ == type_).unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn a_tenant_becomes_all_that_its_namespaces_get() {
    let viewers = json!([{"kind": "User", "name": "auditor"}]);
    let writes = decide::writes(&observed(&json!({"viewers": viewers, "namespaces": [{"name": "a1"}]})));
    let objects: Vec<Value> = writes
        .into_iter()
        .map(|write| match write {
            Write::Create(o) => serde_json::to_value(o).unwrap(),
            Write::Network(o) => serde_json::to_value(o).unwrap(),
            Write::Limits(o) => serde_json::to_value(o).unwrap(),
            Write::Grant(o) => serde_json::to_value(o).unwrap(),
            Write::Quota(o) => serde_json::to_value(o).unwrap(),
            Write::Binding { binding, anew: false } => serde_json::to_value(binding).unwrap(),
            other => panic!("not expected for a new tenant: {other:?}"),
        })
        .collect();
    insta::assert_yaml_snapshot!(objects);
}

#[test]
fn a_settled_tenant_is_ready_and_nothing_is_written() {
    let seen = settled(&json!({}));
    assert_eq!(decide::writes(&seen), []);
    assert_eq!(reason(&seen, "Ready"), ("True".into(), "Ready".into(), "8 guaranteed devices, all available".into()));
    let mut again = seen.clone();
    again.tenant.status = Some(status::status(&seen, None));
    again.now = Timestamp::MAX;
    assert_eq!(again.tenant.status.clone().unwrap(), status::status(&again, None), "time alone changes no status");
}

#[test]
fn drift_is_repaired_and_only_drift() {
    let mut seen = settled(&json!({}));
    let mut quota = (*seen.quotas["a1"]).clone();
    quota
        .spec
        .hard
        .insert("requests.nvidia.com/gpu".into(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("99".into()));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    seen.bindings.remove("a2");
    let writes = decide::writes(&seen);
    assert!(
        matches!(writes.as_slice(), [Write::Quota(q), Write::Binding { binding, anew: false }]
        if q.namespace().as_deref() == Some("a1") && binding.namespace().as_deref() == Some("a2")),
        "{writes:?}"
    );
}

#[test]
fn a_foreign_namespace_is_left_alone_and_named() {
    let mut seen = observed(&json!({}));
    let foreign = SlimNamespace {
        metadata: kube::api::ObjectMeta { name: Some("a2".into()), ..Default::default() },
        ..Default::default()
    };
    seen.namespaces.insert("a2".into(), Arc::new(foreign));
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    assert!(seen.namespaces["a2"].labels().is_empty() && !seen.quotas.contains_key("a2"));
    let (_, reason_, message) = reason(&seen, "Ready");
    assert_eq!(reason_, "NamespaceForeign");
    assert!(message.contains("a2 exists and is not of any tenant: say adopt: true beside its name"), "{message}");
}

#[test]
fn unknown_untrusted_and_unserved_profiles_are_refused_by_name_and_granted_nothing() {
    for (profile, expected) in [("nope", "ProfileNotFound"), ("gpu", "TrustTooLow"), ("shared", "NotServed")] {
        let seen = settled(&json!({"gpus": [{"profile": profile, "count": 4}]}));
        let (_, found, message) = reason(&seen, "Stalled");
        assert_eq!(found, expected, "{message}");
        let zero = seen.quotas["a1"].spec.hard.iter().filter(|(k, _)| k.contains('/')).all(|(_, q)| q.0 == "0");
        assert!(zero, "{profile}");
    }
}

#[test]
fn a_namespace_that_is_dropped_keeps_its_data_and_loses_its_devices_before_others_get_them() {
    let mut seen = settled(&json!({"namespaces": [{"name": "a1"}]}));
    seen.tenant.spec.namespaces = serde_json::from_value(json!([{"name": "b1"}])).unwrap();
    assert_eq!(seen.roles(), [("b1".into(), Role::Missing), ("a1".into(), Role::Retained)]);
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    let key = "requests.nvidia.com/mig-1g.10gb";
    assert_eq!(seen.quotas["a1"].spec.hard[key].0, "0");
    assert_eq!(seen.quotas["b1"].spec.hard[key].0, "0", "the old limit was still in force");
    assert_eq!(seen.namespaces["a1"].labels()[render::RETAINED_FROM], "team-a");
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    assert_eq!(seen.quotas["b1"].spec.hard[key].0, "8");
    assert_eq!(decide::writes(&seen), []);
}

#[test]
fn a_profile_that_leaves_the_catalog_stays_limited_to_zero() {
    let mut seen = settled(&json!({}));
    seen.view = Arc::new(FleetView { profiles: BTreeMap::new(), resources: FleetView::empty().resources, ..view() });
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    assert_eq!(seen.quotas["a1"].spec.hard["requests.nvidia.com/mig-1g.10gb"].0, "0");
}

#[test]
fn a_shortage_is_told_in_the_plans_words() {
    let mut seen = settled(&json!({}));
    let mut view = view();
    view.tenants.get_mut("team-a").unwrap().shortages = ["tenant team-a gets 5 of 8".into()].into();
    seen.view = Arc::new(view);
    assert_eq!(reason(&seen, "CapacityReady"), ("False".into(), "Shortage".into(), "tenant team-a gets 5 of 8".into()));
    assert_eq!(reason(&seen, "Stalled").0, "True");
}

const MIG: &str = "requests.nvidia.com/mig-1g.10gb";

fn uses(seen: &mut Observed, namespace: &str, devices: i32) {
    let mut quota = (*seen.quotas[namespace]).clone();
    let used = k8s_openapi::apimachinery::pkg::api::resource::Quantity(devices.to_string());
    quota.status.used.insert(MIG.into(), used);
    seen.quotas.insert(namespace.into(), Arc::new(quota));
}

/// Carries out what is decided until nothing is; what is used stays.
fn settle(seen: &mut Observed) {
    for _ in 0..9 {
        let used: Vec<_> = seen.quotas.iter().map(|(ns, q)| (ns.clone(), q.status.used.clone())).collect();
        let writes = decide::writes(seen);
        if writes.is_empty() {
            return;
        }
        carry_out(seen, writes);
        for (namespace, used) in used {
            let mut quota = (*seen.quotas[&namespace]).clone();
            quota.status.used = used;
            seen.quotas.insert(namespace, Arc::new(quota));
        }
    }
    panic!("it never comes to rest");
}

fn hard(seen: &Observed) -> Vec<&str> {
    seen.quotas.values().map(|q| q.spec.hard[MIG].0.as_str()).collect()
}

#[test]
fn a_budget_below_use_stops_nothing_admits_nothing_and_says_by_how_much() {
    let mut seen = settled(&json!({}));
    uses(&mut seen, "a1", 4);
    uses(&mut seen, "a2", 1);
    seen.tenant.spec.gpus[0].count = 3;
    settle(&mut seen);
    assert_eq!(hard(&seen), ["2", "0"]);
    let (_, found, message) = reason(&seen, "Stalled");
    assert_eq!(found, "OverBudget");
    assert!(message.contains("over budget: requests.nvidia.com/mig-1g.10gb by 2 over 3"), "{message}");
    seen.tenant.spec.gpus[0].count = 6;
    settle(&mut seen);
    assert_eq!(hard(&seen), ["5", "1"]);
    assert_eq!(reason(&seen, "QuotaReady").1, "InForce");
}

#[test]
fn what_the_platform_limits_for_all_holds_until_a_tenant_names_it() {
    let key = "services.nodeports";
    let mut seen = settled(&json!({}));
    assert_eq!(["a1", "a2"].map(|ns| seen.quotas[ns].spec.hard[key].0.as_str()), ["0", "0"]);
    let amount = |n: &str| k8s_openapi::apimachinery::pkg::api::resource::Quantity(n.into());
    seen.tenant.spec.resources.insert(key.into(), amount("4"));
    settle(&mut seen);
    assert_eq!(["a1", "a2"].map(|ns| seen.quotas[ns].spec.hard[key].0.as_str()), ["2", "2"]);
    // no longer named, and in use: nothing is stopped, and it is said
    let mut quota = (*seen.quotas["a1"]).clone();
    quota.status.used.insert(key.into(), amount("1"));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    seen.tenant.spec.resources.remove(key);
    settle(&mut seen);
    let (_, found, message) = reason(&seen, "QuotaReady");
    assert_eq!(found, "OverBudget");
    assert!(message.contains("services.nodeports by 1 over 0"), "{message}");
}

#[test]
fn a_suspended_tenant_admits_nothing_says_so_and_comes_back() {
    let mut seen = settled(&json!({}));
    uses(&mut seen, "a1", 2);
    seen.tenant.spec.suspend = true;
    settle(&mut seen);
    assert_eq!(hard(&seen), ["0", "0"]);
    assert_eq!(reason(&seen, "Suspended").0, "True");
    assert_eq!(reason(&seen, "QuotaReady").1, "Suspended");
    assert_eq!(reason(&seen, "Ready").0, "True");
    seen.tenant.spec.suspend = false;
    settle(&mut seen);
    assert_eq!(hard(&seen), ["5", "3"]);
    assert!(status::status(&seen, None).conditions.iter().all(|c| c.type_ != "Suspended"));
}

fn refused(seen: &Observed, key: &str, units: i64) -> Refused {
    let amounts = [(key.to_owned(), super::Amount::units(units))].into();
    let name = ObjectName::parse("web-5c").unwrap();
    let controller = ControllerRef { api_version: "apps/v1".into(), kind: "ReplicaSet".into(), name };
    let target = WakeTarget::of(&controller);
    Refused { namespace: "a1".into(), uid: "rs".into(), target, version: 1, at: seen.now, amounts, newest_pod: None }
}

fn observe_refusal(seen: &mut Observed, refused: &Refused) {
    let before = std::mem::take(&mut seen.refused);
    seen.refused = before.update(std::slice::from_ref(refused), &seen.quota_states(), seen.now).0;
}

#[test]
fn refused_controller_gets_headroom_and_is_counted_while_it_waits() {
    let mut seen = settled(&json!({}));
    uses(&mut seen, "a1", 4);
    let refused = refused(&seen, MIG, 3);
    observe_refusal(&mut seen, &refused);
    assert_eq!(status::status(&seen, None).gpus[0].waiting, 0, "not at once");
    seen.now += status::SHOWN_AFTER;
    assert_eq!(status::status(&seen, None).gpus[0].waiting, 1);
    settle(&mut seen);
    assert_eq!(hard(&seen), ["7", "1"]);
}

#[test]
fn refused_controller_with_a_later_pod_is_not_counted() {
    let mut seen = settled(&json!({}));
    for namespace in ["a1", "a2"] {
        uses(&mut seen, namespace, 4);
    }
    let mut refused = refused(&seen, MIG, 1);
    observe_refusal(&mut seen, &refused);
    seen.now += status::SHOWN_AFTER;
    assert_eq!(status::status(&seen, None).gpus[0].waiting, 1);
    refused.newest_pod = Some(seen.now);
    observe_refusal(&mut seen, &refused);
    assert_eq!(status::status(&seen, None).gpus[0].waiting, 0);
}

#[test]
fn refused_controller_that_does_not_use_its_headroom_is_woken_once() {
    let mut seen = settled(&json!({}));
    let refused = refused(&seen, MIG, 1);
    observe_refusal(&mut seen, &refused);
    assert_eq!(decide::writes(&seen), [], "it may retry by itself");
    seen.now = seen.refused.next_deadline(seen.now, status::SHOWN_AFTER).unwrap();
    observe_refusal(&mut seen, &refused);
    let writes = decide::writes(&seen);
    let [Write::Wake(wake)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((wake.namespace.as_str(), wake.target.to_string().as_str()), ("a1", "ReplicaSet web-5c"));
    seen.refused.woken(wake);
    assert_eq!(decide::writes(&seen), []);
}

#[test]
fn a_limit_waits_for_others_that_have_just_come_down_and_pods_that_are_there_count() {
    let mut seen = settled(&json!({}));
    uses(&mut seen, "a1", 4);
    let writes = decide::writes(&seen);
    carry_out(&mut seen, writes);
    uses(&mut seen, "a1", 4);
    assert_eq!(hard(&seen), ["4", "2"]);
    seen.unsteady.insert("a2".into());
    assert_eq!((decide::writes(&seen), seen.decide_quotas().1.waits_for_count), (vec![], true));
    seen.unsteady.clear();
    seen.counted.insert("a2".into(), [(MIG.to_owned(), super::Amount::units(3))].into());
    settle(&mut seen);
    assert_eq!(hard(&seen), ["5", "3"], "one pod more than the quota has counted");
}

#[test]
fn a_write_of_a_quota_says_what_it_was_decided_on() {
    let mut seen = settled(&json!({}));
    let mut quota = (*seen.quotas["a1"]).clone();
    quota.metadata.resource_version = Some("41".into());
    quota.metadata.uid = Some("u-2".into());
    quota.spec.hard.insert(MIG.into(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("9".into()));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    let writes = decide::writes(&seen);
    let [Write::Quota(write)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((write.metadata.resource_version.as_deref(), write.metadata.uid.as_deref()), (Some("41"), Some("u-2")));
}

#[test]
fn a_namespace_that_was_written_and_is_not_seen_yet_is_made_no_plans_with() {
    let mut seen = settled(&json!({}));
    seen.namespaces.remove("a2");
    seen.quotas.remove("a2");
    seen.unseen.insert("a2".into());
    uses(&mut seen, "a1", 4);
    let quotas: Vec<_> = decide::writes(&seen).into_iter().filter(|w| matches!(w, Write::Quota(_))).collect();
    let [Write::Quota(only)] = quotas.as_slice() else { panic!("{quotas:?}") };
    assert_eq!(only.spec.as_ref().unwrap().hard.as_ref().unwrap()[MIG].0, "0");
}

fn deleted(mut seen: Observed, ago: i64) -> Observed {
    let now = Timestamp::from_second(1_000_000).unwrap();
    seen.now = now;
    let at = Timestamp::from_second(1_000_000 - ago).unwrap();
    seen.tenant.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
    seen
}

#[test]
fn deletion_takes_the_namespaces_that_were_made_for_the_tenant_and_releases_others() {
    let mut seen = settled(&json!({}));
    let mut adopted = (*seen.namespaces["a2"]).clone();
    adopted.metadata.annotations = None;
    seen.namespaces.insert("a2".into(), Arc::new(adopted));
    let mut seen = deleted(seen, 0);
    let writes = teardown::writes(&seen);
    assert_eq!(
        writes,
        [Write::Revoke("a1".into()), Write::Release { namespace: "a2".into(), made: false }],
        "nothing new is admitted any more"
    );
    carry_out(&mut seen, writes);
    let writes = teardown::writes(&seen);
    assert!(matches!(writes.as_slice(), [Write::Delete { namespace, .. }] if namespace == "a1"), "{writes:?}");
    carry_out(&mut seen, writes);
    assert_eq!(teardown::writes(&seen), [Write::Finish(None)]);
}

#[test]
fn deletion_never_hangs_for_ever_and_names_what_blocks() {
    let mut seen = settled(&json!({"namespaces": [{"name": "a1"}]}));
    let mut going = (*seen.namespaces["a1"]).clone();
    going.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    going.status.conditions = serde_json::from_value(json!([{"type": "NamespaceFinalizersRemaining", "status": "True", "message": "Some content has finalizers remaining: example.com/keep"}])).unwrap();
    seen.namespaces.insert("a1".into(), Arc::new(going));
    let mut early = deleted(seen.clone(), PATIENCE.as_secs() - 1);
    assert_eq!(teardown::writes(&early), [Write::Revoke("a1".into())], "its controller may not know of grants");
    carry_out(&mut early, vec![Write::Revoke("a1".into())]);
    assert_eq!(teardown::writes(&early), []);
    assert!(reason(&early, "Reconciling").2.contains("example.com/keep"));
    let late = deleted(Observed { grants: BTreeMap::new(), ..seen }, PATIENCE.as_secs());
    assert_eq!(reason(&late, "Stalled").1, "DeletionBlocked");
    assert!(
        matches!(teardown::writes(&late).as_slice(), [Write::Finish(Some(note))] if note.contains("example.com/keep"))
    );
}

#[test]
fn a_protected_tenant_is_not_torn_down() {
    let seen = deleted(settled(&json!({"deletionProtection": true})), 10_000);
    assert_eq!(teardown::writes(&seen), []);
    assert_eq!(reason(&seen, "Stalled").1, "DeletionProtected");
}
