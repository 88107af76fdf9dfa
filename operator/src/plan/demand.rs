//! Who wants how much of what, and which devices in use count towards it.

use std::collections::BTreeMap;

use super::{
    board::Board,
    model::{Gpu, InUse, Pool, Shape, Snapshot},
    name::{PoolName, ProfileName, TenantName},
    outcome::Served,
    problem::Problem,
};

/// A profile's number in this plan: profiles in the order of their names.
pub(super) type Line = usize;

/// Demand by profile, in numbers that the search can add up.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    pub names: Vec<ProfileName>,
    by_resource: BTreeMap<String, Line>,
    /// Devices guaranteed.
    pub wanted: Vec<i64>,
    /// Devices that guaranteed pods hold, or could hold, now: in a shortage nobody's guarantee is served from another's.
    pub floor: Vec<i64>,
    /// Share of a GPU of one device, in 840ths, so that thirds, quarters, sevenths and eighths are whole numbers.
    pub weight: Vec<i64>,
    tenants: BTreeMap<TenantName, BTreeMap<Line, u32>>,
    /// Devices in use, by tenant with a guarantee; `None`: by anybody else.
    holders: BTreeMap<(Line, Option<TenantName>), i64>,
    /// Holders of more than they are guaranteed. Sums have a place for each, behind those of the profiles.
    excess: Vec<Excess>,
    namespaces: BTreeMap<String, TenantName>,
}

/// Somebody who holds more devices of a profile than guaranteed: what is beyond stays where that costs nothing, and is
/// nobody's supply.
#[derive(Clone, Debug)]
struct Excess {
    line: Line,
    tenant: Option<TenantName>,
    guaranteed: i64,
    held: i64,
}

/// What a layout of the fleet fails to give, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shortfall {
    /// Share guaranteed and there today that would be gone, in 840ths of a GPU.
    pub lost: i64,
    /// Share guaranteed that does not exist, in 840ths of a GPU.
    pub unmet: i64,
    /// Devices guaranteed that do not exist.
    pub missing: i64,
}

/// What a profile is on one board.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Offer {
    pub line: Line,
    /// Index of the MIG profile on the board; `None`: the whole GPU.
    pub mig: Option<usize>,
    /// Resource as layouts write it: left out where it is the default.
    pub resource: Option<String>,
}

impl Demand {
    /// Adds up the guarantees that count, and says which do not.
    pub fn of(snapshot: &Snapshot, problems: &mut Vec<Problem>) -> Self {
        let served = snapshot.profiles.iter().filter(|(_, p)| !matches!(p.shape, Shape::Shared(_)));
        let names: Vec<ProfileName> = served.clone().map(|(name, _)| name.clone()).collect();
        let by_resource = served.enumerate().map(|(line, (_, p))| (p.resource.clone(), line)).collect();
        let zeros = vec![0; names.len()];
        let mut demand =
            Self { by_resource, wanted: zeros.clone(), floor: zeros.clone(), weight: zeros, names, ..Self::default() };
        for (name, tenant) in &snapshot.tenants {
            demand.namespaces.extend(tenant.namespaces.iter().map(|n| (n.clone(), name.clone())));
            for (profile, count) in &tenant.guarantees {
                let Some(found) = snapshot.profiles.get(profile) else {
                    problems.push(Problem::ProfileNotFound { tenant: name.clone(), profile: profile.clone() });
                    continue;
                };
                if tenant.trust < found.trust {
                    problems.push(Problem::TrustTooLow {
                        tenant: name.clone(),
                        profile: profile.clone(),
                        has: format!("{:?}", tenant.trust),
                        needs: format!("{:?}", found.trust),
                    });
                } else if let Some(line) = demand.line(profile) {
                    demand.tenants.entry(name.clone()).or_default().insert(line, *count);
                    add(&mut demand.wanted, line, i64::from(*count));
                }
            }
        }
        demand
    }

    pub fn line(&self, profile: &ProfileName) -> Option<Line> {
        self.names.binary_search(profile).ok()
    }

    pub fn name(&self, line: Line) -> ProfileName {
        self.names.get(line).cloned().unwrap_or_default()
    }

    /// The profile that is advertised under this resource.
    pub fn by_resource(&self, resource: &str) -> Option<Line> {
        self.by_resource.get(resource).copied()
    }

    /// Notes who holds the devices of a GPU.
    pub fn note_holders(&mut self, gpu: &Gpu) {
        for device in gpu.used.values() {
            if let Some((line, holder)) = self.holder(device) {
                *self.holders.entry((line, holder)).or_default() += 1;
            }
        }
    }

    /// What is guaranteed and is there stays guaranteed, also while its pod is just moving.
    pub fn keep(&mut self, sums: &[i64]) {
        for line in 0..self.names.len() {
            let served = self.supply(sums, line).min(self.wanted.get(line).copied().unwrap_or(0));
            if let Some(floor) = self.floor.get_mut(line) {
                *floor = served.max(*floor);
            }
        }
    }

    /// After all holders are noted: what guaranteed pods may not fall below, and who holds more than that.
    pub fn weigh_holders(&mut self) {
        let holders = std::mem::take(&mut self.holders);
        for ((line, tenant), held) in &holders {
            let guaranteed = i64::from(tenant.as_ref().map_or(0, |t| self.guarantee(t, *line)));
            add(&mut self.floor, *line, guaranteed.min(*held));
            if *held > guaranteed {
                self.excess.push(Excess { line: *line, tenant: tenant.clone(), guaranteed, held: *held });
            }
        }
        self.holders = holders;
    }

    fn guarantee(&self, tenant: &TenantName, line: Line) -> u32 {
        self.tenants.get(tenant).and_then(|g| g.get(&line)).copied().unwrap_or(0)
    }

    fn holder(&self, device: &InUse) -> Option<(Line, Option<TenantName>)> {
        let line = self.by_resource(&device.resource)?;
        let tenant = device.pod.as_ref().and_then(|p| self.namespaces.get(&p.namespace));
        Some((line, tenant.filter(|t| self.guarantee(t, line) > 0).cloned()))
    }

    /// Place in the sums at which this device in use counts as kept; `None`: its holder has no more than guaranteed.
    pub fn kept_at(&self, device: &InUse) -> Option<usize> {
        let (line, tenant) = self.holder(device)?;
        let excess = self.excess.iter().position(|e| e.line == line && e.tenant == tenant)?;
        Some(self.names.len() + excess)
    }

    /// Sums with a place for each profile, and for each holder of more than guaranteed.
    pub fn sums(&self) -> Vec<i64> {
        vec![0; self.names.len() + self.excess.len()]
    }

    /// The profile that a place in the sums has to do with.
    pub fn line_of(&self, place: usize) -> Line {
        place.checked_sub(self.names.len()).and_then(|e| self.excess.get(e)).map_or(place, |e| e.line)
    }

    /// Devices that count towards guarantees: all but those that are held beyond them.
    pub fn supply(&self, sums: &[i64], line: Line) -> i64 {
        let of = |place: usize| sums.get(place).copied().unwrap_or(0);
        let excess = self.excess.iter().zip(self.names.len()..).filter(|(e, _)| e.line == line);
        of(line) - excess.map(|(e, place)| (of(place) - e.guaranteed).max(0)).sum::<i64>()
    }

    /// What the pool's profiles are on a board; also learns how large each is.
    pub fn offers(&mut self, snapshot: &Snapshot, pool: &Pool, board: &Board) -> Vec<Offer> {
        let mut offers = Vec::new();
        for name in &pool.profiles {
            let (Some(profile), Some(line)) = (snapshot.profiles.get(name), self.line(name)) else { continue };
            if !profile.products.is_empty() && !profile.products.contains(&board.product) {
                continue;
            }
            let (mig, share, default) = if profile.shape == Shape::Whole {
                (None, 840, gputenancy_crds::names::WHOLE_GPU_RESOURCE.to_owned())
            } else {
                let Some(found) = board.resolve(&profile.shape) else { continue };
                let which = board.profiles.iter().position(|p| p.name == found.name);
                let share = i64::from(found.size) * 840 / i64::from(board.memory_slices.max(1));
                (which, share, gputenancy_crds::names::mig_resource(&found.name))
            };
            if let Some(weight) = self.weight.get_mut(line) {
                *weight = share.max(*weight).max(1);
            }
            let resource = Some(profile.resource.clone()).filter(|r| *r != default);
            offers.push(Offer { line, mig, resource });
        }
        offers
    }

    /// What one profile lacks.
    pub fn shortfall_of(&self, sums: &[i64], line: Line) -> Shortfall {
        let of = |numbers: &[i64]| numbers.get(line).copied().unwrap_or(0);
        let supply = self.supply(sums, line);
        let missing = (of(&self.wanted) - supply).max(0);
        let lost = (of(&self.floor) - supply).max(0);
        Shortfall { lost: lost * of(&self.weight), unmet: missing * of(&self.weight), missing }
    }

    /// What all profiles lack.
    pub fn shortfall(&self, sums: &[i64]) -> Shortfall {
        (0..self.names.len()).map(|line| self.shortfall_of(sums, line)).fold(Shortfall::default(), |a, b| Shortfall {
            lost: a.lost + b.lost,
            unmet: a.unmet + b.unmet,
            missing: a.missing + b.missing,
        })
    }

    /// For each place in the sums: more than this makes no difference.
    pub fn most_that_matters(&self) -> Vec<i64> {
        let beside = |line: Line| self.excess.iter().filter(|e| e.line == line).map(|e| e.held).sum::<i64>();
        let lines =
            self.wanted.iter().enumerate().map(|(line, wanted)| if *wanted > 0 { wanted + beside(line) } else { 0 });
        let kept = self.excess.iter().map(|e| if self.wanted.get(e.line).is_some_and(|w| *w > 0) { e.held } else { 0 });
        lines.chain(kept).collect()
    }

    /// Splits what there is among the tenants: first what each holds already, then one by one in turn.
    pub fn share(&self, sums: &[i64]) -> BTreeMap<TenantName, BTreeMap<ProfileName, Served>> {
        let mut left: Vec<i64> = (0..self.names.len()).map(|line| self.supply(sums, line)).collect();
        let mut given: BTreeMap<(Line, &TenantName), (u32, u32)> = BTreeMap::new();
        for (tenant, guarantees) in &self.tenants {
            for (line, wanted) in guarantees {
                let held = self.holders.get(&(*line, Some(tenant.clone()))).copied().unwrap_or(0);
                let held = u32::try_from(held).unwrap_or(0);
                let there = u32::try_from(left.get(*line).copied().unwrap_or(0)).unwrap_or(0);
                let first = held.min(*wanted).min(there);
                add(&mut left, *line, -i64::from(first));
                given.insert((*line, tenant), (*wanted, first));
            }
        }
        loop {
            let mut moved = false;
            for ((line, _), (wanted, got)) in &mut given {
                if got < wanted && left.get(*line).is_some_and(|n| *n > 0) {
                    *got += 1;
                    add(&mut left, *line, -1);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let mut shares: BTreeMap<TenantName, BTreeMap<ProfileName, Served>> = BTreeMap::new();
        for ((line, tenant), (guaranteed, satisfied)) in given {
            shares.entry(tenant.clone()).or_default().insert(self.name(line), Served { guaranteed, satisfied });
        }
        shares
    }
}

/// Pools that list a profile.
pub(super) fn pools_with(snapshot: &Snapshot, profile: &ProfileName) -> Vec<PoolName> {
    let pools = snapshot.pools.iter().filter(|(_, p)| p.profiles.contains(profile));
    pools.map(|(name, _)| name.clone()).collect()
}

pub(super) fn add(sums: &mut [i64], line: Line, more: i64) {
    if let Some(sum) = sums.get_mut(line) {
        *sum += more;
    }
}
