//! Manifests applied to a world: the effect of each, and what the API server refuses.

use std::collections::BTreeSet;

use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;

use super::{
    diff,
    model::{Action, Finding, Manifest},
};
use crate::{
    input::{Document, Object, Reading},
    world::World,
};

/// A world with manifests applied.
#[derive(Clone, Debug, Default)]
pub struct Proposal {
    /// With the manifests applied.
    pub after: World,
    /// The effect of each manifest.
    pub manifests: Vec<Manifest>,
    /// What the API server refuses; it is not in `after`.
    pub refused: Vec<Finding>,
    /// Notes about the manifests.
    pub notes: Vec<String>,
}

/// An object that does not exist or cannot be deleted with this flag.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("--delete {0}: {1}")]
pub struct DeleteError(String, String);

/// A kind and a name.
type Name = (String, String);

/// Applies manifests and deletions to a world. `prune`: also deletes objects of the manifests' kinds that no manifest contains.
pub fn propose(before: &World, reading: Reading, delete: &[String], prune: bool) -> Result<Proposal, DeleteError> {
    let mut proposal = Proposal { after: before.clone(), ..Proposal::default() };
    if !reading.ignored.is_empty() {
        proposal.notes.push(format!("a plan does not depend on {}", reading.ignored.join(", ")));
    }
    let mut going = BTreeSet::new();
    for text in delete {
        going.insert(named(text).and_then(|name| exists(before, name)).map_err(|why| DeleteError(text.clone(), why))?);
    }
    let given: BTreeSet<Name> = reading.documents.iter().filter_map(|d| name_of(&d.object)).collect();
    if prune {
        let kinds: BTreeSet<&String> = given.iter().map(|(kind, _)| kind).collect();
        going.extend(written(before).into_iter().filter(|n| kinds.contains(&n.0) && !given.contains(n)));
    }
    for document in reading.documents {
        proposal.manifests.extend(effect(before, &document));
        proposal.after.put(document.object);
    }
    for name in going {
        proposal.delete(before, name);
    }
    proposal.manifests.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    Ok(proposal)
}

impl Proposal {
    fn delete(&mut self, before: &World, (kind, name): Name) {
        let protected = before.tenant(&name).is_some_and(|t| kind == "GpuTenant" && t.spec.deletion_protection);
        if protected {
            self.refused.push(Finding {
                reason: "DeletionProtected".into(),
                message: format!(
                    "GpuTenant {name} is protected, and its namespaces with it: set spec.deletionProtection to false first"
                ),
                known: false,
            });
        } else {
            let fleet = &mut self.after.fleet;
            match kind.as_str() {
                "GpuProfile" => fleet.profiles.retain(|p| p.name_any() != name),
                "GpuPool" => fleet.pools.retain(|p| p.name_any() != name),
                _ => self.after.remove_tenant(&name),
            }
            if kind == "GpuTenant" {
                let owned =
                    before.tenant(&name).map(|t| t.spec.namespaces.iter().map(|n| n.name.as_str()).collect::<Vec<_>>());
                self.notes.push(format!(
                    "GpuTenant {name} is deleted, and with it the namespaces that were made for it ({}) and the pods in them; \
                     until these are gone their devices count as in use",
                    owned.unwrap_or_default().join(", ")
                ));
            }
        }
        self.manifests.push(Manifest { kind, name, source: None, action: Action::Delete, fields: Vec::new() });
    }
}

fn named(text: &str) -> Result<Name, String> {
    let (kind, name) = text.split_once('/').ok_or("write it like gputenant/team-a")?;
    let kind = match kind.to_lowercase().as_str() {
        "gpuprofile" | "gpuprofiles" | "gpuprof" => "GpuProfile",
        "gpupool" | "gpupools" | "gpup" => "GpuPool",
        "gputenant" | "gputenants" | "gput" => "GpuTenant",
        _ => return Err("write gpuprofile, gpupool or gputenant before the slash".into()),
    };
    Ok((kind.into(), name.into()))
}

fn exists(world: &World, name: Name) -> Result<Name, String> {
    if written(world).contains(&name) { Ok(name) } else { Err(format!("there is no {} {}", name.0, name.1)) }
}

/// Every object that users write.
fn written(world: &World) -> BTreeSet<Name> {
    fn names<K: Resource<DynamicType = ()>>(objects: &[K]) -> impl Iterator<Item = Name> {
        objects.iter().map(|o| (K::kind(&()).into_owned(), o.name_any()))
    }
    let fleet = &world.fleet;
    names(&fleet.profiles).chain(names(&fleet.pools)).chain(names(&world.tenants)).collect()
}

fn name_of(object: &Object) -> Option<Name> {
    match object {
        Object::Profile(o) => Some(("GpuProfile".into(), o.name_any())),
        Object::Pool(o) => Some(("GpuPool".into(), o.name_any())),
        Object::Tenant(o) => Some(("GpuTenant".into(), o.name_any())),
        Object::GpuNode(o) => Some(("GpuNode".into(), o.name_any())),
        Object::Node(o) => Some(("Node".into(), o.name_any())),
        Object::Slice(_) | Object::Pod(_) | Object::Budget(_) => None,
    }
}

fn effect(before: &World, document: &Document) -> Option<Manifest> {
    let (kind, name) = name_of(&document.object)?;
    let fleet = &before.fleet;
    let (old, new) = match &document.object {
        Object::Profile(o) => {
            let found = fleet.profiles.iter().find(|p| p.name_any() == name);
            (found.map(|f: &GpuProfile| value(&f.spec)), value(&o.spec))
        }
        Object::Pool(o) => {
            let found = fleet.pools.iter().find(|p| p.name_any() == name);
            (found.map(|f: &GpuPool| value(&f.spec)), value(&o.spec))
        }
        Object::Tenant(o) => {
            let found = before.tenants.iter().find(|t| t.name_any() == name);
            (found.map(|f: &GpuTenant| without_owners(value(&f.spec))), without_owners(value(&o.spec)))
        }
        Object::GpuNode(o) => (fleet.gpu_nodes.get(&name).map(value), value(o)),
        Object::Node(o) => (fleet.nodes.get(&name).map(|n| value(&**n)), value(o)),
        Object::Slice(_) | Object::Pod(_) | Object::Budget(_) => return None,
    };
    let fields = old.as_ref().map(|old| diff::fields(old, &new)).unwrap_or_default();
    let action = match (&old, fields.is_empty()) {
        (None, _) => Action::Create,
        (Some(_), true) => Action::Unchanged,
        (Some(_), false) => Action::Update,
    };
    Some(Manifest { kind, name, source: Some(format!("{}:{}", document.file, document.line)), action, fields })
}

fn value(spec: &impl Serialize) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

/// Plans do not depend on owners, and snapshots leave them out.
fn without_owners(mut spec: Value) -> Value {
    if let Value::Object(fields) = &mut spec {
        fields.remove("owners");
    }
    spec
}
