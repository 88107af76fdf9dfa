//! Namespaces that tenants list and that are not their own, from the tenants' statuses. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use gputenancy_crds::{GpuTenant, NamespaceState};

/// The tenant of each namespace that has one, by the statuses of all tenants.
pub struct NamespaceOwners<'a>(HashMap<&'a str, &'a str>);

impl<'a> NamespaceOwners<'a> {
    /// The namespaces of these tenants, also of those that are being deleted.
    pub fn of(tenants: &'a [Arc<GpuTenant>]) -> Self {
        let own = |tenant: &'a GpuTenant| {
            let own = states(tenant).filter(|state| state.is_own());
            own.map(|state| (state.name.as_str(), name(tenant)))
        };
        Self(tenants.iter().flat_map(|tenant| own(tenant)).collect())
    }

    /// Namespaces that a tenant lists and that are not its own, with the tenant that has each. A namespace of another tenant is refused at
    /// once; one without a tenant when the status of the tenant says so.
    pub fn refused(&self, tenant: &'a GpuTenant) -> BTreeMap<&'a str, Option<&'a str>> {
        let refused = |namespace: &'a str| match self.0.get(namespace) {
            Some(owner) => (*owner != name(tenant)).then_some(Some(*owner)),
            None => foreign(tenant).any(|name| name == namespace).then_some(None),
        };
        let listed = tenant.spec.namespaces.iter().map(|n| n.name.as_str());
        listed.filter_map(|namespace| Some((namespace, refused(namespace)?))).collect()
    }
}

/// Namespaces that the status of a tenant calls foreign, in the order of the status.
pub fn foreign(tenant: &GpuTenant) -> impl Iterator<Item = &str> {
    states(tenant).filter(|state| state.is_foreign()).map(|state| state.name.as_str())
}

fn states(tenant: &GpuTenant) -> impl Iterator<Item = &NamespaceState> {
    tenant.status.iter().flat_map(|status| &status.namespaces)
}

fn name(tenant: &GpuTenant) -> &str {
    tenant.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tenant(name: &str, listed: &[&str], status: &[(&str, &str)]) -> Arc<GpuTenant> {
        let listed: Vec<_> = listed.iter().map(|name| json!({"name": name})).collect();
        let phases: Vec<_> = status.iter().map(|(name, phase)| json!({"name": name, "phase": phase})).collect();
        let object =
            json!({"metadata": {"name": name}, "spec": {"namespaces": listed}, "status": {"namespaces": phases}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn refused(tenants: &[Arc<GpuTenant>], at: usize) -> Vec<(&str, Option<&str>)> {
        NamespaceOwners::of(tenants).refused(&tenants[at]).into_iter().collect()
    }

    #[test]
    fn namespace_of_another_tenant_is_refused_before_the_status_says_so() {
        for phase in ["Active", "Retained", "Terminating"] {
            let all = [tenant("team-a", &["a"], &[("a", phase)]), tenant("x4", &["a", "x"], &[])];
            assert_eq!(refused(&all, 1), [("a", Some("team-a"))], "{phase}");
            assert_eq!(refused(&all, 0), [], "{phase}");
        }
    }

    #[test]
    fn older_tenant_that_lists_a_namespace_of_a_newer_one_does_not_take_it() {
        let all = [tenant("old", &["old", "new"], &[("old", "Active")]), tenant("new", &["new"], &[("new", "Active")])];
        assert_eq!((refused(&all, 0), refused(&all, 1)), (vec![("new", Some("new"))], vec![]));
    }

    #[test]
    fn namespace_without_a_tenant_is_refused_by_the_status() {
        for (phase, expected) in [("Foreign", vec![("x", None)]), ("Missing", vec![]), ("Adopting", vec![])] {
            assert_eq!(refused(&[tenant("t", &["x"], &[("x", phase)])], 0), expected, "{phase}");
        }
        // the status still names it, the spec does not
        assert_eq!(refused(&[tenant("t", &["y"], &[("x", "Foreign")])], 0), []);
    }
}
