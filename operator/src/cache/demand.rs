//! Tenants, of which there may be very many: what everybody looks at lies open, all else is [packed](super::pack).

use std::sync::{Arc, Mutex, PoisonError};

use gputenancy_crds::{GpuTenant, GpuTenantSpec, Guarantee, TenantNamespace, Trust, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, api::ObjectMeta, core::error_boundary::InvalidObject, runtime::watcher::Event};

use super::{
    Guarded, digest,
    pack::{Packed, Packer},
};
use crate::plan::TenantFacts;

/// A tenant as it is kept.
#[derive(Resource, Clone, Debug)]
#[resource(inherit = GpuTenant)]
pub struct SlimTenant {
    /// Its name, and nothing else.
    pub metadata: ObjectMeta,
    /// What a plan is made from; `None`: it does not match its schema.
    pub demand: Option<Arc<Demand>>,
    /// What differs after a real change.
    pub digest: u64,
    whole: Whole,
}

/// What is looked at of all tenants, whenever the fleet is.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// The tenant's name.
    pub name: Box<str>,
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
    /// Namespaces of which its status speaks.
    pub known: Box<[Box<str>]>,
    /// Reason of its condition `Ready`; `None` before it has one.
    pub ready: Option<Box<str>>,
}

impl From<&GpuTenant> for Demand {
    fn from(tenant: &GpuTenant) -> Self {
        let GpuTenantSpec { namespaces, trust, priority, gpus, .. } = &tenant.spec;
        let conditions = tenant.status.iter().flat_map(|s| &s.conditions);
        let mut ready = conditions.filter(|c| c.type_ == condition::READY).map(|c| c.reason.as_str().into());
        Self {
            name: tenant.metadata.name.as_deref().unwrap_or_default().into(),
            generation: tenant.metadata.generation,
            deleted: tenant.metadata.deletion_timestamp.clone(),
            namespaces: namespaces.as_slice().into(),
            trust: *trust,
            priority: *priority,
            gpus: gpus.as_slice().into(),
            known: tenant.status.iter().flat_map(|s| &s.namespaces).map(|n| n.name.as_str().into()).collect(),
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

#[derive(Clone, Debug)]
enum Whole {
    Packed(Packed, Arc<Mutex<Packer>>),
    Invalid(Box<InvalidObject>),
}

impl SlimTenant {
    /// All of it; an error for one that does not match its schema.
    pub fn whole(&self) -> Result<GpuTenant, Box<InvalidObject>> {
        match &self.whole {
            Whole::Invalid(invalid) => Err(invalid.clone()),
            Whole::Packed(packed, others) => {
                let text = others.lock().unwrap_or_else(PoisonError::into_inner).unpack(packed).unwrap_or_default();
                serde_json::from_slice(&text)
                    .map_err(|e| Box::new(InvalidObject { error: e.to_string(), metadata: self.metadata.clone() }))
            }
        }
    }

    /// As it is kept.
    fn of(Guarded { 0: object }: Guarded<GpuTenant>, others: &Arc<Mutex<Packer>>) -> Self {
        match object {
            Ok(mut tenant) => {
                let metadata = ObjectMeta { name: tenant.metadata.name.clone(), ..ObjectMeta::default() };
                let demand = Some(Arc::new(Demand::from(&tenant)));
                let text = serde_json::to_vec(&tenant).unwrap_or_default();
                let packed = others.lock().unwrap_or_else(PoisonError::into_inner).pack(&text);
                // the version changes with every write; what was written is in the rest
                tenant.metadata.resource_version = None;
                Self { metadata, demand, digest: digest(&tenant), whole: Whole::Packed(packed, others.clone()) }
            }
            Err(invalid) => {
                let metadata = ObjectMeta { name: invalid.metadata.name.clone(), ..ObjectMeta::default() };
                let digest = digest(&invalid.metadata.generation);
                Self { metadata, demand: None, digest, whole: Whole::Invalid(Box::new(invalid)) }
            }
        }
    }
}

/// Turns what the API server says of tenants into what is kept.
pub fn keeping() -> impl FnMut(Event<Guarded<GpuTenant>>) -> Event<SlimTenant> + Send {
    let others = Arc::<Mutex<Packer>>::default();
    move |event| match event {
        Event::Apply(tenant) => Event::Apply(SlimTenant::of(tenant, &others)),
        Event::Delete(tenant) => Event::Delete(SlimTenant::of(tenant, &others)),
        Event::Init => Event::Init,
        Event::InitApply(tenant) => Event::InitApply(SlimTenant::of(tenant, &others)),
        Event::InitDone => Event::InitDone,
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    fn kept(object: &Value, keep: &mut impl FnMut(Event<Guarded<GpuTenant>>) -> Event<SlimTenant>) -> SlimTenant {
        let Event::Apply(kept) = keep(Event::Apply(serde_json::from_value(object.clone()).unwrap())) else {
            panic!("an event stays what it is")
        };
        kept
    }

    fn tenant(name: &str, version: &str) -> Value {
        let condition = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "2 guaranteed devices, all available", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3});
        json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant",
            "metadata": {"name": name, "uid": "u-1", "resourceVersion": version, "generation": 3, "finalizers": ["gputenancy.io/finalizer"]},
            "spec": {"owners": [{"kind": "Group", "name": name}], "namespaces": [{"name": name}], "gpus": [{"profile": "mig-1g", "count": 2}],
                     "resources": {"pods": "20"}, "gpuEquivalents": "3.5", "priorityClasses": [], "suspend": true},
            "status": {"observedGeneration": 3, "conditions": [condition], "namespaces": [{"name": name, "phase": "Active"}]},
        })
    }

    #[test]
    fn a_tenant_is_made_anew_as_it_was() {
        let mut keep = keeping();
        for name in ["team-a", "team-b", "another"] {
            let object = tenant(name, "7");
            let kept = kept(&object, &mut keep);
            assert_eq!(kept.name_any(), name);
            assert_eq!(kept.whole().unwrap(), serde_json::from_value(object).unwrap());
            let demand = kept.demand.unwrap();
            assert_eq!((demand.generation, demand.gpus[0].count, demand.ready.as_deref()), (Some(3), 2, Some("Ready")));
            assert_eq!((&*demand.namespaces[0].name, &*demand.known[0]), (name, name));
        }
    }

    #[test]
    fn a_version_is_no_change_and_a_status_is_one() {
        let mut keep = keeping();
        let before = kept(&tenant("team-a", "7"), &mut keep).digest;
        assert_eq!(kept(&tenant("team-a", "8"), &mut keep).digest, before);
        let mut other = tenant("team-a", "8");
        other["status"]["observedGeneration"] = json!(4);
        assert_ne!(kept(&other, &mut keep).digest, before);
    }

    #[test]
    fn what_does_not_match_its_schema_says_so_to_whoever_asks_for_all_of_it() {
        let mut object = tenant("team-a", "7");
        object["spec"]["gpus"] = json!("many");
        let kept = kept(&object, &mut keeping());
        assert!(kept.demand.is_none() && kept.name_any() == "team-a");
        assert!(kept.whole().unwrap_err().error.contains("many"));
    }
}
