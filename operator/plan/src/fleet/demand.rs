//! Guarantees of all tenants, and the devices that their pods hold.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    sync::Arc,
};

use super::{
    options::BoardOptions,
    profiles::{ProfileId, ProfileIndex},
};
use crate::{
    board::{BoardGeometry, PARTS},
    problem::Problem,
    result::Served,
    snapshot::{InUse, Profile, Snapshot, Tenant, Unlimited},
};
use gputenancy_crds::ids::{PoolName, ProfileName, TenantName};

/// Ranks of guarantees, from the highest priority to the lowest.
pub(crate) const RANKS: usize = 11;

/// A number for each rank.
pub(crate) type ByRank = [i64; RANKS];

/// A tenant's number, in the order of names.
pub(crate) type TenantId = usize;

/// A tenant that holds a device, if any does, and the profile of the device.
pub(crate) type Holding = (Option<TenantId>, ProfileId);

/// A holder of more devices of a profile than its guarantee and what it may borrow. All holders without either count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub profile: ProfileId,
    pub guaranteed: i64,
    pub held: i64,
}

#[derive(Debug)]
struct Guarantees<'a> {
    tenant: &'a TenantName,
    rank: usize,
    /// Devices by profile, where there are any.
    devices: BTreeMap<ProfileId, i64>,
    /// Devices above these that it may borrow, by profile, where there are any.
    borrows: BTreeMap<ProfileId, i64>,
}

#[derive(Debug)]
pub(crate) struct DemandLedger<'a> {
    tenants: Vec<Guarantees<'a>>,
    /// The tenant of each namespace.
    owners: HashMap<&'a str, TenantId>,
    held: HashMap<Holding, i64>,
    /// By profile: guaranteed devices.
    pub wanted: Vec<ByRank>,
    /// By profile: guaranteed devices that pods hold.
    pub served: Vec<ByRank>,
    /// By profile, the holders without a guarantee first, then by name.
    pub excess: Vec<Excess>,
    excess_of: HashMap<Holding, usize>,
    /// Guarantees that do not count.
    pub problems: Vec<Problem>,
}

impl<'a> DemandLedger<'a> {
    pub fn of(snapshot: &'a Snapshot, profiles: &ProfileIndex<'_>) -> Self {
        let mut ledger = Self {
            tenants: Vec::with_capacity(snapshot.tenants.len()),
            owners: HashMap::new(),
            held: HashMap::new(),
            wanted: vec![[0; RANKS]; profiles.len()],
            served: vec![[0; RANKS]; profiles.len()],
            excess: Vec::new(),
            excess_of: HashMap::new(),
            problems: Vec::new(),
        };
        let weights =
            if snapshot.tenants.values().any(|t| t.cap.is_some()) { weights(snapshot, profiles) } else { Vec::new() };
        for (id, (name, tenant)) in snapshot.tenants.iter().enumerate() {
            // of new tenants that list one namespace, until one of them has it, the last by name
            ledger.owners.extend(tenant.namespaces.iter().map(|namespace| (&**namespace, id)));
            let rank = usize::try_from(5 - tenant.priority.clamp(-5, 5)).unwrap_or(0);
            let mut devices = ledger.guarantees(snapshot, profiles, (name, tenant));
            if let Some(cap) = tenant.cap {
                for (profile, n) in &mut devices {
                    *n = (*n).min(within(cap, &weights, *profile));
                }
                devices.retain(|_, n| *n > 0);
            }
            let borrows = tenant.borrows.iter().filter_map(|(profile, n)| Some((profiles.find(profile)?, (*n).into())));
            ledger.tenants.push(Guarantees { tenant: name, rank, devices, borrows: borrows.collect() });
        }
        ledger
    }

    fn guarantees(
        &mut self,
        snapshot: &Snapshot,
        profiles: &ProfileIndex<'_>,
        (name, tenant): (&TenantName, &Tenant),
    ) -> BTreeMap<ProfileId, i64> {
        let mut devices = BTreeMap::new();
        for (profile, count) in &tenant.guarantees {
            match snapshot.profiles.get(profile) {
                // it has a problem of its own
                None if snapshot.refused.contains(profile) => {}
                None => {
                    self.problems.push(Problem::ProfileNotFound { tenant: name.clone(), profile: profile.clone() });
                }
                Some(found) if tenant.trust < found.trust => self.problems.push(Problem::TrustTooLow {
                    tenant: name.clone(),
                    profile: profile.clone(),
                    has: format!("{:?}", tenant.trust),
                    needs: format!("{:?}", found.trust),
                }),
                Some(Profile { shape, .. }) => match shape.sharing_mode().filter(|_| !tenant.acknowledged) {
                    Some(mode) => self.problems.push(Problem::SharingNotAcknowledged {
                        tenant: name.clone(),
                        profile: profile.clone(),
                        mode,
                    }),
                    None => devices.extend(profiles.find(profile).filter(|_| *count > 0).map(|p| (p, (*count).into()))),
                },
            }
        }
        devices
    }

    /// The holder of a device in use; `None`: its profile is not served, or its pod is not known yet.
    pub fn holding(&self, used: &InUse, profiles: &ProfileIndex<'_>) -> Option<Holding> {
        if used.pod.is_none() && !used.unattributed {
            return None;
        }
        let owner = used.pod.as_ref().and_then(|pod| self.owners.get(&*pod.namespace).copied());
        Some((owner, profiles.of_device(&used.resource, used.profile.as_deref())?))
    }

    /// Counts devices in use against the guarantees.
    pub fn count(&mut self, holdings: impl IntoIterator<Item = Holding>) {
        for holding in holdings {
            *self.held.entry(holding).or_default() += 1;
        }
        let mut unguaranteed = vec![0; self.wanted.len()];
        for ((owner, profile), held) in &self.held {
            if self.allowance(*owner, *profile) == 0 {
                add(&mut unguaranteed, *profile, *held);
            }
        }
        let mut over = Vec::new();
        for (id, tenant) in self.tenants.iter().enumerate() {
            for (profile, guaranteed) in &tenant.devices {
                let held = self.held(Some(id), *profile);
                for (sums, n) in [(&mut self.wanted, *guaranteed), (&mut self.served, held.min(*guaranteed))] {
                    add(sums.get_mut(*profile).map_or(&mut [], |sums| sums), tenant.rank, n);
                }
            }
            for profile in
                tenant.devices.keys().chain(tenant.borrows.keys().filter(|p| !tenant.devices.contains_key(p)))
            {
                let (held, allowance) = (self.held(Some(id), *profile), self.allowance(Some(id), *profile));
                if held > allowance {
                    over.push((*profile, Some(id), allowance, held));
                }
            }
        }
        let unguaranteed = unguaranteed.into_iter().enumerate().filter(|(_, held)| *held > 0);
        over.extend(unguaranteed.map(|(profile, held)| (profile, None, 0, held)));
        over.sort_unstable();
        for (profile, owner, guaranteed, held) in over {
            self.excess_of.insert((owner, profile), self.excess.len());
            self.excess.push(Excess { profile, guaranteed, held });
        }
    }

    /// The holder of more than its guarantee, as an index into `excess`, that a device belongs to.
    pub fn excess_of(&self, (owner, profile): Holding) -> Option<usize> {
        let owner = owner.filter(|_| self.allowance(owner, profile) > 0);
        self.excess_of.get(&(owner, profile)).copied()
    }

    /// Devices that a tenant may hold: its guarantee, and what it may borrow.
    fn allowance(&self, owner: Option<TenantId>, profile: ProfileId) -> i64 {
        let Some(tenant) = owner.and_then(|id| self.tenants.get(id)) else { return 0 };
        let of = |devices: &BTreeMap<ProfileId, i64>| devices.get(&profile).copied().unwrap_or(0);
        of(&tenant.devices) + of(&tenant.borrows)
    }

    fn held(&self, owner: Option<TenantId>, profile: ProfileId) -> i64 {
        self.held.get(&(owner, profile)).copied().unwrap_or(0)
    }

    /// The devices that each tenant gets while these devices, by profile, are usable; profiles that are not listed suffice for all guarantees.
    pub fn served_tenants(
        &self,
        profiles: &ProfileIndex<'_>,
        usable: &BTreeMap<ProfileId, i64>,
    ) -> BTreeMap<TenantName, BTreeMap<ProfileName, Served>> {
        let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let full = |(profile, n): (&ProfileId, &i64)| {
            (profiles.name(*profile), Served { guaranteed: number(*n), satisfied: number(*n) })
        };
        let tenants = self.tenants.iter().filter(|t| !t.devices.is_empty());
        let mut served: BTreeMap<TenantName, BTreeMap<ProfileName, Served>> =
            tenants.map(|t| (t.tenant.clone(), t.devices.iter().map(full).collect())).collect();
        for (profile, usable) in usable {
            for (tenant, part) in self.split(*profile, *usable) {
                served.entry(tenant.clone()).or_default().insert(profiles.name(*profile), part);
            }
        }
        served
    }

    /// Splits a scarce profile among its tenants. Each keeps what it holds; the rest goes by rank, and within a rank always to the
    /// tenant with the smallest served share of its guarantee.
    pub fn split(&self, profile: ProfileId, usable: i64) -> impl Iterator<Item = (&'a TenantName, Served)> {
        struct Part<'a> {
            rank: usize,
            tenant: &'a TenantName,
            wanted: i64,
            got: i64,
        }
        let mut left = usable.max(0);
        let mut parts: Vec<Part<'a>> = Vec::new();
        for (id, tenant) in self.tenants.iter().enumerate() {
            let Some(wanted) = tenant.devices.get(&profile).copied() else { continue };
            let got = self.held(Some(id), profile).min(wanted);
            parts.push(Part { rank: tenant.rank, tenant: tenant.tenant, wanted, got });
        }
        parts.sort_by_key(|p| (p.rank, p.tenant));
        for part in &mut parts {
            part.got = part.got.min(left);
            left -= part.got;
        }
        let share = |p: &Part<'_>, i: usize| Reverse((p.rank, p.got * 1_000_000 / p.wanted, i));
        let open = parts.iter().enumerate().filter(|(_, p)| p.got < p.wanted);
        let mut queue: BinaryHeap<_> = open.map(|(i, p)| share(p, i)).collect();
        while let Some(Reverse((.., index))) = queue.pop().filter(|_| left > 0) {
            let Some(part) = parts.get_mut(index) else { continue };
            part.got += 1;
            left -= 1;
            if part.got < part.wanted {
                queue.push(share(part, index));
            }
        }
        let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        parts.into_iter().map(move |p| (p.tenant, Served { guaranteed: number(p.wanted), satisfied: number(p.got) }))
    }
}

/// Most devices of a profile that a cap allows even without any other device: more of them would never be used.
fn within(cap: i64, weights: &[i64], profile: ProfileId) -> i64 {
    let weight = weights.get(profile).copied().filter(|weight| *weight > 0).unwrap_or(PARTS);
    cap / weight
}

/// By profile: the largest share of a GPU that one device is, over all boards of the pools that list it.
fn weights(snapshot: &Snapshot, profiles: &ProfileIndex<'_>) -> Vec<i64> {
    let mut weights = vec![0; profiles.len()];
    let mut seen: Vec<(&PoolName, &Arc<BoardGeometry>)> = Vec::new();
    for node in snapshot.nodes.values() {
        for board in &node.boards {
            let known =
                |(pool, known): &(&PoolName, &Arc<BoardGeometry>)| **pool == node.pool && Arc::ptr_eq(known, board);
            if seen.iter().any(known) {
                continue;
            }
            seen.push((&node.pool, board));
            let Some(pool) = snapshot.pools.get(&node.pool) else { continue };
            for offer in BoardOptions::of(snapshot, profiles, pool, board, &Unlimited::default()).offers {
                if let Some(weight) = weights.get_mut(offer.profile) {
                    *weight = offer.share.max(*weight);
                }
            }
        }
    }
    weights
}

fn add(sums: &mut [i64], at: usize, n: i64) {
    if let Some(sum) = sums.get_mut(at) {
        *sum += n;
    }
}
