//! The objects of Kueue for pools and teams. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::names;
use gputenancy_decisions::{
    fingerprint::fingerprint,
    fleet_view::PoolView,
    queues::{Cell, Limits, Table},
};
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

use super::{
    limits::{Owner, groups},
    teams::QueuedTenant,
};
use crate::cache::kueue::{API_VERSION, Kind};

/// The label of the host name, which every topology has as its last level.
const HOST_NAME: &str = "kubernetes.io/hostname";
/// Name of the queue in each namespace: Kueue gives it to jobs that name none.
pub const LOCAL_QUEUE: &str = "default";
/// The check of every queue of a team.
pub const CHECK: &str = "gputenancy-maintenance";
/// Name of the operator as the controller of the check.
const CHECK_CONTROLLER: &str = "gputenancy.io/maintenance";
/// The cohort with the devices of no guarantee, the parent of all groups.
pub const SPARE: &str = "gput-spare";
/// Prefix of the names of all objects that are not in a namespace.
pub const PREFIX: &str = "gput-";

/// An object to be written: kind, namespace (empty: of the cluster) and name.
pub type Key = (Kind, String, String);

/// Name of an object of the cluster.
pub fn name(of: &str) -> String {
    format!("{PREFIX}{of}")
}

/// Name of the cohort of a group. Not [`name`]: a team may be called as its group.
pub fn cohort(group: &str) -> String {
    format!("{PREFIX}group-{group}")
}

/// Name of the flavor of a pool, and of its topology. Both have fixed contents once there are levels, so that other levels or another taint make
/// another flavor.
pub fn flavor_name(pool: &str, of: &PoolView) -> String {
    if of.queueing.topology.is_empty() {
        return name(pool);
    }
    let content = fingerprint(&(&of.queueing.topology, &of.taint));
    format!("{}-{}", name(pool), content.get(..8).unwrap_or_default())
}

/// The devices of a pool, with the taint that its nodes have.
pub fn flavor(pool: &str, of: &PoolView) -> (Key, Value) {
    let tolerations =
        of.taint.iter().map(|taint| json!({"key": taint.key, "operator": "Exists", "effect": taint.effect.as_str()}));
    let spec = present([
        ("nodeLabels", Some(json!({names::POOL_LABEL: pool}))),
        ("tolerations", Some(tolerations.collect())),
        ("topologyName", (!of.queueing.topology.is_empty()).then(|| json!(flavor_name(pool, of)))),
    ]);
    object(Kind::ResourceFlavor, "", &flavor_name(pool, of), None, &spec)
}

/// The levels of a pool's nodes; `None`: it has none.
pub fn topology(pool: &str, of: &PoolView) -> Option<(Key, Value)> {
    let labels = &of.queueing.topology;
    let levels: Vec<Value> =
        labels.iter().map(String::as_str).chain([HOST_NAME]).map(|label| json!({"nodeLabel": label})).collect();
    (!labels.is_empty()).then(|| object(Kind::Topology, "", &flavor_name(pool, of), None, &json!({"levels": levels})))
}

/// The cohort with the spare devices.
pub fn spare(table: &Table) -> (Key, Value) {
    object(Kind::Cohort, "", SPARE, None, &json!({"resourceGroups": groups(table, Owner::Spare)}))
}

/// The cohort of a group: it has no devices of its own, and lends none to other groups.
pub fn group(group: &str, cells: &BTreeSet<Cell>) -> (Key, Value) {
    let table: Table = cells.iter().map(|cell| (cell.clone(), Limits::default())).collect();
    let spec = json!({"parentName": SPARE, "resourceGroups": groups(&table, Owner::Group)});
    object(Kind::Cohort, "", &cohort(group), None, &spec)
}

/// The check without which no job starts: by it jobs leave devices that are removed.
pub fn admission_check() -> (Key, Value) {
    object(Kind::AdmissionCheck, "", CHECK, None, &json!({"controllerName": CHECK_CONTROLLER}))
}

/// The queue of a team.
pub fn cluster_queue(tenant: &QueuedTenant, table: &Table) -> (Key, Value) {
    let team = &tenant.team.name;
    let spec = json!({
        "cohortName": cohort(&tenant.group),
        "queueingStrategy": "BestEffortFIFO",
        "namespaceSelector": {"matchLabels": {names::TENANT_LABEL: team}},
        "preemption": {
            "reclaimWithinCohort": "Any",
            "withinClusterQueue": "LowerPriority",
            "borrowWithinCohort": {"policy": "Never"},
        },
        "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
        "fairSharing": {"weight": tenant.weight.to_string()},
        "stopPolicy": if tenant.suspended { "Hold" } else { "None" },
        "resourceGroups": groups(table, Owner::Team),
    });
    object(Kind::ClusterQueue, "", &name(team), Some(team), &spec)
}

/// The queue in a namespace. In one that the spec no longer lists it admits nothing more.
pub fn local_queue(team: &str, namespace: &str, listed: bool) -> (Key, Value) {
    let spec = json!({"clusterQueue": name(team), "stopPolicy": if listed { "None" } else { "Hold" }});
    object(Kind::LocalQueue, namespace, LOCAL_QUEUE, Some(team), &spec)
}

/// The queue of a team that is gone, with other limits: all else stays until it is deleted.
pub fn with_limits(live: Option<&DynamicObject>, (kind, namespace, name): &Key, table: &Table) -> Value {
    let mut spec = live.and_then(|live| live.data.get("spec")?.as_object().cloned()).unwrap_or_default();
    spec.insert("resourceGroups".to_owned(), json!(groups(table, Owner::Team)));
    let team = live.and_then(|live| live.labels().get(names::TENANT_LABEL).map(String::as_str));
    object(*kind, namespace, name, team, &Value::Object(spec)).1
}

/// An object with those of the fields that are present.
fn present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn object(kind: Kind, namespace: &str, name: &str, tenant: Option<&str>, spec: &Value) -> (Key, Value) {
    let mut labels = BTreeMap::from([(names::MANAGED_BY_LABEL, names::MANAGED_BY)]);
    labels.extend(tenant.map(|tenant| (names::TENANT_LABEL, tenant)));
    let metadata = present([
        ("name", Some(json!(name))),
        ("namespace", (!namespace.is_empty()).then(|| json!(namespace))),
        ("labels", Some(json!(labels))),
    ]);
    let object = json!({
        "apiVersion": API_VERSION, "kind": kind.name(), "metadata": metadata, "spec": spec,
    });
    ((kind, namespace.to_owned(), name.to_owned()), object)
}
