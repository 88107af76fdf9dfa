//! Renders the objects of a tenant. Pure; nothing here can fail.

pub mod namespace_defaults;
pub mod network;
pub mod tenant_role;

use std::collections::BTreeMap;

use gputenancy_crds::{GpuGrant, GpuGrantSpec, GpuTenant, Owner, OwnerKind, PodSecurity, names};
use gputenancy_decisions::quota::Limits;
use k8s_openapi::{
    api::{
        core::v1::{
            LimitRange, LimitRangeItem, LimitRangeSpec, Namespace, ResourceQuota, ResourceQuotaSpec, ScopeSelector,
            ScopedResourceSelectorRequirement,
        },
        networking::v1::{NetworkPolicy, NetworkPolicySpec},
        rbac::v1::{RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Resource, ResourceExt as _, api::ObjectMeta};

use self::namespace_defaults::Standard;

/// Name of the quota for `PriorityClasses`, in every namespace of a tenant with `spec.priorityClasses`.
pub const PRIORITY_CLASS_QUOTA: &str = "gputenancy-priority-classes";
/// Name of the quota for affinity to pods of other namespaces, in every namespace of a tenant.
pub const POD_AFFINITY_QUOTA: &str = "gputenancy-pod-affinity";
/// Name of the owners' role binding in every namespace of a tenant that has owners.
pub const OWNERS: &str = "gputenancy-owners";
/// The chart's role for owners: `edit` without network policies.
pub const OWNER_ROLE: &str = "gputenancy:tenant-owner";
/// Name of the viewers' role binding in every namespace of a tenant that has viewers.
pub const VIEWERS: &str = "gputenancy-viewers";
/// The chart's role for viewers: `view`.
pub const VIEWER_ROLE: &str = "gputenancy:tenant-viewer";
/// Name of the role binding of the controller of virtual clusters, in the namespace of a tenant that has one; also its `ServiceAccount`.
pub const VIRTUAL_CLUSTERS: &str = "gputenancy-virtual-clusters";
/// Name of the network policy in every namespace of an isolated tenant.
pub const NETWORK_POLICY: &str = "gputenancy";
/// Name of the limit range in every namespace of a tenant.
pub const LIMIT_RANGE: &str = "gputenancy";
/// Annotation of namespaces that the operator created, with the tenant's uid: these are deleted with the tenant, others are released.
pub const CREATED_FOR: &str = "gputenancy.io/created-for";
/// Annotation of an adopted namespace: the time of its adoption, RFC 3339.
pub const ADOPTED: &str = "gputenancy.io/adopted";
/// Label of namespaces that a tenant no longer lists: they keep their data and get no GPUs.
pub const RETAINED_FROM: &str = "gputenancy.io/retained-from";
/// Annotation of quotas: the leader that wrote last, and its write.
pub const STAMP: &str = "gputenancy.io/written-by";

const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Labels of every managed object of a tenant.
pub fn labels(tenant: &str) -> BTreeMap<String, String> {
    [(names::TENANT_LABEL, tenant), (names::MANAGED_BY_LABEL, names::MANAGED_BY)]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Do these labels include the wanted ones?
pub fn includes(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Has an object the labels of a managed object of the tenant?
pub fn is_labelled(object: &impl Resource, tenant: &str) -> bool {
    includes(object.labels(), &labels(tenant))
}

/// Labels of a namespace of a tenant; `retained`: the tenant no longer lists it; `created`: by the operator. Others manage adopted namespaces.
pub fn namespace_labels(tenant: &GpuTenant, retained: bool, created: bool) -> BTreeMap<String, String> {
    let name = tenant.name_any();
    let mut labels = labels(&name);
    if !created {
        labels.remove(names::MANAGED_BY_LABEL);
    }
    let level = match tenant.spec.pod_security {
        PodSecurity::Restricted => "restricted",
        PodSecurity::Baseline => "baseline",
    };
    labels.insert(POD_SECURITY.into(), level.into());
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

/// The quota of a namespace, without the version that it is decided on.
pub fn quota(tenant: &GpuTenant, namespace: &str, hard: Limits) -> ResourceQuota {
    ResourceQuota {
        metadata: meta(tenant, namespace, names::QUOTA),
        spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
        status: None,
    }
}

/// A quota that admits no pod of a `PriorityClass` that neither the tenant lists nor the platform permits to all; `None`: the tenant has no list. The
/// admission policies refuse such a pod before, with a better message; this holds without them.
pub fn priority_class_quota(tenant: &GpuTenant, namespace: &str, standard: &Standard) -> Option<ResourceQuota> {
    let mut named = tenant.spec.priority_classes.clone()?;
    named.extend(standard.priority_classes.iter().filter(|class| !named.contains(class)).cloned().collect::<Vec<_>>());
    let class = |operator: &str, values: Option<Vec<String>>| ScopedResourceSelectorRequirement {
        scope_name: "PriorityClass".into(),
        operator: operator.into(),
        values,
    };
    // NotIn matches pods without a class too, so both are required
    let others = (!named.is_empty()).then(|| class("NotIn", Some(named)));
    let counted = [class("Exists", None)].into_iter().chain(others).collect();
    let spec = ResourceQuotaSpec {
        hard: Some([("pods".to_owned(), Quantity("0".into()))].into()),
        scope_selector: Some(ScopeSelector { match_expressions: Some(counted) }),
        scopes: None,
    };
    Some(ResourceQuota { metadata: meta(tenant, namespace, PRIORITY_CLASS_QUOTA), spec: Some(spec), status: None })
}

/// A quota that admits no pod whose affinity names namespaces: such a pod keeps pods of other teams away from nodes, or leads to theirs. Pods whose
/// affinity names none are not counted. The admission policies refuse other namespaces with a reason; this holds without them.
pub fn pod_affinity_quota(tenant: &GpuTenant, namespace: &str) -> ResourceQuota {
    let scope = ScopedResourceSelectorRequirement {
        scope_name: "CrossNamespacePodAffinity".into(),
        operator: "Exists".into(),
        values: None,
    };
    let spec = ResourceQuotaSpec {
        hard: Some([("pods".to_owned(), Quantity("0".into()))].into()),
        scope_selector: Some(ScopeSelector { match_expressions: Some(vec![scope]) }),
        scopes: None,
    };
    ResourceQuota { metadata: meta(tenant, namespace, POD_AFFINITY_QUOTA), spec: Some(spec), status: None }
}

/// The grant of a namespace.
pub fn grant(tenant: &GpuTenant, namespace: &str, spec: GpuGrantSpec) -> GpuGrant {
    GpuGrant { metadata: meta(tenant, namespace, names::GRANT), spec }
}

/// The owners' role binding of a namespace; `None` without owners.
pub fn owners(tenant: &GpuTenant, namespace: &str) -> Option<RoleBinding> {
    binding(tenant, namespace, (OWNERS, OWNER_ROLE), &tenant.spec.owners)
}

/// The viewers' role binding of a namespace; `None` without viewers.
pub fn viewers(tenant: &GpuTenant, namespace: &str) -> Option<RoleBinding> {
    binding(tenant, namespace, (VIEWERS, VIEWER_ROLE), &tenant.spec.viewers)
}

/// The role binding of the controller of virtual clusters, whose account is in the operator's namespace.
pub fn virtual_cluster(tenant: &GpuTenant, namespace: &str, operator_namespace: &str) -> RoleBinding {
    let account = Subject {
        kind: "ServiceAccount".into(),
        name: VIRTUAL_CLUSTERS.into(),
        namespace: Some(operator_namespace.into()),
        ..Subject::default()
    };
    RoleBinding {
        metadata: meta(tenant, namespace, VIRTUAL_CLUSTERS),
        role_ref: RoleRef {
            api_group: Some(RBAC.into()),
            kind: "ClusterRole".into(),
            name: names::VIRTUAL_CLUSTER_ROLE.into(),
        },
        subjects: Some(vec![account]),
    }
}

fn binding(tenant: &GpuTenant, namespace: &str, (name, role): (&str, &str), people: &[Owner]) -> Option<RoleBinding> {
    (!people.is_empty()).then(|| RoleBinding {
        metadata: meta(tenant, namespace, name),
        role_ref: RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: role.into() },
        subjects: Some(people.iter().map(subject).collect()),
    })
}

/// The network policy of a namespace.
pub fn network_policy(tenant: &GpuTenant, namespace: &str, spec: NetworkPolicySpec) -> NetworkPolicy {
    NetworkPolicy { metadata: meta(tenant, namespace, NETWORK_POLICY), spec: Some(spec) }
}

/// The limit range with the platform's default requests, so that quotas of requests need none in every manifest; `None` without
/// defaults. Never a default limit: the API server refuses a pod whose own request is higher.
pub fn limit_range(tenant: &GpuTenant, namespace: &str, standard: &Standard) -> Option<LimitRange> {
    let requests: BTreeMap<_, _> = standard.requests().map(|(k, v)| (k.clone(), v.clone())).collect();
    let item = |requests| LimitRangeItem {
        type_: "Container".into(),
        default_request: Some(requests),
        ..LimitRangeItem::default()
    };
    let metadata = meta(tenant, namespace, LIMIT_RANGE);
    (!requests.is_empty()).then(|| LimitRange { metadata, spec: Some(LimitRangeSpec { limits: vec![item(requests)] }) })
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

/// Metadata of a managed object.
pub fn meta(tenant: &GpuTenant, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        labels: Some(labels(&tenant.name_any())),
        ..ObjectMeta::default()
    }
}
