//! The pod inside a virtual cluster that a host pod was made for, as reports show it.

use gputenancy_crds::{
    GpuTenant,
    virtual_pod::{HostPod, Origin, attribute},
};
use kube::{ResourceExt as _, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Origin of a pod in the namespace of a tenant with a virtual cluster, from the labels and annotations of vCluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Inside {
    /// The virtual cluster made it for this pod inside.
    Pod {
        /// Namespace inside.
        namespace: String,
        /// Name inside.
        name: String,
    },
    /// Its labels and annotations do not fit together, so the pod inside is unknown. It counts for the tenant all the same.
    Suspicious {
        /// The failed check.
        reason: String,
    },
}

impl Inside {
    /// Of a pod in a namespace of this tenant; `None`: the team did not make it inside, or has no virtual cluster.
    pub fn of(tenant: &GpuTenant, pod: &ObjectMeta) -> Option<Self> {
        let name = tenant.name_any();
        // a virtual cluster has the name of its tenant
        let cluster = tenant.spec.virtual_cluster.as_ref().map(|_| name.as_str());
        match attribute(&name, cluster, HostPod::from(pod)).origin {
            Origin::Virtual { pod, .. } => Some(Self::Pod { namespace: pod.namespace.into(), name: pod.name.into() }),
            Origin::Suspicious { reason } => Some(Self::Suspicious { reason }),
            Origin::Namespace(_) | Origin::ControlPlane { .. } | Origin::Unsynced => None,
        }
    }

    /// What to show in place of the host pod `host`, and where that name is then: a name inside, or `suspicious`.
    pub fn shown(inside: Option<&Self>, host: String) -> (String, Option<String>) {
        match inside {
            None => (host, None),
            Some(Self::Pod { namespace, name }) => (format!("{namespace}/{name}"), Some(format!("host pod {host}"))),
            Some(Self::Suspicious { reason }) => ("suspicious".to_owned(), Some(format!("host pod {host}: {reason}"))),
        }
    }
}
