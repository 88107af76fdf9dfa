//! What installs vCluster for a tenant: `spec.virtualCluster.backend`.
//!
//! [`helm`] applies the rendered objects. [`external`] observes a vCluster that something else installs.

pub mod external;
pub mod helm;

use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus};
use kube::ResourceExt as _;

use crate::render::objects;

/// The backend with which objects were written, before the present spec; `None`: nothing was written yet. A status of a release without
/// backends is of [`VirtualClusterBackend::Helm`].
pub fn installed(status: Option<&VirtualClusterStatus>) -> Option<VirtualClusterBackend> {
    let status = status.filter(|s| **s != VirtualClusterStatus::default())?;
    Some(status.backend.unwrap_or_default())
}

/// DNS name of the API server in this cluster. An adopted vCluster has the short one in its certificate, without further settings.
pub fn service(tenant: &GpuTenant, cluster: &VirtualCluster) -> String {
    let short = format!("{}.{}", tenant.name_any(), objects::namespace_of(tenant));
    if cluster.backend == VirtualClusterBackend::External { short } else { format!("{short}.svc") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_without_a_backend_is_of_helm() {
        assert_eq!(installed(None), None);
        assert_eq!(installed(Some(&VirtualClusterStatus::default())), None);
        let old = VirtualClusterStatus { version: Some("0.36.1".into()), ..VirtualClusterStatus::default() };
        assert_eq!(installed(Some(&old)), Some(VirtualClusterBackend::Helm));
        let external = VirtualClusterStatus { backend: Some(VirtualClusterBackend::External), ..old };
        assert_eq!(installed(Some(&external)), Some(VirtualClusterBackend::External));
    }
}
