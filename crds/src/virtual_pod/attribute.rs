//! Attribution of one host pod. The checks are those of `IsManaged` in `pkg/util/translate/single_namespace.go` of vCluster 0.36.1, and
//! three more: UID and virtual namespace are set, and the label with the virtual namespace agrees.

use std::collections::BTreeMap;

use crate::vcluster;
use kube::core::ObjectMeta;

use super::host_name;

/// Longest name in Kubernetes, in bytes: a DNS subdomain.
const LONGEST_NAME: usize = 253;

/// The metadata of a host pod that [`attribute()`] reads.
#[derive(Clone, Copy, Debug)]
pub struct HostPod<'a> {
    /// Namespace on the host cluster.
    pub namespace: &'a str,
    /// Name on the host cluster.
    pub name: &'a str,
    /// UID on the host cluster.
    pub uid: &'a str,
    /// Labels, if there are any.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Annotations, if there are any.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

impl<'a> From<&'a ObjectMeta> for HostPod<'a> {
    fn from(metadata: &'a ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default(),
            labels: metadata.labels.as_ref(),
            annotations: metadata.annotations.as_ref(),
        }
    }
}

impl<'a> HostPod<'a> {
    fn label(self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).map(String::as_str)
    }

    /// An annotation that is set and not empty: vCluster treats empty ones as unset.
    fn annotation(self, key: &str) -> Option<&'a str> {
        self.annotations?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Identity of a pod in the cluster that its tenant uses: the host cluster or a virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodIdentity<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// Tenant and origin of a host pod. Every origin is charged to the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution<'a> {
    /// The tenant of the host namespace.
    pub tenant: &'a str,
    /// How the pod was created.
    pub origin: Origin<'a>,
}

/// How a pod in the host namespace of a tenant was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// The tenant has no virtual cluster and created the pod on the host cluster.
    Namespace(PodIdentity<'a>),
    /// The virtual cluster's syncer created it, and all checks agree.
    Virtual {
        /// Name of the virtual cluster.
        cluster: &'a str,
        /// The pod in the virtual cluster.
        pod: PodIdentity<'a>,
    },
    /// It has the label or the annotations of a synced pod, but a check failed: its virtual pod is unknown.
    Suspicious {
        /// The failed check, for people.
        reason: String,
    },
    /// A pod of the virtual cluster's control plane.
    ControlPlane {
        /// Name of the virtual cluster.
        cluster: &'a str,
    },
    /// It was created on the host cluster, and neither by the syncer nor as the control plane.
    Unsynced,
}

/// Attributes a pod in a host namespace of `tenant`, whose virtual cluster has the name `virtual_cluster`. The tenant must come from the
/// namespace's label, never from the pod.
pub fn attribute<'a>(tenant: &'a str, virtual_cluster: Option<&'a str>, pod: HostPod<'a>) -> Attribution<'a> {
    let origin = match virtual_cluster {
        // such a tenant can write every label and annotation of its pods, so those of vCluster are ignored
        None => Origin::Namespace(PodIdentity { namespace: pod.namespace, name: pod.name, uid: pod.uid }),
        Some(cluster) => origin(cluster, pod),
    };
    Attribution { tenant, origin }
}

/// The syncer labels every pod that it creates, so a pod without the label has another origin.
fn origin<'a>(cluster: &'a str, pod: HostPod<'a>) -> Origin<'a> {
    match pod.label(vcluster::MANAGED_BY) {
        Some(managed_by) if managed_by == cluster => match virtual_identity(cluster, pod) {
            Ok(pod) => Origin::Virtual { cluster, pod },
            Err(error) => Origin::Suspicious { reason: error.to_string() },
        },
        Some(_) => Origin::Suspicious {
            reason: format!("label {} is not {cluster}, the virtual cluster of the tenant", vcluster::MANAGED_BY),
        },
        None if pod.annotation(vcluster::OBJECT_NAME).is_some() => Origin::Suspicious {
            reason: format!("annotation {} is set without label {}", vcluster::OBJECT_NAME, vcluster::MANAGED_BY),
        },
        None if is_control_plane(cluster, pod) => Origin::ControlPlane { cluster },
        None => Origin::Unsynced,
    }
}

fn is_control_plane(cluster: &str, pod: HostPod<'_>) -> bool {
    pod.label(vcluster::APP) == Some(vcluster::CONTROL_PLANE_APP) && pod.label(vcluster::RELEASE) == Some(cluster)
}

/// Has it only characters of names and UIDs, and at most their length?
fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    text.len() <= LONGEST_NAME && text.bytes().all(allowed)
}

/// A failed check of a pod that claims to be of the syncer. It quotes no unchecked annotation, because these have any length.
#[derive(Debug, thiserror::Error)]
enum IdentityError {
    #[error("annotation {0} is not set")]
    NotSet(&'static str),
    #[error("annotation {0} is no name in Kubernetes")]
    NoName(&'static str),
    #[error("its annotations name a virtual pod whose host name is {0}")]
    HostName(String),
    #[error("{kind} {key} is not {expected}")]
    Differs { kind: &'static str, key: &'static str, expected: String },
}

/// The virtual pod that the annotations name.
fn virtual_identity<'a>(cluster: &str, pod: HostPod<'a>) -> Result<PodIdentity<'a>, IdentityError> {
    let required = |key| pod.annotation(key).ok_or(IdentityError::NotSet(key));
    let name = required(vcluster::OBJECT_NAME)?;
    let namespace = required(vcluster::OBJECT_NAMESPACE)?;
    let uid = required(vcluster::OBJECT_UID)?;
    // of a long name only the start and a hash are in the host name: the rest is compared with nothing, and is shown to people
    for (key, value) in
        [(vcluster::OBJECT_NAME, name), (vcluster::OBJECT_NAMESPACE, namespace), (vcluster::OBJECT_UID, uid)]
    {
        if !is_name(value) {
            return Err(IdentityError::NoName(key));
        }
    }
    let expected = host_name(name, namespace, cluster);
    if expected != pod.name {
        return Err(IdentityError::HostName(expected));
    }
    // older releases do not set them: vCluster compares them only where they are set
    for (kind, key, found, expected) in [
        ("annotation", vcluster::OBJECT_KIND, pod.annotation(vcluster::OBJECT_KIND), vcluster::POD_KIND),
        ("annotation", vcluster::OBJECT_HOST_NAME, pod.annotation(vcluster::OBJECT_HOST_NAME), pod.name),
        ("annotation", vcluster::OBJECT_HOST_NAMESPACE, pod.annotation(vcluster::OBJECT_HOST_NAMESPACE), pod.namespace),
        ("label", vcluster::VIRTUAL_NAMESPACE, pod.label(vcluster::VIRTUAL_NAMESPACE), namespace),
    ] {
        if found.is_some_and(|found| found != expected) {
            return Err(IdentityError::Differs { kind, key, expected: expected.to_owned() });
        }
    }
    Ok(PodIdentity { namespace, name, uid })
}
