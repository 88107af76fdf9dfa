//! Tests of decisions about tenants, without a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_cluster::desired::OwnedObject;
use gputenancy_crds::{
    GpuGrant, GpuTenant, GpuTenantStatus, Trust,
    projection::{SlimNamespace, SlimQuota},
};
use gputenancy_decisions::fleet_view::{Contract, FleetView, ProfileView, TenantView};
use k8s_openapi::{
    api::{
        core::v1::LimitRange,
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    decide::{
        decide,
        roles::{Role, Roles},
        teardown::{self, MAX_WAIT},
        write::Write,
    },
    observe::{
        Observed, PullSecrets,
        managed::Managed,
        refused_controllers::{Refused, RefusedControllers},
        wake_controllers::WakeTarget,
    },
    render::{self, tenant_role},
    status,
};
use crate::{
    cache::{ApiEndpoint, ControllerRef, pull::Named},
    object_name::ObjectName,
};

mod capacity;
mod deletion;
mod earlier_access;
mod equivalents;
mod grants;
mod isolation;
mod memory;
mod memory_limit;
mod namespaces;
mod pull_secrets;
mod reachability;
mod sharing;
mod tenant_roles;
mod virtual_cluster;

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
        let contract = Contract { pools: ["inference".to_owned()].into(), ..Contract::default() };
        ProfileView { resource: resource.into(), trust, sharing: None, refused: None, free: 8, contract }
    };
    FleetView {
        complete: true,
        profiles: [
            ("mig-1g".to_owned(), profile("nvidia.com/mig-1g.10gb", Trust::Untrusted)),
            ("gpu".to_owned(), profile("nvidia.com/gpu", Trust::Trusted)),
            (
                "shared".to_owned(),
                ProfileView {
                    refused: Some((gputenancy_crds::reasons::RESOURCE_NAME_CONFLICT, "another profile has it".into())),
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

/// A shorter form of the chart's.
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
        managed: BTreeMap::new(),
        pull_secrets: PullSecrets::default(),
        standard: Arc::new(STANDARD.parse().unwrap()),
        virtual_clusters: false,
        readable: false,
        api_endpoints: [("10.0.0.5", 6443), ("10.96.0.1", 443)].map(|(at, port)| endpoint(at, port)).into(),
        operator_namespace: "gputenancy-system".into(),
        fenced: BTreeSet::new(),
        recently_lowered: BTreeSet::new(),
        requested: BTreeMap::new(),
        uncached: BTreeSet::new(),
        foreign_access: BTreeMap::new(),
        refused: RefusedControllers::default(),
        windows: BTreeMap::new(),
        policy_in_force: false,
        view: Arc::new(view()),
        queues: Arc::default(),
        now: Timestamp::UNIX_EPOCH,
    }
}

/// A managed object as the cache has it.
fn stored(kind: Managed, object: Value) -> OwnedObject {
    match kind {
        Managed::NetworkPolicy => OwnedObject::of(&serde_json::from_value::<NetworkPolicy>(object).unwrap()),
        Managed::LimitRange => OwnedObject::of(&serde_json::from_value::<LimitRange>(object).unwrap()),
        Managed::PriorityClassQuota | Managed::PodAffinityQuota | Managed::Quota => {
            OwnedObject::of(&serde_json::from_value::<SlimQuota>(object).unwrap())
        }
        Managed::Grant => OwnedObject::of(&serde_json::from_value::<GpuGrant>(object).unwrap()),
        Managed::Owners | Managed::Viewers | Managed::VirtualCluster => {
            OwnedObject::of(&serde_json::from_value::<RoleBinding>(object).unwrap())
        }
        Managed::TenantRole => OwnedObject::of(&serde_json::from_value::<ClusterRole>(object).unwrap()),
        Managed::TenantRoleBinding => OwnedObject::of(&serde_json::from_value::<ClusterRoleBinding>(object).unwrap()),
    }
}

fn is_apply(write: &Write, wanted: Managed) -> bool {
    matches!(write, Write::Apply { kind, .. } if *kind == wanted)
}

/// Applies writes as an API server and a quota controller would.
fn apply_writes(seen: &mut Observed, writes: Vec<Write>) {
    for write in writes {
        match write {
            Write::CreateNamespace(ns) => {
                let slim: SlimNamespace = serde_json::from_value(serde_json::to_value(*ns).unwrap()).unwrap();
                assert!(seen.namespaces.insert(slim.name_any(), Arc::new(slim)).is_none(), "created, never adopted");
            }
            Write::AdoptNamespace(namespace) => {
                let mut slim = (*seen.namespaces[&namespace.name_any()]).clone();
                assert_eq!(slim.metadata.resource_version, namespace.metadata.resource_version);
                slim.labels_mut().extend(namespace.metadata.labels.unwrap());
                seen.namespaces.insert(slim.name_any(), Arc::new(slim));
            }
            Write::Apply { kind, namespace, object, recreate: _ } => {
                seen.managed.insert((kind, namespace), Arc::new(stored(kind, object)));
            }
            Write::Delete { kind, namespace } => {
                assert!(seen.managed.remove(&(kind, namespace)).is_some(), "only existing objects are deleted");
            }
            Write::LabelNamespace { namespace, .. } => {
                let mut slim = (*seen.namespaces[&namespace.name_any()]).clone();
                slim.metadata.labels = namespace.metadata.labels;
                slim.metadata.annotations = namespace.metadata.annotations;
                seen.namespaces.insert(slim.name_any(), Arc::new(slim));
            }
            Write::ApplyQuota(quota) => {
                let mut slim: SlimQuota = serde_json::from_value(serde_json::to_value(*quota).unwrap()).unwrap();
                slim.status.hard = slim.spec.hard.clone();
                seen.fenced.insert(slim.namespace().unwrap());
                seen.quotas.insert(slim.namespace().unwrap(), Arc::new(slim));
            }
            Write::ApplyPullSecret(copy) => {
                let secret = serde_json::to_value(super::decide::pull_secrets::secret(&seen.tenant, &copy)).unwrap();
                seen.pull_secrets
                    .secrets
                    .insert((copy.namespace, copy.name), Arc::new(serde_json::from_value(secret).unwrap()));
            }
            Write::SetPullSecrets(account) => {
                let mut slim = (*seen.pull_secrets.accounts[&account.namespace]).clone();
                assert_eq!(slim.metadata.resource_version, account.version);
                slim.image_pull_secrets = account.names.into_iter().map(|name| Named { name }).collect();
                seen.pull_secrets.accounts.insert(account.namespace, Arc::new(slim));
            }
            Write::DeletePullSecret { namespace, name, .. } => {
                assert!(
                    seen.pull_secrets.secrets.remove(&(namespace, name)).is_some(),
                    "only existing objects are deleted"
                );
            }
            Write::DeleteNamespace { namespace, .. } => {
                seen.namespaces.remove(&namespace);
            }
            Write::ReleaseNamespace { namespace, .. } => {
                let mut slim = (*seen.namespaces[&namespace]).clone();
                slim.metadata.labels = None;
                seen.namespaces.insert(namespace, Arc::new(slim));
            }
            Write::Wake(wake) => seen.refused.woken(&wake),
            Write::RemoveFinalizer(_) => seen.tenant.metadata.finalizers = None,
        }
    }
}

/// What is decided to be written.
fn to_write(seen: &Observed) -> Vec<Write> {
    decide(seen).writes
}

fn status_of(seen: &Observed, failed: Option<&str>) -> GpuTenantStatus {
    status::status(seen, &decide(seen), failed)
}

fn roles(seen: &Observed) -> Vec<(String, Role)> {
    Roles::of(seen).iter().map(|(name, role)| (name.to_owned(), role)).collect()
}

fn converged(spec: &Value) -> Observed {
    let mut seen = observed(spec);
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    seen
}

fn reason(seen: &Observed, type_: &str) -> (String, String, String) {
    let status = status_of(seen, None);
    let found = status.conditions.into_iter().find(|c| c.type_ == type_).unwrap();
    (found.status, found.reason, found.message)
}

#[test]
fn new_tenant_gets_all_managed_objects() {
    let viewers = json!([{"kind": "User", "name": "auditor"}]);
    let writes = to_write(&observed(&json!({"viewers": viewers, "namespaces": [{"name": "a1"}]})));
    let object = |write| match write {
        Write::CreateNamespace(o) => serde_json::to_value(o).unwrap(),
        Write::ApplyQuota(o) => serde_json::to_value(o).unwrap(),
        Write::Apply { object, recreate: false, .. } => object,
        other => panic!("not expected for a new tenant: {other:?}"),
    };
    let objects: Vec<Value> = writes.into_iter().map(object).collect();
    insta::assert_yaml_snapshot!(objects);
}

#[test]
fn converged_tenant_is_ready_and_needs_no_write() {
    let seen = converged(&json!({}));
    assert_eq!(to_write(&seen), []);
    assert_eq!(reason(&seen, "Ready"), ("True".into(), "Ready".into(), "8 guaranteed devices, all available".into()));
    let mut again = seen.clone();
    again.tenant.status = Some(status_of(&seen, None));
    again.now = Timestamp::MAX;
    assert_eq!(again.tenant.status.clone().unwrap(), status_of(&again, None), "time alone changes no status");
}

#[test]
fn changed_or_deleted_objects_are_written_and_no_others() {
    let mut seen = converged(&json!({}));
    let mut quota = (*seen.quotas["a1"]).clone();
    quota
        .spec
        .hard
        .insert("requests.nvidia.com/gpu".into(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("99".into()));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    seen.managed.remove(&(Managed::Owners, "a2".into()));
    let writes = to_write(&seen);
    assert!(
        matches!(writes.as_slice(), [Write::ApplyQuota(q), Write::Apply { kind: Managed::Owners, namespace, recreate: false, .. }]
        if q.namespace().as_deref() == Some("a1") && namespace == "a2"),
        "{writes:?}"
    );
}

#[test]
fn namespace_without_tenant_is_not_changed_and_reported() {
    let mut seen = observed(&json!({}));
    let foreign = SlimNamespace {
        metadata: kube::api::ObjectMeta { name: Some("a2".into()), ..Default::default() },
        ..Default::default()
    };
    seen.namespaces.insert("a2".into(), Arc::new(foreign));
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    assert!(seen.namespaces["a2"].labels().is_empty() && !seen.quotas.contains_key("a2"));
    let (_, reason_, message) = reason(&seen, "Ready");
    assert_eq!(reason_, "NamespaceConflict");
    assert!(message.contains("a2 exists and has no tenant: set adopt: true for its name"), "{message}");
}

#[test]
fn profile_unknown_untrusted_or_invalid_is_refused_with_zero_budget() {
    for (profile, expected) in [("nope", "ProfileNotFound"), ("gpu", "TrustTooLow"), ("shared", "ResourceNameConflict")]
    {
        let seen = converged(&json!({"gpus": [{"profile": profile, "count": 4}]}));
        let (_, found, message) = reason(&seen, "Stalled");
        assert_eq!(found, expected, "{message}");
        let zero = seen.quotas["a1"].spec.hard.iter().filter(|(k, _)| k.contains('/')).all(|(_, q)| q.0 == "0");
        assert!(zero, "{profile}");
    }
}

#[test]
fn retained_namespace_loses_its_devices_before_others_get_them() {
    let mut seen = converged(&json!({"namespaces": [{"name": "a1"}]}));
    seen.tenant.spec.namespaces = serde_json::from_value(json!([{"name": "b1"}])).unwrap();
    assert_eq!(roles(&seen), [("b1".to_owned(), Role::Missing), ("a1".to_owned(), Role::Retained)]);
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    let key = "requests.nvidia.com/mig-1g.10gb";
    assert_eq!(seen.quotas["a1"].spec.hard[key].0, "0");
    assert_eq!(seen.quotas["b1"].spec.hard[key].0, "0", "the old limit was still enforced");
    assert_eq!(seen.namespaces["a1"].labels()[render::RETAINED_FROM], "team-a");
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    assert_eq!(seen.quotas["b1"].spec.hard[key].0, "8");
    assert_eq!(to_write(&seen), []);
}

#[test]
fn deleted_profile_stays_limited_to_zero() {
    let mut seen = converged(&json!({}));
    seen.view = Arc::new(FleetView { profiles: BTreeMap::new(), resources: FleetView::empty().resources, ..view() });
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    assert_eq!(seen.quotas["a1"].spec.hard["requests.nvidia.com/mig-1g.10gb"].0, "0");
}

#[test]
fn shortage_of_the_plan_is_reported() {
    let mut seen = converged(&json!({}));
    let mut view = view();
    view.tenants.get_mut("team-a").unwrap().shortages = ["tenant team-a gets 5 of 8".into()].into();
    seen.view = Arc::new(view);
    assert_eq!(reason(&seen, "CapacityReady"), ("False".into(), "Shortage".into(), "tenant team-a gets 5 of 8".into()));
    assert_eq!(reason(&seen, "Stalled").0, "True");
}

const MIG: &str = "requests.nvidia.com/mig-1g.10gb";

fn set_used(seen: &mut Observed, namespace: &str, devices: i32) {
    let mut quota = (*seen.quotas[namespace]).clone();
    let used = k8s_openapi::apimachinery::pkg::api::resource::Quantity(devices.to_string());
    quota.status.used.insert(MIG.into(), used);
    seen.quotas.insert(namespace.into(), Arc::new(quota));
}

/// Applies writes until there are none; use stays.
fn converge(seen: &mut Observed) {
    for _ in 0..9 {
        let used: Vec<_> = seen.quotas.iter().map(|(ns, q)| (ns.clone(), q.status.used.clone())).collect();
        let writes = to_write(seen);
        if writes.is_empty() {
            return;
        }
        apply_writes(seen, writes);
        for (namespace, used) in used {
            let mut quota = (*seen.quotas[&namespace]).clone();
            quota.status.used = used;
            seen.quotas.insert(namespace, Arc::new(quota));
        }
    }
    panic!("it does not converge");
}

fn hard(seen: &Observed) -> Vec<&str> {
    seen.quotas.values().map(|q| q.spec.hard[MIG].0.as_str()).collect()
}

#[test]
fn budget_below_use_admits_nothing_and_reports_the_excess() {
    let mut seen = converged(&json!({}));
    set_used(&mut seen, "a1", 4);
    set_used(&mut seen, "a2", 1);
    seen.tenant.spec.gpus[0].count = 3;
    converge(&mut seen);
    assert_eq!(hard(&seen), ["2", "0"]);
    let (_, found, message) = reason(&seen, "Stalled");
    assert_eq!(found, "OverBudget");
    assert!(message.contains("over budget: requests.nvidia.com/mig-1g.10gb by 2 over 3"), "{message}");
    seen.tenant.spec.gpus[0].count = 6;
    converge(&mut seen);
    assert_eq!(hard(&seen), ["5", "1"]);
    assert_eq!(reason(&seen, "QuotaReady").1, "Enforced");
}

#[test]
fn platform_limit_holds_until_the_tenant_sets_its_own() {
    let key = "services.nodeports";
    let mut seen = converged(&json!({}));
    assert_eq!(["a1", "a2"].map(|ns| seen.quotas[ns].spec.hard[key].0.as_str()), ["0", "0"]);
    let amount = |n: &str| k8s_openapi::apimachinery::pkg::api::resource::Quantity(n.into());
    seen.tenant.spec.resources.insert(key.into(), amount("4"));
    converge(&mut seen);
    assert_eq!(["a1", "a2"].map(|ns| seen.quotas[ns].spec.hard[key].0.as_str()), ["2", "2"]);
    // in use and no longer set: reported
    let mut quota = (*seen.quotas["a1"]).clone();
    quota.status.used.insert(key.into(), amount("1"));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    seen.tenant.spec.resources.remove(key);
    converge(&mut seen);
    let (_, found, message) = reason(&seen, "QuotaReady");
    assert_eq!(found, "OverBudget");
    assert!(message.contains("services.nodeports by 1 over 0"), "{message}");
}

#[test]
fn suspended_tenant_admits_nothing_until_it_is_resumed() {
    let mut seen = converged(&json!({}));
    set_used(&mut seen, "a1", 2);
    seen.tenant.spec.suspend = true;
    converge(&mut seen);
    assert_eq!(hard(&seen), ["0", "0"]);
    assert_eq!(reason(&seen, "Suspended").0, "True");
    assert_eq!(reason(&seen, "QuotaReady").1, "Suspended");
    assert_eq!(reason(&seen, "Ready").0, "True");
    seen.tenant.spec.suspend = false;
    converge(&mut seen);
    assert_eq!(hard(&seen), ["5", "3"]);
    assert!(status_of(&seen, None).conditions.iter().all(|c| c.type_ != "Suspended"));
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
    let mut seen = converged(&json!({}));
    set_used(&mut seen, "a1", 4);
    let refused = refused(&seen, MIG, 3);
    observe_refusal(&mut seen, &refused);
    assert_eq!(status_of(&seen, None).gpus[0].waiting, 0, "not counted at once");
    seen.now += status::SHOWN_AFTER;
    assert_eq!(status_of(&seen, None).gpus[0].waiting, 1);
    converge(&mut seen);
    assert_eq!(hard(&seen), ["7", "1"]);
}

#[test]
fn refused_controller_with_a_later_pod_is_not_counted() {
    let mut seen = converged(&json!({}));
    for namespace in ["a1", "a2"] {
        set_used(&mut seen, namespace, 4);
    }
    let mut refused = refused(&seen, MIG, 1);
    observe_refusal(&mut seen, &refused);
    seen.now += status::SHOWN_AFTER;
    assert_eq!(status_of(&seen, None).gpus[0].waiting, 1);
    refused.newest_pod = Some(seen.now);
    observe_refusal(&mut seen, &refused);
    assert_eq!(status_of(&seen, None).gpus[0].waiting, 0);
}

#[test]
fn refused_controller_that_does_not_use_its_headroom_is_woken_once() {
    let mut seen = converged(&json!({}));
    let refused = refused(&seen, MIG, 1);
    observe_refusal(&mut seen, &refused);
    assert_eq!(to_write(&seen), [], "it may retry by itself");
    seen.now = seen.refused.next_deadline(seen.now, status::SHOWN_AFTER).unwrap();
    observe_refusal(&mut seen, &refused);
    let writes = to_write(&seen);
    let [Write::Wake(wake)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((wake.namespace.as_str(), wake.target.to_string().as_str()), ("a1", "ReplicaSet web-5c"));
    seen.refused.woken(wake);
    assert_eq!(to_write(&seen), []);
}

#[test]
fn limit_is_raised_only_after_lowered_limits_have_settled() {
    let mut seen = converged(&json!({}));
    set_used(&mut seen, "a1", 4);
    let writes = to_write(&seen);
    apply_writes(&mut seen, writes);
    set_used(&mut seen, "a1", 4);
    assert_eq!(hard(&seen), ["4", "2"]);
    seen.recently_lowered.insert("a2".into());
    assert_eq!((to_write(&seen), decide(&seen).quotas.decision.waits_for_count), (vec![], true));
    seen.recently_lowered.clear();
    seen.requested.insert("a2".into(), [(MIG.to_owned(), super::Amount::units(3))].into());
    converge(&mut seen);
    assert_eq!(hard(&seen), ["5", "3"], "one pod more than the quota has counted");
}

#[test]
fn quota_write_carries_version_and_uid_of_the_observed_quota() {
    let mut seen = converged(&json!({}));
    let mut quota = (*seen.quotas["a1"]).clone();
    quota.metadata.resource_version = Some("41".into());
    quota.metadata.uid = Some("u-2".into());
    quota.spec.hard.insert(MIG.into(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("9".into()));
    seen.quotas.insert("a1".into(), Arc::new(quota));
    let writes = to_write(&seen);
    let [Write::ApplyQuota(write)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!((write.metadata.resource_version.as_deref(), write.metadata.uid.as_deref()), (Some("41"), Some("u-2")));
}

#[test]
fn uncached_namespace_gets_no_budget() {
    let mut seen = converged(&json!({}));
    seen.namespaces.remove("a2");
    seen.quotas.remove("a2");
    seen.uncached.insert("a2".into());
    set_used(&mut seen, "a1", 4);
    let quotas: Vec<_> = to_write(&seen).into_iter().filter(|w| matches!(w, Write::ApplyQuota(_))).collect();
    let [Write::ApplyQuota(only)] = quotas.as_slice() else { panic!("{quotas:?}") };
    assert_eq!(only.spec.as_ref().unwrap().hard.as_ref().unwrap()[MIG].0, "0");
}

/// As it is so many seconds after its deletion.
fn deleted(mut seen: Observed, ago: i64) -> Observed {
    let now = Timestamp::from_second(1_000_000).unwrap();
    seen.now = now;
    let at = Timestamp::from_second(1_000_000 - ago).unwrap();
    seen.tenant.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
    seen
}
