//! The objects of the operator that limit and isolate a tenant in its namespace. Pure.

use std::fmt;

use gputenancy_crds::{GpuTenant, Network, names};
use kube::api::ApiResource;

/// One of these objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Its name.
    pub name: &'static str,
}

const fn policy(
    (group, version): (&'static str, &'static str),
    (kind, plural): (&'static str, &'static str),
    name: &'static str,
) -> Policy {
    Policy { group, version, kind, plural, name }
}

/// Name of network policy and limit range, as the operator writes them.
const ISOLATION: &str = "gputenancy";

impl Policy {
    /// The objects of a tenant. `limit_range`: the platform has default requests. A tenant with `spec.network: Open` has no network policy.
    pub fn of(tenant: &GpuTenant, limit_range: bool) -> Vec<Self> {
        let grant = policy(("gputenancy.io", "v1alpha1"), ("GpuGrant", "gpugrants"), names::GRANT);
        let quota = policy(("", "v1"), ("ResourceQuota", "resourcequotas"), names::QUOTA);
        let limits = policy(("", "v1"), ("LimitRange", "limitranges"), ISOLATION);
        let network = policy(("networking.k8s.io", "v1"), ("NetworkPolicy", "networkpolicies"), ISOLATION);
        let isolated = tenant.spec.network == Network::Isolated;
        let optional = [(limits, limit_range), (network, isolated)].into_iter().filter(|(_, wanted)| *wanted);
        [grant, quota].into_iter().chain(optional.map(|(policy, _)| policy)).collect()
    }

    /// For kube's dynamic API.
    pub fn resource(self) -> ApiResource {
        let Self { group, version, kind, plural, .. } = self;
        ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: if group.is_empty() { version.into() } else { format!("{group}/{version}") },
            kind: kind.into(),
            plural: plural.into(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::GpuTenantSpec;

    use super::*;

    #[test]
    fn open_tenant_without_default_requests_has_grant_and_quota() {
        let kinds = |network, limit_range| {
            let tenant = GpuTenant::new("team-a", GpuTenantSpec { network, ..GpuTenantSpec::default() });
            Policy::of(&tenant, limit_range).into_iter().map(|p| p.to_string()).collect::<Vec<_>>()
        };
        let all = ["GpuGrant grant", "ResourceQuota gputenancy", "LimitRange gputenancy", "NetworkPolicy gputenancy"];
        assert_eq!(kinds(Network::Isolated, true), all);
        assert_eq!(kinds(Network::Open, false), all[..2]);
    }
}
