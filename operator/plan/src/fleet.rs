//! The index: the fleet sorted by likeness and by holder, kept up to date change by change, and the plan that follows from it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use smallvec::SmallVec;

use super::{
    board::Board,
    forms::{Forms, GpuId, Use, kept},
    gpus::Gpus,
    ledger::{Ledger, NOBODY, TenantId},
    lines::{Line, Lines},
    model::{Gpu, Node, Pool, Snapshot, Standing, Tenant},
    name::{GpuKey, GpuUuid, NodeName, PoolName, TenantName},
    outcome::{GpuPlan, Plan},
    rig::Rig,
    show::Shown,
    words::{Role, Words},
};

type Fast = foldhash::fast::FixedState;

/// Namespaces as words, sorted.
pub(super) type Namespaces = SmallVec<[u32; 2]>;

/// So many kinds without GPUs are kept at least, because they tend to come back; and so many tenants, nodes and texts that are no more.
const CROWD: usize = 1_000;

/// A GPU as the index has it.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub node: usize,
    /// Place among the node's GPUs, by NVML's index.
    pub slot: u32,
    pub uuid: GpuUuid,
    pub form: usize,
    /// `None`: it is no supply.
    pub kind: Option<usize>,
    /// Place among the kind's members.
    position: usize,
    uses: SmallVec<[Use; 3]>,
}

/// A node as the index has it.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub name: NodeName,
    pub gpus: Vec<GpuId>,
    /// Place among all nodes, by name.
    pub rank: u32,
    /// Devices by profile, as it is.
    pub devices: Vec<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Core {
    pub lines: Lines,
    pools: BTreeMap<PoolName, Arc<Pool>>,
    pub ledger: Ledger,
    pub forms: Forms,
    rig_ids: HashMap<(PoolName, Arc<Board>), usize, Fast>,
    words: Words,
    /// How many texts there were when everything was taken in.
    texts: usize,
    node_ids: BTreeMap<NodeName, usize>,
    pub nodes: Vec<Member>,
    pub gpus: Vec<Entry>,
    unused: Vec<GpuId>,
    /// By kind: GPUs that the last plan wants otherwise than they are.
    pub shown: BTreeMap<usize, Shown>,
    /// GPUs by the namespaces of the pods on them, once somebody has asked.
    by_namespace: Option<HashMap<u32, Vec<GpuId>, Fast>>,
    /// Profiles of which the last plan had too little.
    pub scarce: BTreeSet<Line>,
    pub plan: Plan,
}

impl Core {
    /// Takes everything in. The plan is that of a fleet in which everything stays, until [`Core::decide`].
    pub fn load(snapshot: &Snapshot) -> Self {
        let lines = Lines::of(&snapshot.profiles);
        let mut core = Self {
            ledger: Ledger::new(lines.len()),
            pools: snapshot.pools.iter().map(|(name, pool)| (name.clone(), Arc::new(pool.clone()))).collect(),
            lines,
            ..Self::default()
        };
        core.ledger.make_room(snapshot.tenants.len());
        for (name, tenant) in &snapshot.tenants {
            let namespaces = core.words_of(tenant);
            core.ledger.enter(name, Some(tenant), namespaces, &core.lines);
        }
        let gpus = snapshot.nodes.values().map(|n| n.gpus.len()).sum();
        core.gpus.reserve(gpus);
        let mut plans = Vec::with_capacity(snapshot.nodes.len());
        for (name, node) in &snapshot.nodes {
            plans.push((name.clone(), core.add_node(name, node)));
        }
        let ids = || (0..).zip(0..gpus).map(|(id, _)| id);
        ids().for_each(|id| core.note(id, 1, false, |_| true));
        core.ledger.sum_up();
        core.rank();
        ids().for_each(|id| core.classify(id));
        core.plan.gpus = Gpus::of(plans);
        core.plan.tenants = core.ledger.all_served(&core.lines);
        core.texts = core.words.len();
        core
    }

    fn words_of(&mut self, tenant: &Tenant) -> Namespaces {
        let mut words: Namespaces = tenant.namespaces.iter().map(|n| self.words.rare(n)).collect();
        words.sort_unstable();
        words
    }

    /// Nodes by name.
    fn rank(&mut self) {
        for (rank, id) in (0..).zip(self.node_ids.values()) {
            if let Some(node) = self.nodes.get_mut(*id) {
                node.rank = rank;
            }
        }
    }

    /// Takes a node's GPUs in, with their forms; says what is planned for them when they stay as they are.
    fn add_node(&mut self, name: &NodeName, node: &Node) -> Vec<(GpuKey, GpuPlan)> {
        let next = self.nodes.len();
        let id = *self.node_ids.entry(name.clone()).or_insert(next);
        if id == next {
            self.nodes.push(Member { name: name.clone(), ..Member::default() });
        }
        let pool = self.pools.get(&node.pool).cloned();
        let rigs: SmallVec<[Option<usize>; 2]> =
            node.boards.iter().map(|board| Some(self.rig(&node.pool, pool.as_ref()?, board))).collect();
        let mut order: SmallVec<[(i32, usize); 16]> =
            node.gpus.values().enumerate().map(|(at, gpu)| (gpu.index, at)).collect();
        order.sort_unstable();
        let mut slots: SmallVec<[u32; 16]> = SmallVec::from_elem(0, order.len());
        for (slot, (_, at)) in (0..).zip(order) {
            if let Some(of) = slots.get_mut(at) {
                *of = slot;
            }
        }
        let (mut ids, mut plans) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
        for ((uuid, gpu), slot) in node.gpus.iter().zip(slots) {
            let away = matches!(gpu.standing, Standing::Away(_));
            let rig = rigs.get(gpu.board).copied().flatten().filter(|_| !away);
            let form = rig.and_then(|rig| self.forms.form(rig, gpu, &mut self.words, &self.lines));
            let mut uses = SmallVec::new();
            for used in gpu.used.iter().filter(|_| form.is_some()) {
                let namespace = used.pod.as_ref().map_or(0, |p| self.words.id(Role::Namespace, &p.namespace));
                let counts = used.pod.is_some() || used.stranger;
                let line = if counts { self.words.line(&used.resource, &self.lines) } else { None };
                uses.push(Use::new(namespace, line));
            }
            let entry = Entry {
                node: id,
                slot,
                uuid: uuid.clone(),
                form: form.unwrap_or(usize::MAX),
                kind: None,
                position: 0,
                uses,
            };
            plans.extend(self.plan_of(&entry, node, gpu));
            let id = self.insert(entry);
            self.list(id);
            ids.push(id);
        }
        if let Some(member) = self.nodes.get_mut(id) {
            member.gpus = ids;
            member.devices = vec![0; self.lines.len()];
        }
        plans
    }

    fn insert(&mut self, entry: Entry) -> GpuId {
        if let Some(id) = self.unused.pop() {
            if let Some(free) = self.gpus.get_mut(id as usize) {
                *free = entry;
            }
            return id;
        }
        self.gpus.push(entry);
        GpuId::try_from(self.gpus.len() - 1).unwrap_or(GpuId::MAX)
    }

    /// Lists a GPU with the namespaces of its pods, where there are such lists.
    fn list(&mut self, id: GpuId) {
        let (Some(lists), Some(entry)) = (&mut self.by_namespace, self.gpus.get(id as usize)) else { return };
        for used in &entry.uses {
            let list = lists.entry(used.namespace).or_default();
            if list.last() != Some(&id) {
                list.push(id);
            }
        }
    }

    fn unlist(&mut self, id: GpuId) {
        let (Some(lists), Some(entry)) = (&mut self.by_namespace, self.gpus.get(id as usize)) else { return };
        for used in &entry.uses {
            if let Some(list) = lists.get_mut(&used.namespace) {
                list.retain(|listed| *listed != id);
            }
        }
    }

    /// GPUs with pods of these namespaces.
    fn with_pods_of(&mut self, namespaces: impl IntoIterator<Item = u32>) -> Vec<GpuId> {
        if self.by_namespace.is_none() {
            self.by_namespace = Some(HashMap::default());
            for (id, _) in (0..).zip(0..self.gpus.len()) {
                self.list(id);
            }
        }
        let lists = self.by_namespace.as_ref();
        let mut ids: Vec<GpuId> = namespaces.into_iter().filter_map(|n| lists?.get(&n)).flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn rig(&mut self, name: &PoolName, pool: &Arc<Pool>, board: &Arc<Board>) -> usize {
        if let Some(last) = self.forms.rigs.iter().position(|r| r.board == *board && r.pool_name == *name) {
            return last;
        }
        let key = (name.clone(), Arc::clone(board));
        let (lines, rigs) = (&self.lines, &mut self.forms.rigs);
        *self.rig_ids.entry(key).or_insert_with(|| {
            let rig = Rig::new(name, pool, board, lines, rigs);
            rigs.push(rig);
            rigs.len() - 1
        })
    }

    fn ids_of(&self, name: &NodeName) -> Vec<GpuId> {
        let member = self.node_ids.get(name).and_then(|id| self.nodes.get(*id));
        member.map(|m| m.gpus.clone()).unwrap_or_default()
    }

    /// Notes who holds the node's devices; with `sums` these are kept up to date.
    fn note_all(&mut self, name: &NodeName, sums: bool) {
        for id in self.ids_of(name) {
            self.note(id, 1, sums, |_| true);
        }
    }

    fn note(&mut self, id: GpuId, more: i64, sums: bool, which: impl Fn(u32) -> bool) {
        let Some(entry) = self.gpus.get(id as usize) else { return };
        for used in &entry.uses {
            let Some(line) = used.line().filter(|_| which(used.namespace)) else { continue };
            let owner = self.ledger.owner(used.namespace);
            if sums {
                self.ledger.hold(owner, line, more);
            } else {
                self.ledger.note(owner, line, more);
            }
        }
    }

    fn classify_node(&mut self, name: &NodeName) {
        for id in self.ids_of(name) {
            self.classify(id);
        }
    }

    /// Puts a GPU among its like.
    fn classify(&mut self, id: GpuId) {
        let Some(entry) = self.gpus.get(id as usize).filter(|e| e.form != usize::MAX) else { return };
        let kind = if entry.uses.iter().all(|u| u.line().is_none_or(|line| self.ledger.all_within(line))) {
            self.forms.plain(entry.form, entry.uses.len(), &self.lines)
        } else {
            self.forms.kind(entry.form, kept(&entry.uses, &self.ledger), &self.lines)
        };
        if entry.kind != Some(kind) {
            self.leave(id);
            self.join(id, kind);
        }
    }

    fn join(&mut self, id: GpuId, kind: usize) {
        let place = self.place(id);
        let first = self.forms.kinds.get(kind).and_then(|k| k.first).is_none_or(|first| place < self.place(first));
        let (Some(entry), Some(of)) = (self.gpus.get_mut(id as usize), self.forms.kinds.get_mut(kind)) else { return };
        // of several of which the first is not known, this one need not be it
        if first && (of.first.is_some() || of.members.is_empty()) {
            of.first = Some(id);
        }
        of.version += 1;
        (entry.kind, entry.position) = (Some(kind), of.members.len());
        of.members.push(id);
        self.count(id, kind, 1);
    }

    fn leave(&mut self, id: GpuId) {
        let Some(entry) = self.gpus.get_mut(id as usize) else { return };
        let (Some(kind), position) = (entry.kind.take(), entry.position) else { return };
        let Some(of) = self.forms.kinds.get_mut(kind) else { return };
        if of.members.get(position) == Some(&id) {
            of.members.swap_remove(position);
            of.first = of.first.filter(|first| *first != id);
            of.version += 1;
            let moved = of.members.get(position).copied();
            if let Some(moved) = moved.and_then(|m| self.gpus.get_mut(m as usize)) {
                moved.position = position;
            }
        }
        self.count(id, kind, -1);
    }

    fn count(&mut self, id: GpuId, kind: usize, sign: i64) {
        let Some(kind) = self.forms.kinds.get(kind) else { return };
        let node = self.gpus.get(id as usize).and_then(|e| self.nodes.get_mut(e.node));
        if let Some(node) = node {
            kind.supply.iter().for_each(|(place, n)| super::terms::add(&mut node.devices, *place, sign * n));
        }
        let rig = self.forms.list.get(kind.form).and_then(|f| self.forms.rigs.get_mut(f.rig));
        if let Some(rig) = rig {
            rig.live = rig.live.saturating_add_signed(if sign > 0 { 1 } else { -1 });
        }
    }

    /// A node is new, different, or gone.
    pub fn node(&mut self, name: &NodeName, node: Option<&Node>) {
        for id in self.ids_of(name) {
            self.note(id, -1, true, |_| true);
            self.leave(id);
            self.unlist(id);
            self.unused.push(id);
            if let Some(entry) = self.gpus.get_mut(id as usize) {
                *entry = Entry::default();
            }
        }
        let known = self.node_ids.contains_key(name);
        if let Some(node) = node {
            let plans = self.add_node(name, node);
            self.plan.gpus.set_node(name, plans);
            if !known {
                self.rank();
            }
            self.note_all(name, true);
            self.classify_node(name);
        } else {
            if let Some(member) = self.node_ids.get(name).and_then(|id| self.nodes.get_mut(*id)) {
                member.gpus.clear();
            }
            self.plan.gpus.set_node(name, Vec::new());
        }
        self.settle();
    }

    /// A tenant is new, different, or gone.
    pub fn tenant(&mut self, name: &TenantName, tenant: Option<&Tenant>) {
        let before = self.ledger.namespaces(name);
        let after = tenant.map(|t| self.words_of(t)).unwrap_or_default();
        let moved: BTreeSet<u32> = before
            .iter()
            .filter(|n| !after.contains(n))
            .chain(after.iter().filter(|n| !before.contains(n)))
            .copied()
            .collect();
        let ids = if moved.is_empty() { Vec::new() } else { self.with_pods_of(moved.iter().copied()) };
        for id in &ids {
            self.note(*id, -1, true, |namespace| moved.contains(&namespace));
        }
        self.ledger.tenant(name, tenant, after, &self.lines);
        for id in &ids {
            self.note(*id, 1, true, |namespace| moved.contains(&namespace));
        }
        for id in ids {
            self.classify(id);
        }
        match self.ledger.served_fully(name, &self.lines) {
            Some(served) => drop(self.plan.tenants.insert(name.clone(), served)),
            None => drop(self.plan.tenants.remove(name)),
        }
        self.settle();
    }

    /// Who came to hold more than guaranteed, or stopped to, has its GPUs among others now.
    fn settle(&mut self) {
        // pods of no tenant are beyond any guarantee, always
        let flipped: BTreeSet<TenantId> =
            self.ledger.flipped.drain(..).map(|(id, _)| id).filter(|id| *id != NOBODY).collect();
        if flipped.is_empty() {
            return;
        }
        let namespaces: Vec<u32> = flipped.into_iter().flat_map(|id| self.ledger.namespaces_of(id)).collect();
        for id in self.with_pods_of(namespaces) {
            self.classify(id);
        }
    }

    /// What the plan says of a GPU that stays as it is.
    pub fn as_it_is(&self, id: GpuId, snapshot: &Snapshot) -> Option<(GpuKey, GpuPlan)> {
        let entry = self.gpus.get(id as usize)?;
        let node = snapshot.nodes.get(&self.nodes.get(entry.node)?.name)?;
        self.plan_of(entry, node, node.gpus.get(&entry.uuid)?)
    }

    fn plan_of(&self, entry: &Entry, node: &Node, gpu: &Gpu) -> Option<(GpuKey, GpuPlan)> {
        let key = GpuKey { node: self.nodes.get(entry.node)?.name.clone(), uuid: entry.uuid.clone() };
        let plan = match self.forms.list.get(entry.form) {
            None => super::show::left_alone(node, gpu),
            Some(form) => super::show::kept(form, self.forms.rigs.get(form.rig)?, gpu),
        };
        Some((key, plan))
    }

    /// Most kinds have no GPU any more, or most tenants, nodes or texts are no more: they have come and gone.
    pub fn is_crowded(&self, snapshot: &Snapshot) -> bool {
        let live = self.forms.kinds.iter().filter(|k| !k.members.is_empty()).count();
        let known = [
            (self.forms.kinds.len(), live),
            (self.ledger.len(), snapshot.tenants.len()),
            (self.nodes.len(), snapshot.nodes.len()),
            (self.words.len(), self.texts),
        ];
        known.iter().any(|(all, live)| *all > CROWD + 2 * live)
    }

    /// The first GPU of a kind in the order of the fleet.
    pub fn first(&mut self, kind: usize) -> Option<(u32, u32)> {
        let of = self.forms.kinds.get(kind)?;
        let first = of.first.or_else(|| of.members.iter().copied().min_by_key(|id| self.place(*id)))?;
        if let Some(of) = self.forms.kinds.get_mut(kind) {
            of.first = Some(first);
        }
        Some(self.place(first))
    }

    /// GPUs in the order of the fleet.
    pub fn place(&self, id: GpuId) -> (u32, u32) {
        let entry = self.gpus.get(id as usize);
        entry.map_or((u32::MAX, u32::MAX), |e| (self.nodes.get(e.node).map_or(u32::MAX, |n| n.rank), e.slot))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Event, Index},
        *,
    };

    #[test]
    fn tenants_and_nodes_that_come_and_go_take_no_more_room_the_longer_they_do() {
        let mut index = Index::default();
        for n in 0..5 * CROWD {
            let (tenant, node) = (TenantName::from(format!("team-{n}")), NodeName::from(format!("gpu-{n}")));
            let namespaces = Box::from([format!("team-{n}-train").into()]);
            index.apply(Event::Tenant(tenant.clone(), Some(Tenant { namespaces, ..Tenant::default() })));
            index.apply(Event::Node(node.clone(), Some(Node::default())));
            index.plan();
            index.apply(Event::Tenant(tenant, None));
            index.apply(Event::Node(node, None));
        }
        let core = index.core();
        let most = CROWD + 1;
        assert!(core.ledger.len() <= most && core.nodes.len() <= most && core.words.len() <= most);
        assert!(core.words.addresses() == 0, "of a tenant's namespaces none is remembered by its address");
    }
}
