//! A large fleet in the benchmark: 5,000 nodes of eight GPUs, 10,000 tenants, pods everywhere.

use std::collections::BTreeMap;

use gputenancy_crds::{
    InstanceSpec, Layout,
    ids::{PodName, TenantName},
};
use gputenancy_plan::{
    Interner, Snapshot, Tenant,
    board::{BoardGeometry, Shape},
    snapshot::{Gpu, InUse, Node, Pool, Profile},
};

use crate::boards;

pub const NODES: usize = 5_000;
pub const GPUS: usize = 8;
pub const TENANTS: usize = 10_000;

/// Pseudo-random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// Layouts that the fleet's GPUs have, as profile and start; one in four is whole.
const LAYOUTS: [&[(&str, i32)]; 3] = [
    &[("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 3), ("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)],
    &[("3g.40gb", 0), ("3g.40gb", 4)],
    &[("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)],
];

/// Four pools, each with a quarter of the nodes; a pod on three of four devices, of some tenant that is guaranteed it.
pub fn fleet() -> Snapshot {
    let mut dice = Dice(7);
    let mut snapshot = Snapshot::default();
    // as `Snapshot::read` makes it: what is equal is shared
    let mut interner = Interner::default();
    let board = interner.board(BoardGeometry::from(&boards::a100()));
    let named = [("mig-1g", "1g.10gb"), ("mig-2g", "2g.20gb"), ("mig-3g", "3g.40gb")];
    let mut profiles: BTreeMap<&str, (Shape, String)> =
        named.map(|(n, p)| (n, (Shape::Named(p.into()), format!("nvidia.com/mig-{p}")))).into();
    profiles.insert("gpu", (Shape::Whole, "nvidia.com/gpu".into()));
    for (name, (shape, resource)) in &profiles {
        let profile = Profile {
            shape: shape.clone(),
            products: [].into(),
            resource: resource.clone(),
            trust: gputenancy_crds::Trust::Untrusted,
        };
        snapshot.profiles.insert(interner.text(name), profile);
    }
    for pool in 0..4 {
        let profiles = profiles.keys().map(|p| interner.text(p)).collect();
        snapshot.pools.insert(interner.text(&format!("pool-{pool}")), Pool { profiles, ..Pool::default() });
    }
    let mut tenants: Vec<Tenant> = (0..TENANTS)
        .map(|t| Tenant { namespaces: [interner.text(&format!("team-{t:05}"))].into(), ..Tenant::default() })
        .collect();
    let mut take = |dice: &mut Dice, interner: &mut Interner, profile: &str, pod: usize| {
        let tenant = dice.roll(TENANTS);
        *tenants[tenant].guarantees.entry(interner.text(profile)).or_default() += 1;
        PodName { namespace: interner.text(&format!("team-{tenant:05}")), name: format!("pod-{pod}") }
    };
    let mut pods = 0;
    for node in 0..NODES {
        let mut gpus = BTreeMap::new();
        for index in 0..GPUS {
            let layout = LAYOUTS.get(dice.roll(4));
            let instances = layout.copied().unwrap_or_default();
            let mut used = Vec::new();
            let devices: Vec<(Option<&str>, i32)> = match layout {
                Some(all) => all.iter().map(|(p, s)| (Some(*p), *s)).collect(),
                None => vec![(None, 0)],
            };
            for (profile, start) in devices {
                if dice.roll(4) > 0 {
                    pods += 1;
                    let name = named.iter().find(|(_, p)| Some(*p) == profile).map_or("gpu", |(n, _)| n);
                    let resource = interner.text(&profiles[name].1);
                    let pod = Some(take(&mut dice, &mut interner, name, pods));
                    let profile = profile.map(|p| interner.text(p));
                    used.push(InUse {
                        start,
                        share: false,
                        profile,
                        resource,
                        pod,
                        unattributed: false,
                        priority: 0,
                        memory: None,
                    });
                }
            }
            let spec =
                |(p, s): &(&str, i32)| InstanceSpec { start: *s, profile: (*p).into(), resource: None, replicas: None };
            let base =
                Layout { mig: layout.is_some(), instances: instances.iter().map(spec).collect(), ..Layout::default() };
            let base = Some(interner.layout(base));
            let gpu = Gpu { index: index.try_into().unwrap(), base, used, ..Gpu::default() };
            gpus.insert(format!("GPU-{node:05}-{index}").into(), gpu);
        }
        let pool = interner.text(&format!("pool-{}", node % 4));
        snapshot.nodes.insert(
            format!("node-{node:05}").into(),
            Node { pool, boards: vec![board.clone()], gpus, ..Node::default() },
        );
    }
    snapshot.tenants = tenants.into_iter().enumerate().map(|(t, tenant)| (name(t), tenant)).collect();
    snapshot
}

pub fn name(tenant: usize) -> TenantName {
    format!("tenant-{tenant:05}").into()
}

/// As it is, but so many tenants want more 3g.40gb than there are free.
pub fn grown(snapshot: &Snapshot, tenants: usize, more: u32) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for tenant in 0..tenants {
        if let Some(tenant) = snapshot.tenants.get_mut(&name(tenant)) {
            *tenant.guarantees.entry("mig-3g".into()).or_default() += more;
        }
    }
    snapshot
}
