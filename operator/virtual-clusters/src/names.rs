//! Names of objects, labels and annotations of a virtual cluster. Those of vCluster are in [`gputenancy_crds::vcluster`].

use gputenancy_crds::vcluster::{APP, CONTROL_PLANE_APP, RELEASE};

/// Value of the label `app.kubernetes.io/managed-by` on the objects that this program applies.
pub const MANAGED_BY: &str = "gputenancy-virtual-clusters";
/// Field manager of this program.
pub const MANAGER: &str = "gputenancy-virtual-clusters";
/// Field manager of `status.virtualCluster`.
pub const STATUS_MANAGER: &str = "gputenancy-virtual-clusters/status";
/// Role binding with this program's rights in a tenant's namespace, written by the operator.
pub const BINDING: &str = "gputenancy-virtual-clusters";
/// Secret with the team's kubeconfig, in the tenant's namespace.
pub const KUBECONFIG_SECRET: &str = "gputenancy-kubeconfig";
/// Annotation of that Secret: what the kubeconfig was made for, to see when it no longer fits.
pub const MADE_FOR: &str = "gputenancy.io/made-for";
/// Annotation of that Secret: when the token was issued.
pub const ISSUED: &str = "gputenancy.io/issued";
/// Annotation of that Secret: when the token expires.
pub const EXPIRES: &str = "gputenancy.io/expires";
/// `ServiceAccount` inside, in `kube-system`, whose token the team gets; its binding has the same name.
pub const INSIDE_ACCOUNT: &str = "gputenancy-tenant";
/// Namespace of that account.
pub const INSIDE_NAMESPACE: &str = "kube-system";
/// `ConfigMap` inside with the tenant's own profiles, in [`CATALOG_NAMESPACE`].
pub const CATALOG: &str = "gputenancy-catalog";
/// Namespace of the catalog: the API server creates it, and lets it not be deleted.
pub const CATALOG_NAMESPACE: &str = "kube-public";

pub use gputenancy_crds::names::admin_secret;

/// Secret with the certificates of the control plane, written by the syncer.
pub fn certificates_secret(cluster: &str) -> String {
    format!("{cluster}-certs")
}

/// Selector of the workload and the pods of a control plane.
pub fn control_plane(cluster: &str) -> String {
    format!("{APP}={CONTROL_PLANE_APP},{RELEASE}={cluster}")
}
