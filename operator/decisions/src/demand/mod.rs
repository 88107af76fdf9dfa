//! Guarantees that flap: a guarantee that two writers change up and down would repartition GPUs again and again.
//!
//! A guarantee that has turned [`TURNS`] times within [`WINDOW`], from growing to shrinking or back, is planned as before until it has stayed
//! the same for `spec.disruption.settleTime` of its pool. Every other change is planned at once. A tenant that is being deleted counts as without
//! guarantees, and one that is created again is a new demand.

mod history;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{GpuTenant, Guarantee};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::core::ObjectMeta;

use self::history::History;
use crate::{duration::or_seconds, fleet::Fleet};

/// So many turns within [`WINDOW`] are no ordinary edits.
pub const TURNS: usize = 3;

/// How long a turn counts. `spec.disruption.settleTime` is at most as long.
pub const WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// Default of `spec.disruption.settleTime` in seconds.
const SETTLE_SECONDS: i64 = 30;

/// A guarantee that flaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flapping<'a> {
    /// Its tenant.
    pub tenant: &'a str,
    /// Its profile.
    pub profile: &'a str,
    /// Devices that the tenant's spec has now.
    pub wanted: i32,
    /// Devices that are planned.
    pub planned: i32,
    /// When `wanted` is planned if it stays; `None`: it is planned.
    pub due: Option<Timestamp>,
    /// Changes since the guarantee was last left alone for [`WINDOW`].
    pub changes: u32,
    /// Field managers that made them.
    pub writers: &'a BTreeSet<String>,
}

/// Guarantees as they were seen last, and those that have changed a short time ago.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    seen: BTreeMap<String, Arc<GpuTenant>>,
    /// By tenant and profile.
    histories: BTreeMap<(String, String), History>,
}

/// A changed guarantee.
struct Change {
    tenant: String,
    profile: String,
    from: i32,
    to: i32,
    writers: Vec<String>,
}

impl Demands {
    /// Notes what has changed since the last call, and decides what is planned from now on.
    pub fn update(&mut self, fleet: &Fleet, now: Timestamp) {
        self.histories.retain(|_, history| !history.is_over(now));
        for Change { tenant, profile, from, to, writers } in self.changes(fleet) {
            let history = self.histories.entry((tenant, profile)).or_insert_with(|| History::of(from, now));
            history.change(to, writers, now);
        }
        for ((tenant, profile), history) in &mut self.histories {
            let exists = self.seen.get(tenant).is_some_and(|tenant| tenant.metadata.deletion_timestamp.is_none());
            let settle_time = if exists { settle_time(fleet, profile) } else { SignedDuration::ZERO };
            history.settle(settle_time, now);
        }
    }

    /// Takes the tenants over, and answers which guarantees differ.
    fn changes(&mut self, fleet: &Fleet) -> Vec<Change> {
        let mut changes = Vec::new();
        for tenant in &fleet.tenants {
            let name = tenant.metadata.name.as_deref().unwrap_or_default();
            match self.seen.get_mut(name) {
                Some(before) if Arc::ptr_eq(before, tenant) => {}
                // another object of the same name is a new demand
                Some(before) if before.metadata.uid != tenant.metadata.uid => {
                    *before = Arc::clone(tenant);
                    self.histories.retain(|(known, _), _| known != name);
                }
                Some(before) => {
                    let before = std::mem::replace(before, Arc::clone(tenant));
                    difference(name, &counts(&before), tenant, &mut changes);
                }
                None => {
                    self.seen.insert(name.to_owned(), Arc::clone(tenant));
                }
            }
        }
        if self.seen.len() > fleet.tenants.len() {
            let names: BTreeSet<&str> = fleet.tenants.iter().filter_map(|t| t.metadata.name.as_deref()).collect();
            self.seen.retain(|name, _| names.contains(name.as_str()));
            self.histories.retain(|(tenant, _), _| names.contains(tenant.as_str()));
        }
        changes
    }

    /// The tenants with the guarantees that are planned; `None`: all are planned as they are.
    pub fn planned(&self, fleet: &Fleet) -> Option<Vec<Arc<GpuTenant>>> {
        let mut waiting: BTreeMap<&str, Vec<(&str, i32)>> = BTreeMap::new();
        for ((tenant, profile), history) in self.histories.iter().filter(|(_, history)| history.due().is_some()) {
            waiting.entry(tenant).or_default().push((profile, history.planned()));
        }
        if waiting.is_empty() {
            return None;
        }
        let planned = |tenant: &Arc<GpuTenant>| {
            let waiting = tenant.metadata.name.as_deref().and_then(|name| waiting.get(name));
            waiting.map_or_else(|| Arc::clone(tenant), |waiting| Arc::new(with(tenant, waiting)))
        };
        Some(fleet.tenants.iter().map(planned).collect())
    }

    /// Guarantees that flap, by tenant and profile.
    pub fn flapping(&self, now: Timestamp) -> impl Iterator<Item = Flapping<'_>> {
        let flapping = self.histories.iter().filter(move |(_, history)| history.is_flapping(now));
        flapping.map(|((tenant, profile), history)| history.describe(tenant, profile))
    }

    /// When the next guarantee is planned or no longer flaps, if nothing changes.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.histories.values().filter_map(|history| history.next(now)).min()
    }
}

/// The longest `spec.disruption.settleTime` of the pools that offer a profile.
fn settle_time(fleet: &Fleet, profile: &str) -> SignedDuration {
    let offers = fleet.active_pools().filter(|pool| pool.spec.profiles.iter().any(|offered| offered == profile));
    let times = offers.map(|pool| or_seconds(&pool.spec.disruption.settle_time, SETTLE_SECONDS));
    times.max().unwrap_or(SignedDuration::ZERO)
}

fn count(guarantee: &Guarantee) -> (&str, i32) {
    (guarantee.profile.as_str(), guarantee.count)
}

/// Guarantees by profile; of a deleted tenant none.
fn counts(tenant: &GpuTenant) -> BTreeMap<&str, i32> {
    let live = tenant.metadata.deletion_timestamp.is_none();
    tenant.spec.gpus.iter().filter(|_| live).map(count).collect()
}

fn difference(name: &str, before: &BTreeMap<&str, i32>, tenant: &GpuTenant, changes: &mut Vec<Change>) {
    let now = counts(tenant);
    let profiles: BTreeSet<&str> = before.keys().chain(now.keys()).copied().collect();
    for profile in profiles {
        let of = |counts: &BTreeMap<&str, i32>| counts.get(profile).copied().unwrap_or(0);
        let (from, to) = (of(before), of(&now));
        if from != to {
            let (tenant, writers) = (name.to_owned(), writers(&tenant.metadata));
            changes.push(Change { tenant, profile: profile.to_owned(), from, to, writers });
        }
    }
}

/// The field managers that wrote the guarantees last, as the projection of a tenant keeps them.
fn writers(metadata: &ObjectMeta) -> Vec<String> {
    metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.clone()).collect()
}

/// The tenant with other counts of these profiles. The others keep their places: an order that changes would change the fingerprint of an
/// equal plan.
fn with(tenant: &GpuTenant, counts: &[(&str, i32)]) -> GpuTenant {
    let mut tenant = tenant.clone();
    let gpus = &mut tenant.spec.gpus;
    for (profile, count) in counts {
        if *count <= 0 {
            gpus.retain(|guarantee| guarantee.profile != *profile);
        } else if let Some(guarantee) = gpus.iter_mut().find(|guarantee| guarantee.profile == *profile) {
            guarantee.count = *count;
        } else {
            gpus.push(Guarantee::of(profile, *count));
        }
    }
    tenant
}

#[cfg(test)]
mod tests;
