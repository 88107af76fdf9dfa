//! What installs vCluster for a tenant: `spec.virtualCluster.backend`.
//!
//! [`helm`] applies the rendered objects. [`flux`] and [`argo`] hand one object to another controller, through [`handed`]; that controller has
//! wide rights, so the chart is rendered and checked here first, and nothing that is refused is handed on. [`external`] observes a vCluster
//! that something else has installed. [`Offer`] is what the platform allows.

pub mod argo;
pub mod external;
pub mod flux;
pub mod handed;
pub mod helm;

use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend, VirtualClusterStatus, names as labels};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::{
    host::Live,
    names,
    offer::Offer,
    render::objects::{self, Kind, Object, Replicas},
};

/// Name of vCluster's chart in its repository.
pub const CHART: &str = "vcluster";
/// Longest text of another controller in a message, in bytes.
const MOST_TEXT: usize = 600;

/// What Flux or Argo CD is to install. It was rendered and checked before.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The tenant.
    pub tenant: &'a GpuTenant,
    /// Version of the chart.
    pub version: &'a str,
    /// All values: those of the platform and of the tenant.
    pub values: &'a Value,
    /// The control plane is stopped and stays so.
    pub stopped: bool,
}

impl Order<'_> {
    /// Name of the release, which is the tenant's.
    fn name(&self) -> String {
        self.tenant.name_any()
    }

    /// Namespace of the release.
    fn namespace(&self) -> String {
        objects::namespace_of(self.tenant)
    }

    /// Metadata of an object that is handed on.
    fn metadata(&self, namespace: &str, name: &str) -> Value {
        let labels = json!({labels::MANAGED_BY_LABEL: names::MANAGED_BY, labels::TENANT_LABEL: self.name()});
        json!({"name": name, "namespace": namespace, "labels": labels})
    }
}

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

/// Workloads whose number of replicas is to change, with the wanted number. Flux and Argo CD ignore the field, so that a pause by
/// `vcluster pause` is not undone by them; the number is managed here.
pub fn scale(rendered: &[Object], live: &[Live], replicas: Replicas) -> Vec<(Kind, String, i64)> {
    let number = |content: &Value| content.pointer("/spec/replicas").and_then(Value::as_i64);
    let wanted = |live: &Live| match replicas {
        Replicas::Zero | Replicas::Kept => Some(0),
        Replicas::Rendered => rendered
            .iter()
            .find(|object| object.kind == live.kind && object.name == live.name)
            .and_then(|object| number(&object.content)),
    };
    let workloads = live.iter().filter(|l| l.kind.is_workload());
    let differing = workloads.filter_map(|l| Some((l, wanted(l)?))).filter(|(l, n)| number(&l.content) != Some(*n));
    differing.map(|(l, n)| (l.kind, l.name.clone(), n)).collect()
}

/// Deletes what was handed to another controller; returns what is left of it. The controller deletes what it has installed.
pub async fn remove(
    client: &Client,
    offer: &Offer,
    backend: VirtualClusterBackend,
    (tenant, namespace): (&str, &str),
) -> kube::Result<Option<String>> {
    match backend {
        VirtualClusterBackend::FluxHelmRelease => flux::remove(client, tenant, namespace).await,
        VirtualClusterBackend::ArgoApplication => argo::remove(client, offer, tenant).await,
        VirtualClusterBackend::Helm | VirtualClusterBackend::External => Ok(None),
    }
}

/// The text at this place; empty: none.
fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

/// A text of another controller, shortened.
fn shortened(text: &str) -> &str {
    let text = text.trim();
    text.get(..text.floor_char_boundary(MOST_TEXT)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::objects::KINDS;

    fn workload(replicas: i64) -> (Object, Live) {
        let kind = *KINDS.iter().find(|k| k.kind == "StatefulSet").unwrap();
        let content = json!({"spec": {"replicas": replicas}});
        let live = Live { kind, name: "team-a".into(), version: None, content: content.clone() };
        (Object { kind, name: "team-a".into(), content }, live)
    }

    #[test]
    fn replicas_are_set_when_they_differ_from_what_is_wanted() {
        let (one, zero) = (workload(1), workload(0));
        let number = |live: &Live, replicas| {
            scale(std::slice::from_ref(&one.0), std::slice::from_ref(live), replicas).first().map(|(_, _, n)| *n)
        };
        assert_eq!(number(&one.1, Replicas::Zero), Some(0));
        assert_eq!(number(&one.1, Replicas::Kept), Some(0), "a pause holds also when something has scaled it up again");
        assert_eq!(number(&zero.1, Replicas::Kept), None);
        assert_eq!(number(&zero.1, Replicas::Rendered), Some(1));
        assert_eq!(number(&one.1, Replicas::Rendered), None);
        assert_eq!(scale(&[], &[zero.1], Replicas::Rendered), [], "a workload that is not rendered keeps its number");
    }

    #[test]
    fn status_without_a_backend_is_of_helm() {
        assert_eq!(installed(None), None);
        assert_eq!(installed(Some(&VirtualClusterStatus::default())), None);
        let old = VirtualClusterStatus { version: Some("0.36.1".into()), ..VirtualClusterStatus::default() };
        assert_eq!(installed(Some(&old)), Some(VirtualClusterBackend::Helm));
        let flux = VirtualClusterStatus { backend: Some(VirtualClusterBackend::FluxHelmRelease), ..old };
        assert_eq!(installed(Some(&flux)), Some(VirtualClusterBackend::FluxHelmRelease));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(shortened(" a "), "a");
        assert!(shortened(&"ä".repeat(MOST_TEXT)).len() <= MOST_TEXT);
    }
}

#[cfg(test)]
mod fixtures {
    //! A tenant for the tests of the backends.

    use gputenancy_crds::{GpuTenantSpec, TenantNamespace};

    use super::*;

    /// Tenant `team-a` with namespace `ns-a`.
    pub fn tenant() -> GpuTenant {
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
        GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() })
    }

    /// Values with a null, a false and a nested object.
    pub fn values() -> Value {
        json!({"telemetry": {"enabled": false}, "controlPlane": {"coredns": {"priorityClassName": null}, "proxy": {"extraSANs": ["team-a.ns-a.svc"]}}})
    }
}
