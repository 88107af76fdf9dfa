//! What lets owners and viewers read their own `GpuTenant`: a `ClusterRole` and a `ClusterRoleBinding` for each tenant. The garbage
//! collector removes them with the tenant. Off with `--owners-read-tenant=false`.

use std::fmt::Debug;

use gputenancy_cluster::wanted::{Owned, OwnedObject};
use gputenancy_crds::{GROUP, GpuTenant};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::{Api, Resource, ResourceExt as _, api::ObjectMeta, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{
    Context, TenantError, failed,
    render::{RBAC, labels, subject},
    versions::Written,
};
use crate::apply::Part;

/// Start of the names of both objects; the chart's policies confine the operator to it.
const PREFIX: &str = "gputenancy-tenant-";

/// What to do about one object.
#[derive(Debug, PartialEq)]
enum Step<K> {
    /// It is as wanted.
    Leave,
    /// Delete it.
    Remove,
    /// Apply it.
    Apply {
        /// The object.
        object: K,
        /// Delete the present one first: it differs in what server-side apply cannot change.
        recreate: bool,
    },
}

/// Fails while the caches do not have the last writes of both objects.
pub(super) fn caught_up(tenant: &GpuTenant, context: &Context) -> Result<(), TenantError> {
    let Some(present) = &context.caches.tenant_roles else { return Ok(()) };
    let name = name(tenant);
    let (role, binding) = (present.roles.get("", &name), present.bindings.get("", &name));
    let cached = |object: &Written| match object {
        Written::TenantRole => role.as_ref().map(|role| role.version),
        _ => binding.as_ref().map(|binding| binding.version),
    };
    match context.lagging(&key(&name), cached) {
        Some(object) => Err(TenantError::Lagging(format!("{object} {name}"))),
        None => Ok(()),
    }
}

/// Brings both objects of a tenant into the wanted state.
pub(super) async fn reconcile(tenant: &GpuTenant, context: &Context) -> Result<(), TenantError> {
    let Some(present) = &context.caches.tenant_roles else { return Ok(()) };
    let name = name(tenant);
    let (old_role, old_binding) = (present.roles.get("", &name), present.bindings.get("", &name));
    let (role, binding) = wanted(tenant).unzip();
    // the role first: a binding to a role that does not exist is refused
    execute(context, &name, Written::TenantRole, role, old_role.as_deref()).await?;
    execute(context, &name, Written::TenantBinding, binding, old_binding.as_deref()).await
}

/// Where the written versions are remembered: no namespace has such a name.
fn key(name: &str) -> String {
    format!("/{name}")
}

fn name(tenant: &GpuTenant) -> String {
    format!("{PREFIX}{}", tenant.name_any())
}

/// The objects of a tenant; none without owners and viewers.
pub(super) fn wanted(tenant: &GpuTenant) -> Option<(ClusterRole, ClusterRoleBinding)> {
    let subjects: Vec<Subject> = tenant.spec.owners.iter().chain(&tenant.spec.viewers).map(subject).collect();
    let metadata = ObjectMeta {
        name: Some(name(tenant)),
        labels: Some(labels(&tenant.name_any())),
        owner_references: Some(tenant.owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    };
    let reads = PolicyRule {
        api_groups: Some(vec![GROUP.to_owned()]),
        resources: Some(vec!["gputenants".to_owned()]),
        resource_names: Some(vec![tenant.name_any()]),
        verbs: ["get", "list", "watch"].map(str::to_owned).into(),
        ..PolicyRule::default()
    };
    let role_ref = RoleRef { api_group: Some(RBAC.into()), kind: "ClusterRole".into(), name: name(tenant) };
    (!subjects.is_empty()).then(|| {
        let role = ClusterRole { metadata: metadata.clone(), rules: Some(vec![reads]), aggregation_rule: None };
        (role, ClusterRoleBinding { metadata, role_ref, subjects: Some(subjects) })
    })
}

fn step<K: Owned>(wanted: Option<K>, present: Option<&OwnedObject>) -> Step<K> {
    match (wanted, present) {
        (Some(object), Some(present)) if present.content == OwnedObject::of(&object).content => Step::Leave,
        (Some(object), present) => {
            let fixed = OwnedObject::of(&object).fixed;
            Step::Apply { object, recreate: present.is_some_and(|p| p.fixed != fixed) }
        }
        (None, Some(_)) => Step::Remove,
        (None, None) => Step::Leave,
    }
}

async fn execute<K>(
    context: &Context,
    name: &str,
    written: Written,
    wanted: Option<K>,
    present: Option<&OwnedObject>,
) -> Result<(), TenantError>
where
    K: Owned + Resource<Scope = ClusterResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let what = format!("{} {name}", K::kind(&()));
    let step = step(wanted, present);
    if matches!(step, Step::Remove | Step::Apply { recreate: true, .. }) {
        let api = Api::<K>::all(context.writer.client());
        context.writer.delete(&api, name, None).await.map_err(failed(format!("deleting {what}")))?;
    }
    if let Step::Apply { object, .. } = step {
        let applied = context.writer.apply_fields::<K>(Part::Tenant, name, json!(object)).await;
        context.wrote(key(name), written, &applied.map_err(failed(format!("applying {what}")))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::AggregationRule;
    use serde_json::Value;

    use super::*;

    fn tenant(spec: &Value) -> GpuTenant {
        let meta = json!({"name": "team-a", "uid": "u-1"});
        serde_json::from_value(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": meta, "spec": spec,
        }))
        .unwrap()
    }

    fn people() -> (ClusterRole, ClusterRoleBinding) {
        let spec = json!({
            "namespaces": [{"name": "a"}], "owners": [{"kind": "Group", "name": "team-a"}],
            "viewers": [{"kind": "ServiceAccount", "name": "audit", "namespace": "ci"}],
        });
        wanted(&tenant(&spec)).unwrap()
    }

    /// The object after an edit, as the cache keeps it.
    fn edited<K: Owned>(object: &K, path: &str, value: Value) -> OwnedObject {
        let mut object = json!(object);
        *object.pointer_mut(path).unwrap() = value;
        OwnedObject::of(&serde_json::from_value::<K>(object).unwrap())
    }

    #[test]
    fn owners_and_viewers_read_their_tenant_and_no_other() {
        insta::assert_yaml_snapshot!(people());
        assert_eq!(wanted(&tenant(&json!({"namespaces": [{"name": "a"}]}))), None);
    }

    #[test]
    fn objects_as_wanted_are_left_and_edited_ones_are_applied() {
        let (role, binding) = people();
        assert_eq!(step(Some(role.clone()), Some(&OwnedObject::of(&role))), Step::Leave);
        assert_eq!(step(Some(binding.clone()), Some(&OwnedObject::of(&binding))), Step::Leave);
        let apply = Step::Apply { object: role.clone(), recreate: false };
        for (path, value) in [
            ("/rules/0/verbs", json!(["*"])),
            ("/rules/0/resourceNames", json!(["team-a", "team-b"])),
            ("/metadata/labels", json!({"gputenancy.io/tenant": "team-a"})),
            ("/metadata/ownerReferences", json!([])),
        ] {
            assert_eq!(step(Some(role.clone()), Some(&edited(&role, path, value))), apply, "{path}");
        }
        assert_eq!(step(Some(role), None), apply);
        let present = edited(&binding, "/subjects/0/name", json!("all"));
        assert_eq!(step(Some(binding.clone()), Some(&present)), Step::Apply { object: binding, recreate: false });
    }

    #[test]
    fn objects_that_apply_cannot_repair_are_recreated() {
        let (role, binding) = people();
        let other = edited(&binding, "/roleRef/name", json!("view"));
        assert_eq!(step(Some(binding.clone()), Some(&other)), Step::Apply { object: binding, recreate: true });
        let aggregated = ClusterRole { aggregation_rule: Some(AggregationRule::default()), ..role.clone() };
        let present = OwnedObject::of(&aggregated);
        assert_eq!(step(Some(role.clone()), Some(&present)), Step::Apply { object: role, recreate: true });
    }

    #[test]
    fn objects_without_owners_and_viewers_are_removed() {
        let present = OwnedObject::of(&people().0);
        assert_eq!(step::<ClusterRole>(None, Some(&present)), Step::Remove);
        assert_eq!(step::<ClusterRole>(None, None), Step::Leave);
    }
}
