//! Rendered manifests as objects: parsed, checked and labelled. Pure.

use gputenancy_crds::{GpuTenant, names as labels};
use kube::{ResourceExt as _, api::ApiResource};
use serde_json::{Value, json};

use super::RenderError;
use crate::names;

/// A kind of objects that are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// API group, empty for the core's.
    pub group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Its resource.
    pub plural: &'static str,
}

const fn kind(group: &'static str, kind: &'static str, plural: &'static str) -> Kind {
    Kind { group, kind, plural }
}

/// All kinds, all of version v1. Others are refused: this program has no right on them, and reaches outside of a namespace for none.
pub const KINDS: [Kind; 10] = [
    kind("", "ServiceAccount", "serviceaccounts"),
    kind("", "Secret", "secrets"),
    kind("", "ConfigMap", "configmaps"),
    kind("rbac.authorization.k8s.io", "Role", "roles"),
    kind("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    kind("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
    kind("", "Service", "services"),
    kind("apps", "StatefulSet", "statefulsets"),
    kind("apps", "Deployment", "deployments"),
    kind("networking.k8s.io", "Ingress", "ingresses"),
];

impl Kind {
    /// `apiVersion` of its objects.
    pub fn api_version(self) -> String {
        if self.group.is_empty() { "v1".into() } else { format!("{}/v1", self.group) }
    }

    /// For kube's dynamic API.
    pub fn resource(self) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: "v1".into(),
            api_version: self.api_version(),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }

    /// Runs the control plane.
    pub fn is_workload(self) -> bool {
        self.group == "apps"
    }
}

/// An object to apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The whole object.
    pub content: Value,
}

/// What becomes of the number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// As rendered.
    Rendered,
    /// None: `spec.virtualCluster.suspend`, or deletion.
    Zero,
    /// Paused with `vcluster pause`: the number is not managed.
    Kept,
}

/// The tenant's only namespace.
pub fn namespace_of(tenant: &GpuTenant) -> String {
    tenant.spec.namespaces.first().map(|n| n.name.clone()).unwrap_or_default()
}

/// The objects of a rendered chart, in the order of application.
pub fn parse(tenant: &GpuTenant, manifests: &str) -> Result<Vec<Object>, RenderError> {
    let namespace = namespace_of(tenant);
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(manifests).map_err(|e| RenderError::Output(e.to_string()))?;
    let mut objects = Vec::new();
    for content in documents.into_iter().filter(|d| !d.is_null()) {
        objects.push(checked(&namespace, content)?);
    }
    for object in &mut objects {
        label(&mut object.content, &tenant.name_any());
    }
    let rank = |object: &Object| KINDS.iter().position(|k| *k == object.kind);
    objects.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
    Ok(objects)
}

fn checked(namespace: &str, content: Value) -> Result<Object, RenderError> {
    let text = |at: &str| content.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let refused = |why: String| RenderError::ObjectRefused { object: format!("{kind} {name}"), why };
    let Some(known) = KINDS.into_iter().find(|k| k.kind == kind && k.api_version() == api_version) else {
        return Err(refused(format!("objects of {api_version} {kind} are not part of a virtual cluster here")));
    };
    match text("/metadata/namespace") {
        other if other != namespace => Err(refused(format!("it belongs to namespace {other:?}, not to {namespace}"))),
        _ if name.is_empty() => Err(refused("it has no name".into())),
        _ => Ok(Object { kind: known, name, content }),
    }
}

fn label(content: &mut Value, tenant: &str) {
    if let Some(own) = content.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        let all = own.entry("labels").or_insert_with(|| json!({}));
        if let Some(all) = all.as_object_mut() {
            all.insert(labels::MANAGED_BY_LABEL.into(), names::MANAGED_BY.into());
            all.insert(labels::TENANT_LABEL.into(), tenant.into());
        }
    }
}

/// Sets the number of replicas of the control plane.
pub fn scale(objects: &mut [Object], replicas: Replicas) {
    for object in objects.iter_mut().filter(|o| o.kind.is_workload()) {
        let Some(spec) = object.content.pointer_mut("/spec").and_then(Value::as_object_mut) else { continue };
        match replicas {
            Replicas::Rendered => {}
            Replicas::Zero => drop(spec.insert("replicas".into(), 0.into())),
            Replicas::Kept => drop(spec.remove("replicas")),
        }
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuTenantSpec, TenantNamespace};

    use super::*;

    fn tenant() -> GpuTenant {
        let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
        GpuTenant::new("team-a", GpuTenantSpec { namespaces, ..GpuTenantSpec::default() })
    }

    const TWO: &str = "
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: team-a, namespace: ns-a, labels: {app: vcluster}}
spec: {replicas: 1}
---
apiVersion: v1
kind: Service
metadata: {name: team-a, namespace: ns-a}
";

    #[test]
    fn objects_are_labelled_and_in_the_order_of_application() {
        let objects = parse(&tenant(), TWO).unwrap();
        assert_eq!(objects.iter().map(|o| o.kind.kind).collect::<Vec<_>>(), ["Service", "StatefulSet"]);
        assert_eq!(objects[1].content["metadata"]["labels"]["app"], "vcluster");
        assert_eq!(objects[0].content["metadata"]["labels"]["gputenancy.io/tenant"], "team-a");
    }

    #[test]
    fn object_outside_of_the_namespace_is_refused() {
        let refusal = |text: &str| parse(&tenant(), text).unwrap_err().to_string();
        let role = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: x}}";
        assert!(refusal(role).contains("ClusterRole x, which is not applied"), "{}", refusal(role));
        let elsewhere = "{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: kube-system}}";
        assert!(refusal(elsewhere).contains("belongs to namespace \"kube-system\""));
        let nowhere = "{apiVersion: v1, kind: Secret, metadata: {name: x}}";
        assert!(refusal(nowhere).contains("belongs to namespace \"\""));
    }

    #[test]
    fn paused_workload_keeps_the_replicas_of_its_pauser() {
        let mut objects = parse(&tenant(), TWO).unwrap();
        scale(&mut objects, Replicas::Zero);
        assert_eq!(objects[1].content["spec"]["replicas"], 0);
        scale(&mut objects, Replicas::Kept);
        assert_eq!(objects[1].content["spec"].get("replicas"), None);
        assert_eq!(objects[0].content.get("spec"), None);
    }
}
