//! The objects of a tenant, rendered from what has been decided; nothing here can fail.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuGrant, GpuGrantSpec, GpuTenant, Owner, OwnerKind, PodSecurity, names};
use gputenancy_engine::quota::Limits;
use k8s_openapi::{
    api::{
        core::v1::{
            LimitRange, LimitRangeItem, LimitRangeSpec, Namespace, ResourceQuota, ResourceQuotaSpec, ScopeSelector,
            ScopedResourceSelectorRequirement, Secret,
        },
        networking::v1::{NetworkPolicy, NetworkPolicySpec},
        rbac::v1::{RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{ResourceExt as _, api::ObjectMeta};

use super::{pull::PullCopy, standard::Standard};
use crate::cache::pull::TYPE;

/// Name of the quota in every namespace of a tenant.
pub const QUOTA: &str = names::QUOTA;
/// Name of the quota that knows `PriorityClasses`, in every namespace of a tenant that says which its pods may name.
pub const CLASSES: &str = "gputenancy-priority-classes";
/// Name of the owners' role binding in every namespace of a tenant that has owners.
pub const OWNERS: &str = "gputenancy-owners";
/// The role that owners get: `edit` without network policies. It comes with the chart.
pub const OWNER_ROLE: &str = "gputenancy:tenant-owner";
/// Name of the viewers' role binding in every namespace of a tenant that has viewers.
pub const VIEWERS: &str = "gputenancy-viewers";
/// The role that viewers get: `view`. It comes with the chart.
pub const VIEWER_ROLE: &str = "gputenancy:tenant-viewer";
/// Name of the network policy in every namespace of an isolated tenant.
pub const NETWORK: &str = "gputenancy";
/// Name of the limit range in every namespace of a tenant.
pub const LIMITS: &str = "gputenancy";
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

/// Labels of a namespace of a tenant; `retained`: the tenant no longer lists it; `made`: by us. What was adopted is managed by others.
pub fn namespace_labels(tenant: &GpuTenant, retained: bool, made: bool) -> BTreeMap<String, String> {
    let name = tenant.name_any();
    let mut labels = labels(&name);
    if !made {
        labels.remove(names::MANAGED_BY_LABEL);
    }
    let standard = match tenant.spec.pod_security {
        PodSecurity::Restricted => "restricted",
        PodSecurity::Baseline => "baseline",
    };
    labels.insert(POD_SECURITY.into(), standard.into());
    if retained {
        labels.insert(RETAINED_FROM.into(), name);
    }
    labels
}

/// A namespace.
pub fn namespace(tenant: &GpuTenant, name: &str, retained: bool, created_for: Option<String>) -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(namespace_labels(tenant, retained, created_for.is_some())),
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

/// The quota that knows `PriorityClasses`, of a namespace.
pub fn classes(tenant: &str, namespace: &str, spec: ResourceQuotaSpec) -> ResourceQuota {
    ResourceQuota { metadata: meta(tenant, namespace, CLASSES), spec: Some(spec), status: None }
}

/// No pod of a `PriorityClass` that the tenant does not name; none for a tenant whose pods may name any. The policies refuse such a pod before
/// and say which it may name; this holds without them.
pub fn no_other_classes(tenant: &GpuTenant) -> Option<ResourceQuotaSpec> {
    let named = tenant.spec.priority_classes.as_ref()?;
    let class = |operator: &str, values: Option<Vec<String>>| ScopedResourceSelectorRequirement {
        scope_name: "PriorityClass".into(),
        operator: operator.into(),
        values,
    };
    // a pod without a class is in no set either, and both have to be so
    let others = (!named.is_empty()).then(|| class("NotIn", Some(named.clone())));
    let counted = [class("Exists", None)].into_iter().chain(others).collect();
    Some(ResourceQuotaSpec {
        hard: Some([("pods".to_owned(), Quantity("0".into()))].into()),
        scope_selector: Some(ScopeSelector { match_expressions: Some(counted) }),
        scopes: None,
    })
}

/// The grant of a namespace.
pub fn grant(tenant: &str, namespace: &str, spec: GpuGrantSpec) -> GpuGrant {
    GpuGrant { metadata: meta(tenant, namespace, names::GRANT), spec }
}

/// The owners' role binding of a namespace; none for nobody.
pub fn owners(tenant: &GpuTenant, namespace: &str) -> Option<RoleBinding> {
    binding(tenant, namespace, (OWNERS, OWNER_ROLE), &tenant.spec.owners)
}

/// The viewers' role binding of a namespace; none for nobody.
pub fn viewers(tenant: &GpuTenant, namespace: &str) -> Option<RoleBinding> {
    binding(tenant, namespace, (VIEWERS, VIEWER_ROLE), &tenant.spec.viewers)
}

fn binding(tenant: &GpuTenant, namespace: &str, (name, role): (&str, &str), people: &[Owner]) -> Option<RoleBinding> {
    (!people.is_empty()).then(|| RoleBinding {
        metadata: meta(&tenant.name_any(), namespace, name),
        role_ref: RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: role.into() },
        subjects: Some(people.iter().map(subject).collect()),
    })
}

/// The network policy of a namespace.
pub fn network(tenant: &str, namespace: &str, spec: NetworkPolicySpec) -> NetworkPolicy {
    NetworkPolicy { metadata: meta(tenant, namespace, NETWORK), spec: Some(spec) }
}

/// The limit range of a namespace.
pub fn limits(tenant: &str, namespace: &str, spec: LimitRangeSpec) -> LimitRange {
    LimitRange { metadata: meta(tenant, namespace, LIMITS), spec: Some(spec) }
}

/// The copy of an image pull secret.
pub fn pull_secret(tenant: &str, copy: &PullCopy) -> Secret {
    let (resource_version, uid) = copy.decided_on.clone();
    Secret {
        metadata: ObjectMeta { resource_version, uid, ..meta(tenant, &copy.namespace, &copy.name) },
        type_: Some(TYPE.into()),
        data: Some(copy.content.data()),
        ..Secret::default()
    }
}

/// What a container requests that says nothing, so that a quota of requests is of use without every manifest writing them; none where
/// the platform says nothing. Never a default limit: one below somebody's own request would make the API server refuse the pod.
pub fn default_requests(standard: &Standard) -> Option<LimitRangeSpec> {
    let requests: BTreeMap<_, _> = standard.requests().map(|(k, v)| (k.clone(), v.clone())).collect();
    let item = |requests| LimitRangeItem {
        type_: "Container".into(),
        default_request: Some(requests),
        ..LimitRangeItem::default()
    };
    (!requests.is_empty()).then(|| LimitRangeSpec { limits: vec![item(requests)] })
}

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn subject(owner: &Owner) -> Subject {
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
