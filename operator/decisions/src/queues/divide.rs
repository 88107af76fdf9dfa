//! Division of verified devices among the queues of teams.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, Limits, Table, split::by_weight};

/// What a team may use of one resource, over all pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entitlement {
    /// Guaranteed devices.
    pub count: i64,
    /// Most that it may borrow above that.
    pub borrow: i64,
    /// Most of `count` that it lends.
    pub lend: i64,
}

/// A team with a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// Name of the `GpuTenant`.
    pub name: String,
    /// `spec.priority`: a higher one is served first when devices do not suffice.
    pub rank: i32,
    /// By resource.
    pub gpus: BTreeMap<String, Entitlement>,
}

/// The devices of the pools with queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// Devices that pods have or can get: those that NVML, kubelet and the Node's allocatable agree on.
    pub devices: BTreeMap<Cell, i64>,
    /// Of these, devices of pods that no queue has admitted: by team, with an empty name for those of no team.
    pub unqueued: BTreeMap<(String, Cell), i64>,
}

impl Supply {
    /// Devices of pods of this team that no queue has admitted.
    fn unqueued_of(&self, team: &str, resource: &str) -> i64 {
        let of_team = self.unqueued.iter().filter(|((name, cell), _)| name == team && cell.resource == resource);
        of_team.map(|(_, n)| (*n).max(0)).sum()
    }

    /// Devices for queues.
    fn available(&self) -> BTreeMap<Cell, i64> {
        let mut available = self.devices.clone();
        for ((_, cell), n) in &self.unqueued {
            if let Some(left) = available.get_mut(cell) {
                *left -= (*n).max(0);
            }
        }
        for left in available.values_mut() {
            *left = (*left).max(0);
        }
        available
    }
}

/// Result of a division.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Limits by team. A team has a cell for each of its resources in each pool that has the resource.
    pub teams: BTreeMap<String, Table>,
    /// Devices of no guarantee, for all teams that borrow.
    pub spare: BTreeMap<Cell, i64>,
    /// Guaranteed devices that do not exist, by team and resource.
    pub missing: BTreeMap<(String, String), i64>,
}

/// Divides the devices. `before`: the nominal limits that are in force; a team keeps its pools as far as possible, so that running work stays within
/// its limits.
pub fn divide(teams: &[Team], supply: &Supply, before: &BTreeMap<String, Table>) -> Shares {
    let mut spare = supply.available();
    let mut shares = Shares::default();
    let resources: BTreeSet<&str> = teams.iter().flat_map(|team| team.gpus.keys().map(String::as_str)).collect();
    for team in teams {
        shares.teams.entry(team.name.clone()).or_default();
    }
    for resource in resources {
        let totals = totals(teams, supply, &spare, resource, &mut shares.missing);
        place(&totals, resource, before, &mut spare, &mut shares.teams);
    }
    for team in teams {
        let table = shares.teams.entry(team.name.clone()).or_default();
        for (resource, entitlement) in &team.gpus {
            lend_and_borrow(table, resource, entitlement, &supply.devices);
        }
    }
    shares.spare = spare;
    shares
}

/// Devices of a resource that each team gets over all pools. Ranks are served from the highest on; teams of a rank that cannot all be served get parts
/// in proportion to what they want.
fn totals<'t>(
    teams: &'t [Team],
    supply: &Supply,
    spare: &BTreeMap<Cell, i64>,
    resource: &str,
    missing: &mut BTreeMap<(String, String), i64>,
) -> Vec<(&'t str, i64)> {
    let mut left: i64 = spare.iter().filter(|(cell, _)| cell.resource == resource).map(|(_, n)| n).sum();
    // pods that no queue has admitted count against the guarantee
    let wanted = |team: &'t Team| {
        let count = team.gpus.get(resource)?.count;
        Some((team.name.as_str(), (count - supply.unqueued_of(&team.name, resource)).max(0)))
    };
    let ranks: BTreeSet<i32> = teams.iter().map(|team| team.rank).collect();
    let mut totals = Vec::new();
    for rank in ranks.into_iter().rev() {
        let mut class: Vec<(&str, i64)> = teams.iter().filter(|team| team.rank == rank).filter_map(wanted).collect();
        class.sort_unstable();
        let wants: Vec<i64> = class.iter().map(|(_, want)| *want).collect();
        let sum: i64 = wants.iter().sum();
        let parts = if sum <= left { wants.clone() } else { by_weight(left, &wants) };
        for ((name, want), part) in class.into_iter().zip(parts) {
            left -= part;
            if part < want {
                missing.insert((name.to_owned(), resource.to_owned()), want - part);
            }
            totals.push((name, part));
        }
    }
    totals
}

/// Places the devices of each team in pools: first where they are, then where most are left.
fn place(
    totals: &[(&str, i64)],
    resource: &str,
    before: &BTreeMap<String, Table>,
    spare: &mut BTreeMap<Cell, i64>,
    teams: &mut BTreeMap<String, Table>,
) {
    let cells: Vec<Cell> = spare.keys().filter(|cell| cell.resource == resource).cloned().collect();
    let mut open: Vec<(&str, i64)> = totals.to_vec();
    for (name, left) in &mut open {
        for cell in &cells {
            let had = before.get(*name).and_then(|table| table.get(cell)).map_or(0, |limits| limits.nominal.max(0));
            take(teams, spare, name, cell, had.min(*left), left);
        }
    }
    for (name, left) in &mut open {
        while *left > 0 {
            let most = cells.iter().rev().max_by_key(|cell| spare.get(*cell).copied().unwrap_or(0));
            let Some(cell) = most.filter(|cell| spare.get(*cell).is_some_and(|n| *n > 0)) else { break };
            take(teams, spare, name, cell, *left, left);
        }
    }
}

/// Takes up to `wanted` devices of a cell for a team.
fn take(
    teams: &mut BTreeMap<String, Table>,
    spare: &mut BTreeMap<Cell, i64>,
    team: &str,
    cell: &Cell,
    wanted: i64,
    left: &mut i64,
) {
    let limits = teams.entry(team.to_owned()).or_default().entry(cell.clone()).or_default();
    let available = spare.entry(cell.clone()).or_default();
    let taken = wanted.min(*available).max(0);
    limits.nominal += taken;
    *available -= taken;
    *left -= taken;
}

/// Splits what a team lends by its nominal limits, and what it borrows by the devices of the pools: the scheduler knows limits of a pool alone, and
/// their sum must not exceed what the team's spec says.
fn lend_and_borrow(table: &mut Table, resource: &str, entitlement: &Entitlement, devices: &BTreeMap<Cell, i64>) {
    let of_resource: Vec<Cell> = devices.keys().filter(|cell| cell.resource == resource).cloned().collect();
    let nominal: Vec<i64> = of_resource.iter().map(|cell| table.get(cell).map_or(0, |l| l.nominal)).collect();
    let sizes: Vec<i64> = of_resource.iter().map(|cell| devices.get(cell).copied().unwrap_or(0)).collect();
    let lend = by_weight(entitlement.lend.min(nominal.iter().sum()), &nominal);
    let borrow = by_weight(entitlement.borrow, &sizes);
    for ((cell, lend), borrow) in of_resource.into_iter().zip(lend).zip(borrow) {
        let limits: &mut Limits = table.entry(cell).or_default();
        (limits.lend, limits.borrow) = (lend.min(limits.nominal), borrow);
    }
}
