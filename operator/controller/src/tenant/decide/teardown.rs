//! The decision about a tenant that is being deleted: the order of deletes, and when the finalizer is removed. Pure.

use gputenancy_crds::{
    VIRTUAL_CLUSTER_FINALIZER,
    condition::{READY, STALLED},
    reasons,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::{
    desired, pull_secrets,
    roles::{Role, Roles},
    write::Write,
};
use crate::tenant::{
    observe::{Observed, managed::Managed},
    render,
};

/// How long a deletion waits for namespaces before it reports what blocks and removes the finalizer.
pub const MAX_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// How long a deletion waits for the controller of virtual clusters, which waits for pods to end.
pub const VIRTUAL_CLUSTER_WAIT: SignedDuration = SignedDuration::from_mins(15);

/// What to write for a tenant that is being deleted. Grants are deleted before their namespaces: from then on no new pod is admitted. And a
/// namespace controller that has just started does not know custom resources yet: it would finish the namespace and leave the grant behind.
pub fn writes(seen: &Observed, roles: &Roles) -> Vec<Write> {
    if seen.tenant.spec.deletion_protection {
        return Vec::new();
    }
    if waits_for_virtual_cluster(seen, roles) {
        // its controller needs its rights, and a team may delete role bindings
        let active = roles.with(Role::Active);
        return active.filter_map(|ns| desired::write(seen, Managed::VirtualCluster, ns)).collect();
    }
    let mut writes = Vec::new();
    let mut terminating = Vec::new();
    for (name, role) in roles.iter() {
        let retained = seen.namespaces.get(name).is_some_and(|ns| ns.labels().contains_key(render::RETAINED_FROM));
        match role {
            Role::Missing | Role::Foreign | Role::Adoptable => {}
            Role::Terminating => {
                writes.extend(delete_grant(seen, name));
                terminating.push(name);
            }
            Role::Active if seen.created_by_operator(name) && !retained => {
                let uid = seen.namespaces.get(name).and_then(|ns| ns.uid());
                writes.push(
                    delete_grant(seen, name).unwrap_or(Write::DeleteNamespace { namespace: name.to_owned(), uid }),
                );
            }
            Role::Active | Role::Retained => {
                let created = seen.created_by_operator(name);
                writes.extend(pull_secrets::release(seen, name));
                writes.push(Write::ReleaseNamespace { namespace: name.to_owned(), created });
            }
        }
    }
    if writes.is_empty() && (terminating.is_empty() || deleted_for(seen) >= MAX_WAIT) {
        let note = (!terminating.is_empty()).then(|| {
            let blockers: Vec<String> = terminating.iter().map(|ns| blocker(seen, ns)).collect();
            format!("the tenant is deleted while namespaces are still terminating: {}", blockers.join("; "))
        });
        writes.push(Write::RemoveFinalizer(note));
    }
    writes
}

/// A virtual cluster is deleted before its namespace: its pods end in order, and volumes and Secrets are not left to a namespace that stays.
/// Only in a namespace of the tenant can its controller do so, and not without end.
pub fn waits_for_virtual_cluster(seen: &Observed, roles: &Roles) -> bool {
    let finalized = seen.tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER);
    let reachable = || roles.with(Role::Active).next().is_some();
    seen.virtual_clusters && finalized && reachable() && seen.now.duration_since(began(seen)) < VIRTUAL_CLUSTER_WAIT
}

/// When the deletion began that was not held up by protection: as its controller reports, else since the tenant is no longer reported as
/// protected.
fn began(seen: &Observed) -> Timestamp {
    let status = seen.tenant.status.as_ref();
    if let Some(since) = status.and_then(|s| s.virtual_cluster.as_ref()?.deleting_since.as_ref()) {
        return since.0.min(seen.now);
    }
    let conditions = || status.iter().flat_map(|s| &s.conditions);
    if conditions().any(|c| c.type_ == READY && reasons::DELETION_PROTECTED == c.reason.as_str()) {
        return seen.now;
    }
    let released = conditions().find(|c| c.type_ == STALLED && c.status == "False").map(|c| c.last_transition_time.0);
    let deleted = seen.tenant.metadata.deletion_timestamp.as_ref().map_or(seen.now, |t| t.0);
    released.map_or(deleted, |released| released.max(deleted))
}

fn delete_grant(seen: &Observed, namespace: &str) -> Option<Write> {
    let kind = Managed::Grant;
    seen.managed(kind, namespace).map(|_| Write::Delete { kind, namespace: namespace.to_owned() })
}

/// Time since the tenant was deleted.
pub fn deleted_for(seen: &Observed) -> SignedDuration {
    let since = seen.tenant.metadata.deletion_timestamp.as_ref().map_or(seen.now, |t| t.0);
    seen.now.duration_since(since)
}

/// Why a namespace is still terminating: the namespace controller's messages, and finalizers of the namespace itself, which it does not report.
pub fn blocker(seen: &Observed, namespace: &str) -> String {
    match reasons_of(seen, namespace) {
        None => format!("{namespace} is terminating"),
        Some(reasons) => format!("{namespace}: {reasons}"),
    }
}

/// What keeps a namespace that is being deleted; `None`: nothing is reported, or it does not exist.
pub fn reasons_of(seen: &Observed, namespace: &str) -> Option<String> {
    let namespace = seen.namespaces.get(namespace)?;
    let conditions = namespace.status.conditions.iter().filter(|c| c.status == "True");
    let mut reasons: Vec<String> = conditions.map(|c| c.message.clone()).collect();
    let finalizers = namespace.finalizers();
    if !finalizers.is_empty() {
        reasons.push(format!("the namespace has the finalizers {}", finalizers.join(", ")));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
