//! Tenants, of which there may be very many: what everybody looks at lies open, all else is [packed](super::pack).

use std::sync::Arc;

use gputenancy_crds::{GpuTenant, GpuTenantSpec, Guarantee, TenantNamespace, Trust, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{ResourceExt as _, api::ObjectMeta, core::error_boundary::InvalidObject};
use serde_json::json;

use super::{
    Guarded, digest_guarded,
    packed_store::{How, PackedStore, whole},
};
use crate::plan::TenantFacts;

/// The tenants.
#[derive(Clone)]
pub struct Tenants(pub(super) PackedStore<Guarded<GpuTenant>, Open>);

/// What lies open of a tenant: what a plan is made from, or why it does not match its schema.
pub type Open = Result<Arc<Demand>, Box<InvalidObject>>;

impl Tenants {
    /// How they are kept; listeners are told names.
    pub(super) fn how() -> How<Guarded<GpuTenant>, String, Open> {
        How {
            key: |t| t.name_any(),
            digest: digest_guarded,
            text: |t| match &t.0 {
                Ok(tenant) => whole(tenant),
                Err(invalid) => whole(&json!({"metadata": {"name": invalid.metadata.name}})),
            },
            open: |t| t.0.as_ref().map(|tenant| Arc::new(Demand::from(tenant))).map_err(|e| Box::new(e.clone())),
            index: None,
        }
    }

    /// All of a tenant; an error for one that does not match its schema.
    pub fn get(&self, name: &str) -> Option<Result<GpuTenant, Box<InvalidObject>>> {
        let (open, text) = self.0.with_text("", name)?;
        Some(open.and_then(|_| {
            serde_json::from_slice(&text)
                .map_err(|e| Box::new(InvalidObject { error: e.to_string(), metadata: ObjectMeta::default() }))
        }))
    }

    /// What a plan is made from, of all that match their schema.
    pub fn demands(&self) -> Vec<Arc<Demand>> {
        self.0.open(|open| open.as_ref().ok().cloned())
    }

    /// The names of all.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.0.open(|open| match open {
            Ok(demand) => Some(demand.name.clone()),
            Err(invalid) => invalid.metadata.name.as_deref().map(Into::into),
        })
    }

    /// Waits until all are known.
    pub async fn wait_until_ready(&self) {
        self.0.wait_until_ready().await;
    }
}

/// What is looked at of all tenants, whenever the fleet is.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// The tenant's name.
    pub name: Arc<str>,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Since when it is being deleted.
    pub deleted: Option<Time>,
    /// Namespaces that it lists.
    pub namespaces: Box<[TenantNamespace]>,
    /// How far it is trusted.
    pub trust: Trust,
    /// Rank of its guarantees.
    pub priority: i32,
    /// Its guarantees.
    pub gpus: Box<[Guarantee]>,
    /// Namespaces of which its status speaks and that it does not list.
    pub known: Box<[Box<str>]>,
    /// Reason of its condition `Ready`; `None` before it has one.
    pub ready: Option<Box<str>>,
}

impl From<&GpuTenant> for Demand {
    fn from(tenant: &GpuTenant) -> Self {
        let GpuTenantSpec { namespaces, trust, priority, gpus, .. } = &tenant.spec;
        let conditions = tenant.status.iter().flat_map(|s| &s.conditions);
        let mut ready = conditions.filter(|c| c.type_ == condition::READY).map(|c| c.reason.as_str().into());
        let listed = |name: &str| namespaces.iter().any(|n| n.name == name);
        let known = tenant.status.iter().flat_map(|s| &s.namespaces).map(|n| n.name.as_str()).filter(|n| !listed(n));
        Self {
            name: tenant.metadata.name.as_deref().unwrap_or_default().into(),
            generation: tenant.metadata.generation,
            deleted: tenant.metadata.deletion_timestamp.clone(),
            namespaces: namespaces.as_slice().into(),
            trust: *trust,
            priority: *priority,
            gpus: gpus.as_slice().into(),
            known: known.map(Into::into).collect(),
            ready: ready.next(),
        }
    }
}

impl Demand {
    /// What a plan is made from.
    pub fn facts(&self) -> TenantFacts<'_> {
        let Self { name, namespaces, trust, priority, gpus, generation: _, deleted: _, known: _, ready: _ } = self;
        TenantFacts { name, namespaces, trust: *trust, priority: *priority, gpus }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::Value;

    use super::{super::packed_store::PackedWriter, *};

    fn tenant(name: &str, version: &str) -> Value {
        let condition = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "2 guaranteed devices, all available", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3});
        let (listed, retained) =
            (json!({"name": name, "phase": "Active"}), json!({"name": "old", "phase": "Retained"}));
        json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant",
            "metadata": {"name": name, "uid": "u-1", "resourceVersion": version, "generation": 3, "finalizers": ["gputenancy.io/finalizer"]},
            "spec": {"owners": [{"kind": "Group", "name": name}], "namespaces": [{"name": name}], "gpus": [{"profile": "mig-1g", "count": 2}],
                     "resources": {"pods": "20"}, "gpuEquivalents": "3.5", "priorityClasses": [], "suspend": true},
            "status": {"observedGeneration": 3, "conditions": [condition], "namespaces": [listed, retained]},
        })
    }

    /// The store after these objects have come, and who was told of.
    fn kept(objects: &[Value]) -> (Tenants, Vec<String>) {
        let (store, mut writer) = PackedWriter::new(Tenants::how());
        let mut told = Vec::new();
        for object in objects {
            writer.note(Event::Apply(serde_json::from_value(object.clone()).unwrap()), |name| told.push(name));
        }
        (Tenants(store), told)
    }

    #[test]
    fn a_tenant_is_made_anew_as_it_was() {
        let objects = ["team-a", "team-b", "another"].map(|name| tenant(name, "7"));
        let (tenants, told) = kept(&objects);
        assert_eq!(told, ["team-a", "team-b", "another"]);
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            assert_eq!(tenants.get(&name).unwrap().unwrap(), serde_json::from_value(object).unwrap());
            let demand = tenants.demands().into_iter().find(|d| *d.name == *name).unwrap();
            assert_eq!((demand.generation, demand.gpus[0].count, demand.ready.as_deref()), (Some(3), 2, Some("Ready")));
            assert_eq!((&*demand.namespaces[0].name, &*demand.known), (&*name, &["old".into()][..]));
        }
        assert!(tenants.get("nobody").is_none());
    }

    #[test]
    fn a_version_is_no_change_and_a_status_is_one() {
        let mut other = tenant("team-a", "9");
        other["status"]["observedGeneration"] = json!(4);
        let (tenants, told) = kept(&[tenant("team-a", "7"), tenant("team-a", "8"), other]);
        assert_eq!(told, ["team-a", "team-a"]);
        assert_eq!(tenants.get("team-a").unwrap().unwrap().resource_version().as_deref(), Some("9"));
    }

    #[test]
    fn what_does_not_match_its_schema_says_so_to_whoever_asks_for_all_of_it() {
        let mut object = tenant("team-a", "7");
        object["spec"]["gpus"] = json!("many");
        let (tenants, _) = kept(&[object]);
        assert!(tenants.demands().is_empty());
        assert_eq!(tenants.names(), ["team-a".into()]);
        assert!(tenants.get("team-a").unwrap().unwrap_err().error.contains("many"));
        // it is mended
        let (tenants, _) = kept(&[json!({"metadata": {"name": "team-a"}}), tenant("team-a", "8")]);
        assert!(tenants.get("team-a").unwrap().is_ok());
    }
}
