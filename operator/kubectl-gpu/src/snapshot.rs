//! The snapshot: everything a plan depends on, as one YAML document without secrets.
//!
//! It contains specs of profiles, pools and tenants (without owners and viewers), GPU nodes with boards and devices, labels and
//! readiness of Nodes, announced maintenance, and of pods with devices the fields that decide about their eviction. It contains no environment, image,
//! volume or foreign annotation, except those that name the pod inside a virtual cluster; of other owners of a node's GPUs only that they
//! exist.

use std::collections::BTreeSet;

use gputenancy_crds::{
    GpuNode, GpuPool, GpuPoolStatus, GpuProfile, GpuProfileStatus, GpuTenant, GpuTenantStatus, condition,
    projection::{project_node, strip_metadata},
    reasons, vcluster,
};
use gputenancy_decisions::{maintenance::MaintenanceRequest, ownership::DRA_DRIVER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    records::{BudgetRecord, PodRecord},
    world::World,
};

/// Label of a pod with the hash in the name of its Deployment's `ReplicaSet`.
pub const TEMPLATE_HASH: &str = "pod-template-hash";

/// Longest annotation of vCluster that is kept, in bytes: names are not longer.
const LONGEST_MARK: usize = 253;

/// Writes a snapshot as YAML.
pub fn to_yaml(world: &World) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&document(world))
}

/// The snapshot as a document, independent of the order of lists.
pub fn document(world: &World) -> Value {
    let fleet = &world.fleet;
    let mut items = Vec::new();
    items.extend(fleet.profiles.iter().map(profile));
    items.extend(fleet.pools.iter().map(pool));
    items.extend(world.tenants.iter().map(tenant));
    items.extend(fleet.gpu_nodes.values().map(|node| gpu_node(node)));
    items.extend(fleet.nodes.values().map(|node| {
        let mut node = (**node).clone();
        project_node(&mut node);
        strip(&mut node);
        whole("v1", "Node", &node)
    }));
    items.extend(fleet.dra.iter().map(|node| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": DRA_DRIVER, "nodeName": node},
        })
    }));
    items.extend(fleet.maintenance.iter().flat_map(|(node, all)| {
        all.iter().map(move |request| {
            json!({
                "apiVersion": MaintenanceRequest::API_VERSION, "kind": "MaintenanceRequest", "metadata": {"name": request.name},
                "spec": {"healthEvent": {"nodeName": node}, "startTime": request.starts.map(|t| t.to_string())},
            })
        })
    }));
    let budgets: Vec<&BudgetRecord> = world.budgets.iter().filter(|b| protects_any(b, world)).collect();
    items.extend(world.pods.iter().map(|(name, p)| pod(p, &budgets, in_virtual_cluster(world, &name.namespace))));
    items.extend(budgets.into_iter().map(|budget| {
        let mut budget = budget.clone();
        strip_metadata(&mut budget);
        strip(&mut budget);
        whole("policy/v1", "PodDisruptionBudget", &budget)
    }));
    items.sort_by_cached_key(|item| {
        let field = |at: &str| item.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        (field("/kind"), field("/metadata/namespace"), field("/metadata/name"))
    });
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "PlanSnapshot", "takenAt": world.taken_at.map(|t| t.to_string()), "items": items,
    })
}

fn protects_any(budget: &BudgetRecord, world: &World) -> bool {
    world.pods.keys().any(|p| Some(&*p.namespace) == budget.metadata.namespace.as_deref())
}

fn whole(version: &str, kind: &str, object: &impl Serialize) -> Value {
    let mut whole = json!({"apiVersion": version, "kind": kind});
    if let (Value::Object(whole), Ok(Value::Object(fields))) = (&mut whole, serde_json::to_value(object)) {
        whole.extend(fields);
    }
    whole
}

/// An object without its status.
fn spec_of<K: Resource<DynamicType = ()>>(object: &K, spec: &impl Serialize) -> Value {
    let meta = object.meta();
    let mut metadata = json!({"name": meta.name, "uid": meta.uid, "generation": meta.generation});
    if let Value::Object(fields) = &mut metadata {
        fields.retain(|_, v| !v.is_null());
        for (name, time) in
            [("creationTimestamp", &meta.creation_timestamp), ("deletionTimestamp", &meta.deletion_timestamp)]
        {
            if let Some(time) = time {
                fields.insert(name.into(), json!(time));
            }
        }
    }
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "spec": spec})
}

/// A profile, with the resource under which it is served, and whether another profile has it.
fn profile(profile: &GpuProfile) -> Value {
    let status = profile.status.clone().unwrap_or_default();
    let mut conditions = status.conditions;
    conditions.retain(|c| reasons::RESOURCE_NAME_CONFLICT == c.reason.as_str());
    let known = GpuProfileStatus { resource_name: status.resource_name, conditions, ..GpuProfileStatus::default() };
    with_status(spec_of(profile, &profile.spec), &known)
}

/// A tenant without users, with the states of its namespaces: they decide whether its guarantees count.
fn tenant(tenant: &GpuTenant) -> Value {
    let mut spec = tenant.spec.clone();
    spec.owners.clear();
    spec.viewers.clear();
    let namespaces = tenant.status.iter().flat_map(|status| &status.namespaces).cloned().collect();
    with_status(spec_of(tenant, &spec), &GpuTenantStatus { namespaces, ..GpuTenantStatus::default() })
}

/// A document with what plans depend on of its object's status, if there is anything.
fn with_status(mut document: Value, known: &(impl Serialize + Default + PartialEq)) -> Value {
    if let (Value::Object(fields), false) = (&mut document, is_default(known)) {
        fields.insert("status".into(), json!(known));
    }
    document
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A pool, with the guarantees that wait because they flap, and the taint that is no mark of others.
fn pool(pool: &GpuPool) -> Value {
    let status = pool.status.clone().unwrap_or_default();
    let known = GpuPoolStatus {
        flapping: status.flapping,
        tolerated_taint: status.tolerated_taint,
        ..GpuPoolStatus::default()
    };
    with_status(spec_of(pool, &pool.spec), &known)
}

fn gpu_node(node: &GpuNode) -> Value {
    let mut node = node.clone();
    strip_metadata(&mut node);
    strip(&mut node);
    if let Some(status) = &mut node.status {
        status.conditions.retain(|c| c.type_ == condition::READY);
        (status.agent_version, status.cuda_version, status.boot_id) = (None, None, None);
        for holder in status.gpus.iter_mut().flat_map(|g| g.holders.iter_mut().chain(&mut g.unlisted)) {
            // without arguments, which may contain secrets
            holder.command = holder.command.split_whitespace().next().unwrap_or_default().to_owned();
        }
    }
    serde_json::to_value(&node).unwrap_or_default()
}

fn in_virtual_cluster(world: &World, namespace: &str) -> bool {
    world.owner_of(namespace).is_some_and(|tenant| tenant.spec.virtual_cluster.is_some())
}

/// `synced`: its labels and annotations name a pod inside a virtual cluster.
fn pod(pod: &PodRecord, budgets: &[&BudgetRecord], synced: bool) -> Value {
    let mut pod = pod.clone();
    let mut marks = pod.metadata.annotations.clone().unwrap_or_default();
    marks.retain(|key, value| synced && vcluster::ANNOTATIONS.contains(&key.as_str()) && value.len() <= LONGEST_MARK);
    strip_metadata(&mut pod);
    if !marks.is_empty() {
        pod.metadata.annotations.get_or_insert_default().extend(marks);
    }
    let selecting: BTreeSet<String> = budgets
        .iter()
        .filter(|b| b.metadata.namespace == pod.metadata.namespace)
        .filter_map(|b| b.spec.selector.as_ref())
        .flat_map(selected)
        .chain([TEMPLATE_HASH].into_iter().chain(vcluster::LABELS.into_iter().filter(|_| synced)).map(str::to_owned))
        .collect();
    let controller = |o: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| o.controller == Some(true);
    if let Some(labels) = &mut pod.metadata.labels {
        labels.retain(|key, _| selecting.contains(key));
    }
    if let Some(owners) = &mut pod.metadata.owner_references {
        owners.retain(controller);
    }
    let meta = &mut pod.metadata;
    (meta.finalizers, meta.generate_name, meta.resource_version, meta.creation_timestamp) = (None, None, None, None);
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        container.resources.requests.retain(|resource, _| resource.contains('/'));
    }
    whole("v1", "Pod", &pod)
}

fn selected(selector: &LabelSelector) -> Vec<String> {
    let expressions = selector.match_expressions.iter().flatten().map(|e| e.key.clone());
    selector.match_labels.iter().flat_map(|l| l.keys().cloned()).chain(expressions).collect()
}

/// Removes metadata that no plan depends on.
fn strip<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    (meta.finalizers, meta.owner_references, meta.resource_version) = (None, None, None);
    (meta.creation_timestamp, meta.generate_name) = (None, None);
}
