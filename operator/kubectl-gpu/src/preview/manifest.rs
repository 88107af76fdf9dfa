//! Manifests applied to a world: the effect of each, and what the API server refuses.

use std::collections::BTreeSet;

use gputenancy_crds::{GpuTenant, manifest::USERS_WRITE};
use kube::ResourceExt as _;
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

/// A kind and a name.
type Name = (&'static str, String);

/// Why a proposal cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// The name of an object to delete cannot be read.
    #[error("--delete {text}: {mistake}")]
    Name {
        /// The flag.
        text: String,
        /// The mistake.
        mistake: &'static str,
    },
    /// An object to delete does not exist.
    #[error("--delete {text}: there is no {kind} {name}")]
    Missing {
        /// The flag.
        text: String,
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// `--prune` without objects that it could be about.
    #[error(
        "--prune deletes objects of the kinds that the manifests have, and they have no GpuProfile, GpuPool or GpuTenant: name the folder of these"
    )]
    NothingToPrune,
}

/// Applies manifests and deletions to a world. `prune`: also deletes objects of the manifests' kinds that no manifest contains.
///
/// # Errors
/// For a deletion of an object that does not exist or cannot be deleted with this flag.
pub fn propose(before: &World, reading: Reading, delete: &[String], prune: bool) -> Result<Proposal, ProposeError> {
    let mut proposal = Proposal { after: before.clone(), ..Proposal::default() };
    if !reading.ignored.is_empty() {
        proposal.notes.push(format!("a plan does not depend on {}", reading.ignored.join(", ")));
    }
    let existing = written(before);
    let mut going = BTreeSet::new();
    for text in delete {
        let name = named(text).map_err(|mistake| ProposeError::Name { text: text.clone(), mistake })?;
        if !existing.contains(&name) {
            let (kind, name) = name;
            return Err(ProposeError::Missing { text: text.clone(), kind, name });
        }
        going.insert(name);
    }
    let given: BTreeSet<Name> = reading.documents.iter().filter_map(|d| name_of(&d.object)).collect();
    if prune && !given.iter().any(|(kind, _)| USERS_WRITE.contains(kind)) {
        return Err(ProposeError::NothingToPrune);
    }
    if prune {
        let kinds: BTreeSet<&str> = given.iter().map(|(kind, _)| *kind).collect();
        going.extend(existing.into_iter().filter(|n| kinds.contains(n.0) && !given.contains(n)));
    }
    for Document { file, line, object } in reading.documents {
        let name = name_of(&object);
        proposal.after.put(object);
        let manifest = name.and_then(|name| effect(before, &proposal.after, name, format!("{file}:{line}")));
        proposal.manifests.extend(manifest);
    }
    // profiles last: what uses them may be deleted in the same plan
    let (profiles, others): (Vec<Name>, Vec<Name>) = going.into_iter().partition(|(kind, _)| *kind == "GpuProfile");
    for name in others.into_iter().chain(profiles) {
        proposal.delete(before, name);
    }
    proposal.manifests.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
    Ok(proposal)
}

impl Proposal {
    fn delete(&mut self, before: &World, (kind, name): Name) {
        let tenant = before.tenant(&name).filter(|_| kind == "GpuTenant");
        if tenant.is_some_and(|t| t.spec.deletion_protection) {
            self.refused.push(Finding {
                reason: "DeletionProtected".into(),
                message: format!(
                    "GpuTenant {name} is protected, and its namespaces with it: set spec.deletionProtection to false first"
                ),
                known: false,
            });
        } else if let Some(users) = (kind == "GpuProfile").then(|| users(&self.after, &name)).flatten() {
            self.refused.push(Finding {
                reason: "ProfileInUse".into(),
                message: format!(
                    "GpuProfile {name} is in use by {users}: remove it from their spec.gpus and spec.profiles first"
                ),
                known: false,
            });
        } else {
            let fleet = &mut self.after.fleet;
            match kind {
                "GpuProfile" => fleet.profiles.retain(|p| p.name_any() != name),
                "GpuPool" => fleet.pools.retain(|p| p.name_any() != name),
                _ => {
                    self.after.remove_tenant(&name);
                    let owned = tenant.iter().flat_map(|t| &t.spec.namespaces).map(|n| n.name.as_str());
                    self.notes.push(format!(
                        "GpuTenant {name} is deleted, and with it the namespaces that were made for it ({}) and the pods in them; \
                         until these are gone their devices count as in use",
                        owned.collect::<Vec<_>>().join(", ")
                    ));
                }
            }
        }
        let (kind, action) = (kind.to_owned(), Action::Delete);
        self.manifests.push(Manifest { kind, name, source: None, action, fields: Vec::new() });
    }
}

/// Most objects that a sentence names.
const MOST_USERS: usize = 10;

/// Tenants that are guaranteed a profile and pools that list it, in words; `None`: there are none.
fn users(world: &World, profile: &str) -> Option<String> {
    let guaranteed = |t: &&GpuTenant| t.spec.gpus.iter().any(|g| g.profile == profile && g.count > 0);
    let tenants = world.tenants.iter().filter(guaranteed).map(|t| format!("GpuTenant {}", t.name_any()));
    let listing = world.fleet.pools.iter().filter(|p| p.spec.profiles.iter().any(|listed| listed == profile));
    let mut users: Vec<String> = listing.map(|p| format!("GpuPool {}", p.name_any())).chain(tenants).collect();
    let more = users.len().saturating_sub(MOST_USERS);
    users.truncate(MOST_USERS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!users.is_empty()).then(|| format!("{}{more}", users.join(", ")))
}

fn named(text: &str) -> Result<Name, &'static str> {
    let (kind, name) = text.split_once('/').ok_or("write it like gputenant/team-a")?;
    let kind = match kind.to_lowercase().as_str() {
        "gpuprofile" | "gpuprofiles" | "gpuprof" => "GpuProfile",
        "gpupool" | "gpupools" | "gpup" => "GpuPool",
        "gputenant" | "gputenants" | "gput" => "GpuTenant",
        _ => return Err("write gpuprofile, gpupool or gputenant before the slash"),
    };
    Ok((kind, name.to_owned()))
}

/// Every object that users write.
fn written(world: &World) -> BTreeSet<Name> {
    let profiles = world.fleet.profiles.iter().map(|o| ("GpuProfile", o.name_any()));
    let pools = world.fleet.pools.iter().map(|o| ("GpuPool", o.name_any()));
    profiles.chain(pools).chain(world.tenants.iter().map(|o| ("GpuTenant", o.name_any()))).collect()
}

fn name_of(object: &Object) -> Option<Name> {
    match object {
        Object::Profile(o) => Some(("GpuProfile", o.name_any())),
        Object::Pool(o) => Some(("GpuPool", o.name_any())),
        Object::Tenant(o) => Some(("GpuTenant", o.name_any())),
        Object::GpuNode(o) => Some(("GpuNode", o.name_any())),
        Object::Node(o) => Some(("Node", o.name_any())),
        Object::Slice(_) | Object::Maintenance(_) | Object::Pod(_) | Object::Budget(_) => None,
    }
}

fn effect(before: &World, after: &World, (kind, name): Name, source: String) -> Option<Manifest> {
    let (old, new) = (spec(before, kind, &name), spec(after, kind, &name)?);
    let fields = old.as_ref().map(|old| diff::fields(old, &new)).unwrap_or_default();
    let action = match (&old, fields.is_empty()) {
        (None, _) => Action::Create,
        (Some(_), true) => Action::Unchanged,
        (Some(_), false) => Action::Update,
    };
    Some(Manifest { kind: kind.to_owned(), name, source: Some(source), action, fields })
}

/// What manifests of an object determine: its spec, or all of a node.
fn spec(world: &World, kind: &str, name: &str) -> Option<Value> {
    fn value(spec: &impl Serialize) -> Value {
        serde_json::to_value(spec).unwrap_or_default()
    }
    match kind {
        "GpuProfile" => Some(value(&world.profile(name)?.spec)),
        "GpuPool" => Some(value(&world.pool(name)?.spec)),
        "GpuTenant" => {
            let mut spec = value(&world.tenants.iter().find(|t| t.name_any() == name)?.spec);
            if let Value::Object(fields) = &mut spec {
                // plans do not depend on owners, and snapshots leave them out
                fields.remove("owners");
            }
            Some(spec)
        }
        "GpuNode" => world.fleet.gpu_nodes.get(name).map(|node| value(&**node)),
        _ => world.fleet.nodes.get(name).map(|node| value(&**node)),
    }
}
