//! The objects of a tenant, rendered from what has been decided; nothing here can fail.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuGrant, GpuGrantSpec, GpuTenant, Owner, OwnerKind, names};
use k8s_openapi::api::{
    core::v1::{Namespace, ResourceQuota, ResourceQuotaSpec},
    rbac::v1::{RoleBinding, RoleRef, Subject},
};
use kube::{ResourceExt as _, api::ObjectMeta};

use super::split::Limits;

/// Name of the quota in every namespace of a tenant.
pub const QUOTA: &str = "gputenancy";
/// Name of the owners' role binding in every namespace of a tenant.
pub const OWNERS: &str = "gputenancy-owners";
/// The role that owners get: `edit` without quotas and role bindings. It comes with the chart.
pub const OWNER_ROLE: &str = "gputenancy:tenant-owner";
/// Annotation on namespaces that we made, with the tenant's uid: these are deleted with the tenant, others only released.
pub const CREATED_FOR: &str = "gputenancy.io/created-for";
/// Label on namespaces that a tenant no longer lists: they keep their data and get no GPUs.
pub const RETAINED_FROM: &str = "gputenancy.io/retained-from";

/// Annotation on our quotas: which leader wrote last. A write that is decided on an older version is void.
pub const STAMP: &str = "gputenancy.io/written-by";

const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Labels of everything rendered for a tenant.
pub fn labels(tenant: &str) -> BTreeMap<String, String> {
    [(names::TENANT_LABEL, tenant), (names::MANAGED_BY_LABEL, names::MANAGED_BY)]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Labels of a namespace of a tenant; `retained`: the tenant no longer lists it.
pub fn namespace_labels(tenant: &str, retained: bool) -> BTreeMap<String, String> {
    let mut labels = labels(tenant);
    labels.insert(POD_SECURITY.into(), "restricted".into());
    if retained {
        labels.insert(RETAINED_FROM.into(), tenant.into());
    }
    labels
}

/// A namespace.
pub fn namespace(tenant: &GpuTenant, name: &str, retained: bool, created_for: Option<String>) -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(namespace_labels(&tenant.name_any(), retained)),
            annotations: created_for.map(|uid| [(CREATED_FOR.to_owned(), uid)].into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The quota of a namespace, before it is said on which version of it that was decided.
pub fn quota(tenant: &str, namespace: &str, hard: Limits) -> ResourceQuota {
    ResourceQuota {
        metadata: meta(tenant, namespace, QUOTA),
        spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
        status: None,
    }
}

/// The grant of a namespace.
pub fn grant(tenant: &str, namespace: &str, spec: GpuGrantSpec) -> GpuGrant {
    GpuGrant { metadata: meta(tenant, namespace, names::GRANT), spec }
}

/// The owners' role binding of a namespace.
pub fn owners(tenant: &GpuTenant, namespace: &str) -> RoleBinding {
    RoleBinding {
        metadata: meta(&tenant.name_any(), namespace, OWNERS),
        role_ref: owner_role(),
        subjects: Some(tenant.spec.owners.iter().map(subject).collect()),
    }
}

/// The role that owners are bound to.
pub fn owner_role() -> RoleRef {
    RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: OWNER_ROLE.into() }
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn subject(owner: &Owner) -> Subject {
    let Owner { kind, name, namespace } = owner;
    let (kind, api_group) = match kind {
        OwnerKind::User => ("User", Some(RBAC.into())),
        OwnerKind::Group => ("Group", Some(RBAC.into())),
        OwnerKind::ServiceAccount => ("ServiceAccount", None),
    };
    Subject { kind: kind.into(), api_group, name: name.clone(), namespace: namespace.clone() }
}

fn meta(tenant: &str, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        labels: Some(labels(tenant)),
        ..ObjectMeta::default()
    }
}
