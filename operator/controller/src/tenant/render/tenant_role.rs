//! What lets owners and viewers read their own `GpuTenant`: a `ClusterRole` and a `ClusterRoleBinding` for each tenant. The garbage
//! collector removes them with the tenant. Off with `--owners-read-tenant=false`. Pure.

use gputenancy_crds::{GROUP, GpuTenant};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::{Resource as _, ResourceExt as _, api::ObjectMeta};

use super::{RBAC, labels, subject};

/// Start of the names of both objects; the chart's policies confine the operator to it.
pub const PREFIX: &str = "gputenancy-tenant-";

fn name(tenant: &GpuTenant) -> String {
    format!("{PREFIX}{}", tenant.name_any())
}

fn metadata(tenant: &GpuTenant) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(tenant)),
        labels: Some(labels(&tenant.name_any())),
        owner_references: Some(tenant.owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

/// Owners and viewers.
fn subjects(tenant: &GpuTenant) -> Option<Vec<Subject>> {
    let subjects: Vec<Subject> = tenant.spec.owners.iter().chain(&tenant.spec.viewers).map(subject).collect();
    (!subjects.is_empty()).then_some(subjects)
}

/// The role; `None` without owners and viewers.
pub fn role(tenant: &GpuTenant) -> Option<ClusterRole> {
    let reads = PolicyRule {
        api_groups: Some(vec![GROUP.to_owned()]),
        resources: Some(vec!["gputenants".to_owned()]),
        resource_names: Some(vec![tenant.name_any()]),
        verbs: ["get", "list", "watch"].map(str::to_owned).into(),
        ..PolicyRule::default()
    };
    subjects(tenant).map(|_| ClusterRole {
        metadata: metadata(tenant),
        rules: Some(vec![reads]),
        aggregation_rule: None,
    })
}

/// The binding; `None` without owners and viewers.
pub fn binding(tenant: &GpuTenant) -> Option<ClusterRoleBinding> {
    let role_ref = RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: name(tenant) };
    subjects(tenant).map(|subjects| ClusterRoleBinding {
        metadata: metadata(tenant),
        role_ref,
        subjects: Some(subjects),
    })
}
