//! The managed objects of a namespace as they should be, and the writes that make them so. Pure.

use gputenancy_cluster::desired::{Owned, OwnedObject};
use gputenancy_crds::Network;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::write::Write;
use crate::tenant::{
    observe::{Observed, managed::Managed},
    render::{self, network, tenant_role},
};

/// What to write so that an object is as it should be; `None`: it is, or it is the quota, whose limits depend on all namespaces.
pub fn write(seen: &Observed, kind: Managed, namespace: &str) -> Option<Write> {
    let tenant = &seen.tenant;
    match kind {
        Managed::NetworkPolicy => compare(seen, kind, namespace, network_policy(seen, namespace)),
        Managed::LimitRange => compare(seen, kind, namespace, render::limit_range(tenant, namespace, &seen.standard)),
        Managed::PriorityClassQuota => {
            compare(seen, kind, namespace, render::priority_class_quota(tenant, namespace, &seen.standard))
        }
        Managed::PodAffinityQuota => {
            compare(seen, kind, namespace, Some(render::pod_affinity_quota(tenant, namespace)))
        }
        Managed::Grant => compare(seen, kind, namespace, Some(render::grant(tenant, namespace, seen.grant(namespace)))),
        Managed::Owners => compare(seen, kind, namespace, render::owners(tenant, namespace)),
        Managed::Viewers => compare(seen, kind, namespace, render::viewers(tenant, namespace)),
        Managed::VirtualCluster => {
            let binding = || render::virtual_cluster(tenant, namespace, &seen.operator_namespace);
            compare(seen, kind, namespace, seen.has_virtual_cluster().then(binding))
        }
        Managed::TenantRole => compare(seen, kind, namespace, tenant_role::role(tenant)),
        Managed::TenantRoleBinding => compare(seen, kind, namespace, tenant_role::binding(tenant)),
        Managed::Quota => None,
    }
}

/// The network policy of a namespace; `None` for a tenant that is open.
pub fn network_policy(seen: &Observed, namespace: &str) -> Option<NetworkPolicy> {
    let isolated = || {
        let controller = seen.has_virtual_cluster().then_some(&*seen.operator_namespace);
        network::isolated(&seen.name(), &seen.api_endpoints, &seen.standard.egress, controller)
    };
    (seen.tenant.spec.network == Network::Isolated).then(|| render::network_policy(&seen.tenant, namespace, isolated()))
}

fn compare<K: Owned>(seen: &Observed, kind: Managed, namespace: &str, wanted: Option<K>) -> Option<Write> {
    let present = seen.managed(kind, namespace);
    let namespace = namespace.to_owned();
    let Some(wanted) = wanted else { return present.map(|_| Write::Delete { kind, namespace }) };
    let OwnedObject { content, fixed, .. } = OwnedObject::of(&wanted);
    if present.is_some_and(|present| present.content == content) {
        return None;
    }
    let recreate = present.is_some_and(|present| present.fixed != fixed);
    // types of this program always serialize
    let object = serde_json::to_value(wanted).unwrap_or_default();
    Some(Write::Apply { kind, namespace, object, recreate })
}
