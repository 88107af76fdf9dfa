//! The catalog: what each profile is, what it isolates and what it costs, for its users. [`catalog`] is pure, from objects to entries.

mod entry;
mod isolation;
mod model;
mod template;

use std::collections::BTreeSet;

use gputenancy_crds::{GpuProfile, Trust};
use gputenancy_plan::trust_needed;
use kube::ResourceExt;

pub use model::{Catalog, CatalogEntry, PriceOfDevice, TrustLevel};

use crate::world::World;

/// No profile has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no GpuProfile {0}: kubectl get gpuprofiles lists them")]
pub struct UnknownProfile(String);

/// Entries for these profiles, or for all if none is named; strongest isolation first, then by name. `not_visible`: why the pools are not in
/// the world, if the user may not read them.
///
/// # Errors
/// A name that no profile has.
pub fn catalog(world: &World, names: &[String], not_visible: Vec<String>) -> Result<Catalog, UnknownProfile> {
    let exists = |p: &&GpuProfile| p.metadata.deletion_timestamp.is_none();
    let known: BTreeSet<String> = world.fleet.profiles.iter().filter(exists).map(ResourceExt::name_any).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(*name)) {
        return Err(UnknownProfile(unknown.clone()));
    }
    let wanted = |p: &&GpuProfile| names.is_empty() || names.contains(&p.name_any());
    let mut profiles: Vec<&GpuProfile> = world.fleet.profiles.iter().filter(exists).filter(wanted).collect();
    profiles.sort_by_cached_key(|p| (isolation::rank(&p.spec.device), p.name_any()));
    let of_level = |trust: Trust| {
        let usable = profiles.iter().filter(|p| trust_needed(&p.spec) <= trust);
        TrustLevel { trust: format!("{trust:?}"), profiles: usable.map(|p| p.name_any()).collect() }
    };
    Ok(Catalog {
        api_version: "gputenancy.io/v1alpha1".into(),
        kind: "Catalog".into(),
        entries: profiles.iter().map(|p| entry::of(world, p, not_visible.is_empty())).collect(),
        trust: [Trust::Untrusted, Trust::Internal, Trust::Trusted].map(of_level).into(),
        not_visible,
    })
}
