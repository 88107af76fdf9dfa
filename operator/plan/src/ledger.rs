//! Who is guaranteed how much of what, and who holds it: kept up to date device by device.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, hash_map::Entry},
};

use litemap::LiteMap;
use smallvec::SmallVec;

use super::{
    fleet::Namespaces,
    lines::{Line, Lines},
    model::Tenant,
    name::{ProfileName, TenantName},
    outcome::Served,
    problem::Problem,
    terms::{ByRank, Excess, RANKS, add},
};

/// A tenant's number; [`NOBODY`] stands for pods of no tenant, and for pods beyond any guarantee.
pub(super) type TenantId = u32;
pub(super) const NOBODY: TenantId = u32::MAX;

type Fast = foldhash::fast::FixedState;

#[derive(Debug, Default)]
struct Record {
    name: TenantName,
    rank: u8,
    namespaces: Namespaces,
    guarantees: Guarantees,
}

/// Devices by profile's number, sorted; in as little room as a list elsewhere would take, for there may be very many tenants.
type Guarantees = SmallVec<[(u32, u32); 2]>;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    ids: HashMap<TenantName, TenantId, Fast>,
    records: Vec<Record>,
    /// Devices held: for one tenant after the other, by profile.
    held: Vec<i64>,
    /// What in the guarantees of tenants does not count.
    problems: BTreeMap<TenantId, Vec<Problem>>,
    /// By namespace's word: the tenants that claim it; the last by name has it.
    claims: Vec<SmallVec<[TenantId; 2]>>,
    /// By namespace's word.
    owners: Vec<TenantId>,
    /// Devices that pods of no tenant hold, by profile.
    strangers: Vec<i64>,
    /// Places of their own for who holds more than guaranteed.
    holders: HashMap<(TenantId, Line), usize, Fast>,
    places: Vec<(TenantId, Line)>,
    /// By profile.
    wanted: Vec<ByRank>,
    served: Vec<ByRank>,
    unguaranteed: Vec<i64>,
    over: Vec<BTreeMap<TenantName, TenantId>>,
    /// Holders whose devices count otherwise since this was last looked at: they came to hold more than guaranteed, or stopped to.
    pub flipped: Vec<(TenantId, Line)>,
}

impl Ledger {
    pub fn new(lines: usize) -> Self {
        Self {
            wanted: vec![[0; RANKS]; lines],
            served: vec![[0; RANKS]; lines],
            unguaranteed: vec![0; lines],
            over: vec![BTreeMap::new(); lines],
            strangers: vec![0; lines],
            ..Self::default()
        }
    }

    /// Makes room for so many tenants.
    pub fn make_room(&mut self, tenants: usize) {
        self.ids.reserve(tenants);
        self.records.reserve(tenants);
        self.held.reserve(tenants * self.wanted.len());
    }

    /// How many tenants there are, and have been.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The tenant that pods of a namespace belong to.
    pub fn owner(&self, namespace: u32) -> TenantId {
        self.owners.get(namespace as usize).copied().unwrap_or(NOBODY)
    }

    /// Namespaces of a tenant, as words.
    pub fn namespaces(&self, name: &TenantName) -> Namespaces {
        self.ids.get(name).map(|id| self.namespaces_of(*id).collect()).unwrap_or_default()
    }

    /// As [`Ledger::namespaces`], by the tenant's number.
    pub fn namespaces_of(&self, tenant: TenantId) -> impl Iterator<Item = u32> {
        self.records.get(tenant as usize).into_iter().flat_map(|r| r.namespaces.iter().copied())
    }

    fn guarantee(&self, tenant: TenantId, line: Line) -> i64 {
        let record = self.records.get(tenant as usize);
        record.map_or(0, |r| r.guaranteed(line))
    }

    /// Where a tenant's devices of a profile are counted.
    fn at(&self, tenant: TenantId, line: Line) -> usize {
        tenant as usize * self.wanted.len() + line
    }

    fn has(&self, tenant: TenantId, line: Line) -> i64 {
        let held = if tenant == NOBODY { self.strangers.get(line) } else { self.held.get(self.at(tenant, line)) };
        held.copied().unwrap_or(0)
    }

    /// Nobody holds more devices of a profile than guaranteed.
    pub fn all_within(&self, line: Line) -> bool {
        self.unguaranteed.get(line).is_none_or(|n| *n == 0) && self.over.get(line).is_none_or(BTreeMap::is_empty)
    }

    /// Where a device that this tenant holds is counted as kept; `None`: its holder has no more than guaranteed.
    pub fn kept_at(&self, tenant: TenantId, line: Line) -> Option<usize> {
        if self.all_within(line) {
            return None;
        }
        let guarantee = self.guarantee(tenant, line);
        let holder = if guarantee == 0 { NOBODY } else { tenant };
        let over = guarantee == 0 || self.has(tenant, line) > guarantee;
        self.holders.get(&(holder, line)).filter(|_| over).copied()
    }

    /// Adds what a tenant is guaranteed and holds of a profile to the sums, or takes it out.
    fn weigh(&mut self, tenant: TenantId, line: Line, sign: i64) {
        let (guaranteed, held) = (self.guarantee(tenant, line), self.has(tenant, line));
        if guaranteed == 0 {
            add(&mut self.unguaranteed, line, sign * held);
            self.place(NOBODY, line);
            return;
        }
        let Some(record) = self.records.get(tenant as usize) else { return };
        let rank = record.rank.into();
        if let (Some(wanted), Some(served)) = (self.wanted.get_mut(line), self.served.get_mut(line)) {
            add(wanted, rank, sign * guaranteed);
            add(served, rank, sign * guaranteed.min(held));
        }
        if held > guaranteed {
            let name = record.name.clone();
            self.place(tenant, line);
            if let Some(over) = self.over.get_mut(line) {
                set(over, &name, tenant, sign > 0);
            }
        }
    }

    fn place(&mut self, tenant: TenantId, line: Line) {
        let next = self.wanted.len() + self.places.len();
        if let Entry::Vacant(entry) = self.holders.entry((tenant, line)) {
            entry.insert(next);
            self.places.push((tenant, line));
        }
    }

    /// A pod of this namespace's tenant got a device, or gave it back.
    pub fn hold(&mut self, tenant: TenantId, line: Line, more: i64) {
        let before = self.kept_at(tenant, line);
        self.weigh(tenant, line, -1);
        self.note(tenant, line, more);
        self.weigh(tenant, line, 1);
        self.compare(tenant, line, before);
    }

    /// Notes when devices of a holder count otherwise than before.
    fn compare(&mut self, tenant: TenantId, line: Line, before: Option<usize>) {
        if self.kept_at(tenant, line) != before {
            self.flipped.push((tenant, line));
        }
    }

    /// As [`Ledger::hold`], before the sums are made.
    pub fn note(&mut self, tenant: TenantId, line: Line, more: i64) {
        let at = self.at(tenant, line);
        if tenant == NOBODY {
            add(&mut self.strangers, line, more);
        } else {
            add(&mut self.held, at, more);
        }
    }

    /// Makes the sums, once everything is noted.
    pub fn sum_up(&mut self) {
        let lines = self.wanted.len();
        for tenant in (0..).zip(0..self.records.len()).map(|(id, _)| id).chain([NOBODY]) {
            for line in 0..lines {
                if self.has(tenant, line) != 0 || self.guarantee(tenant, line) != 0 {
                    self.weigh(tenant, line, 1);
                }
            }
        }
    }

    /// Sets what a tenant wants, without the sums; [`Ledger::tenant`] keeps these.
    pub fn enter(&mut self, name: &TenantName, tenant: Option<&Tenant>, namespaces: Namespaces, lines: &Lines) {
        let next = TenantId::try_from(self.records.len()).unwrap_or(NOBODY);
        let id = *self.ids.entry(name.clone()).or_insert(next);
        if id == next {
            self.records.push(Record { name: name.clone(), ..Record::default() });
            self.held.resize(self.held.len() + self.wanted.len(), 0);
        }
        let Some(record) = self.records.get_mut(id as usize) else { return };
        let mut new = Record { name: name.clone(), namespaces, ..Record::default() };
        let mut problems = Vec::new();
        if let Some(tenant) = tenant {
            new.rank = u8::try_from(5 - tenant.priority.clamp(-5, 5)).unwrap_or(0);
            (new.guarantees, problems) = guarantees(name, tenant, lines);
        }
        let joined = new.namespaces.clone();
        let old = std::mem::replace(record, new);
        if problems.is_empty() {
            self.problems.remove(&id);
        } else {
            self.problems.insert(id, problems);
        }
        for namespace in &old.namespaces {
            if !joined.contains(namespace) {
                self.claim(*namespace, id, false);
            }
        }
        for namespace in &joined {
            if !old.namespaces.contains(namespace) {
                self.claim(*namespace, id, true);
            }
        }
    }

    /// A tenant claims a namespace, or does not any more.
    fn claim(&mut self, namespace: u32, tenant: TenantId, claims: bool) {
        let at = namespace as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, NOBODY);
            self.claims.resize(at + 1, SmallVec::new());
        }
        let Some(of) = self.claims.get_mut(at) else { return };
        of.retain(|id| *id != tenant);
        if claims {
            of.push(tenant);
        }
        let name = |id: &&TenantId| self.records.get(**id as usize).map(|r| &r.name);
        let owner = of.iter().max_by_key(name).copied();
        if let Some(slot) = self.owners.get_mut(at) {
            *slot = owner.unwrap_or(NOBODY);
        }
    }

    /// Changes what a tenant wants; its devices in namespaces that come or go were given back before.
    pub fn tenant(&mut self, name: &TenantName, tenant: Option<&Tenant>, namespaces: Namespaces, lines: &Lines) {
        let lines_of = |ledger: &Self| -> BTreeSet<Line> {
            let Some(id) = ledger.ids.get(name) else { return BTreeSet::new() };
            let record = ledger.records.get(*id as usize);
            record.map(|r| r.guarantees.iter().map(|(line, _)| *line as Line).collect()).unwrap_or_default()
        };
        let wanted = tenant.map(|t| guarantees(name, t, lines).0).unwrap_or_default();
        let mut all = lines_of(self);
        all.extend(wanted.iter().map(|(line, _)| *line as Line));
        let known = self.ids.get(name).copied();
        let before: Vec<_> = all.iter().map(|line| known.and_then(|id| self.kept_at(id, *line))).collect();
        if let Some(id) = known {
            for line in &all {
                self.weigh(id, *line, -1);
            }
        }
        self.enter(name, tenant, namespaces, lines);
        if let Some(id) = self.ids.get(name).copied() {
            for line in &all {
                self.weigh(id, *line, 1);
            }
            for (line, before) in all.iter().zip(before) {
                self.compare(id, *line, before);
            }
        }
    }

    pub fn wanted(&self, line: Line) -> ByRank {
        self.wanted.get(line).copied().unwrap_or_default()
    }

    /// Devices that guaranteed pods hold.
    pub fn served(&self, line: Line) -> ByRank {
        self.served.get(line).copied().unwrap_or_default()
    }

    /// Profiles of the holders' places, in the order of the places.
    pub fn holders(&self) -> impl Iterator<Item = Line> {
        self.places.iter().map(|(_, line)| *line)
    }

    /// Who holds more than guaranteed, by profile and name.
    pub fn excess(&self) -> Vec<Excess> {
        let mut excess = Vec::new();
        for (line, over) in self.over.iter().enumerate() {
            let free = self.unguaranteed.get(line).copied().unwrap_or(0);
            let place = |tenant: TenantId| self.holders.get(&(tenant, line)).copied();
            if let Some(place) = place(NOBODY).filter(|_| free > 0) {
                excess.push(Excess { place, line, guaranteed: 0, held: free });
            }
            for tenant in over.values() {
                let (guaranteed, held) = (self.guarantee(*tenant, line), self.has(*tenant, line));
                excess.extend(place(*tenant).map(|place| Excess { place, line, guaranteed, held }));
            }
        }
        excess
    }

    /// What tenants are guaranteed that does not count, and why.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    /// What each tenant gets when everything is there.
    pub fn all_served(&self, lines: &Lines) -> BTreeMap<TenantName, LiteMap<ProfileName, Served>> {
        let of = |r: &Record| {
            let one = |(line, n): &(u32, u32)| (lines.name(*line as Line), Served { guaranteed: *n, satisfied: *n });
            (r.name.clone(), r.guarantees.iter().map(one).collect())
        };
        self.records.iter().filter(|r| !r.guarantees.is_empty()).map(of).collect()
    }

    /// What one tenant gets when everything is there.
    pub fn served_fully(&self, name: &TenantName, lines: &Lines) -> Option<LiteMap<ProfileName, Served>> {
        let record = self.records.get(*self.ids.get(name)? as usize)?;
        let one = |(line, n): &(u32, u32)| (lines.name(*line as Line), Served { guaranteed: *n, satisfied: *n });
        (!record.guarantees.is_empty()).then(|| record.guarantees.iter().map(one).collect())
    }

    /// Splits a profile of which there is too little among its tenants: first what each holds already; then by rank, and
    /// within one always to who has the smallest share of what is guaranteed to it.
    pub fn share(&self, line: Line, supply: i64) -> Vec<(TenantName, Served)> {
        struct Part {
            name: TenantName,
            rank: u8,
            wanted: i64,
            held: i64,
            got: i64,
        }
        let part = |(id, record): (TenantId, &Record)| {
            let wanted = Some(record.guaranteed(line)).filter(|n| *n > 0)?;
            let held = self.has(id, line).min(wanted);
            Some(Part { name: record.name.clone(), rank: record.rank, wanted, held, got: 0 })
        };
        let mut parts: Vec<Part> = (0..).zip(&self.records).filter_map(part).collect();
        let mut left = supply.max(0);
        parts.sort_by(|a, b| (a.rank, &a.name).cmp(&(b.rank, &b.name)));
        for part in &mut parts {
            part.got = part.held.min(left);
            left -= part.got;
        }
        for rank in 0..RANKS {
            let mut queue: BinaryHeap<Reverse<(i64, usize)>> = parts
                .iter()
                .enumerate()
                .filter(|(_, p)| usize::from(p.rank) == rank && p.got < p.wanted)
                .map(|(i, p)| Reverse((p.got * 1_000_000 / p.wanted.max(1), i)))
                .collect();
            while let Some(Reverse((_, index))) = queue.pop().filter(|_| left > 0) {
                let Some(part) = parts.get_mut(index) else { continue };
                part.got += 1;
                left -= 1;
                if part.got < part.wanted {
                    queue.push(Reverse((part.got * 1_000_000 / part.wanted, index)));
                }
            }
        }
        let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        parts.into_iter().map(|p| (p.name, Served { guaranteed: number(p.wanted), satisfied: number(p.got) })).collect()
    }
}

fn set(tenants: &mut BTreeMap<TenantName, TenantId>, name: &TenantName, tenant: TenantId, there: bool) {
    if there {
        tenants.insert(name.clone(), tenant);
    } else {
        tenants.remove(name);
    }
}

impl Record {
    fn guaranteed(&self, line: Line) -> i64 {
        self.guarantees.iter().find(|(l, _)| *l as Line == line).map_or(0, |(_, n)| i64::from(*n))
    }
}

fn guarantees(name: &TenantName, tenant: &Tenant, lines: &Lines) -> (Guarantees, Vec<Problem>) {
    let (mut counted, mut problems) = (Guarantees::new(), Vec::new());
    for (profile, count) in &tenant.guarantees {
        match lines.known(profile) {
            None => problems.push(Problem::ProfileNotFound { tenant: name.clone(), profile: profile.clone() }),
            Some((_, needs)) if tenant.trust < needs => problems.push(Problem::TrustTooLow {
                tenant: name.clone(),
                profile: profile.clone(),
                has: format!("{:?}", tenant.trust),
                needs: format!("{needs:?}"),
            }),
            // in the order of names, which is that of the numbers
            Some((line, _)) => {
                let line = line.and_then(|line| u32::try_from(line).ok());
                counted.extend(line.filter(|_| *count > 0).map(|line| (line, *count)));
            }
        }
    }
    (counted, problems)
}
