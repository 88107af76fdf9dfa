//! From objects to the report.

use std::collections::BTreeMap;

use gputenancy_crds::{Board, GpuNode, GpuPool, GpuTenant, OtherLimit, ids::PoolName};
use gputenancy_plan::{Snapshot, board::BoardGeometry};
use kube::ResourceExt;

use super::{
    attention,
    bar::GpuSlices,
    device::{GpuView, devices, mark},
    filter::{Filter, FilterError, Member},
    model::{AgentStatus, DeviceCounts, FleetStatus, GpuStatus, NodeStatus, PoolStatus},
    unallocated::Offers,
};
use crate::world::World;

/// The report about the nodes that a filter selects. Pure.
pub fn report(world: &World, filter: &Filter) -> Result<FleetStatus, FilterError> {
    let members = filter.members(world)?;
    // problems of objects are conditions of these objects, and `plan` lists them
    let (snapshot, _) = Snapshot::read(&world.fleet.cluster());
    let nodes: Vec<NodeStatus> = members.iter().map(|member| node(world, &snapshot, member)).collect();
    let mut attention: Vec<String> = members.iter().flat_map(|member| of_member(world, member)).collect();
    let pools = pools(world, filter, &nodes);
    let listed = |pool: &&GpuPool| pools.iter().any(|p| p.pool == pool.name_any());
    attention.extend(world.fleet.pools.iter().filter(listed).flat_map(attention::of_pool));
    attention.extend(nodes.iter().flat_map(attention::of_pods));
    attention.extend(attention::of_tenants(world.tenants.iter().filter(|tenant| concerns(world, filter, tenant))));
    attention.sort();
    attention.dedup();
    Ok(FleetStatus {
        api_version: "gputenancy.io/v1alpha1".into(),
        kind: "FleetStatus".into(),
        taken_at: world.taken_at.map(|t| t.to_string()),
        node_count: nodes.len(),
        silent_agents: silent(nodes.iter()),
        gpu_count: nodes.iter().map(|n| n.gpus.len()).sum(),
        devices: counts(nodes.iter()),
        pools,
        nodes,
        attention,
        not_visible: Vec::new(),
    })
}

/// Does a tenant concern the filter: any, or with a guarantee of a profile that the pool lists?
fn concerns(world: &World, filter: &Filter, tenant: &GpuTenant) -> bool {
    let listed = |pool: &String, profile: &String| world.pool(pool).is_some_and(|p| p.spec.profiles.contains(profile));
    let pool = |pool: &String| tenant.spec.gpus.iter().any(|guarantee| listed(pool, &guarantee.profile));
    filter.node.is_none() && filter.pool.as_ref().is_none_or(pool)
}

fn of_member(world: &World, member: &Member<'_>) -> Vec<String> {
    let gpus = world.fleet.gpu_nodes.get(member.node).map(|n| &**n);
    attention::of_node(member.node, &member.pools, world.fleet.liveness(member.node), gpus)
}

fn node(world: &World, snapshot: &Snapshot, member: &Member<'_>) -> NodeStatus {
    let liveness = world.fleet.liveness(member.node);
    let pool = if let [only] = member.pools.as_slice() { Some(only) } else { None };
    let gpu_node = world.fleet.gpu_nodes.get(member.node).map(|n| &**n);
    NodeStatus {
        node: member.node.to_owned(),
        pool: pool.map(ToString::to_string),
        agent: AgentStatus {
            reports: liveness.is_alive(),
            cause: liveness.cause().map(str::to_owned),
            since: liveness.since.filter(|_| !liveness.is_alive()).map(|t| t.to_string()),
        },
        simulated: gpu_node.and_then(|n| n.status.as_ref()?.simulated).unwrap_or(false),
        gpus: gpu_node.map(|n| gpus(world, snapshot, pool, n)).unwrap_or_default(),
        other_limits: gpu_node.map(other_limits).unwrap_or_default(),
    }
}

fn gpus(world: &World, snapshot: &Snapshot, pool: Option<&PoolName>, node: &GpuNode) -> Vec<GpuStatus> {
    let Some(status) = &node.status else { return Vec::new() };
    let name = node.name_any();
    let (answers, mark) = (world.fleet.answers(&name), mark(world, &name));
    let profiles = pool.and_then(|pool| world.pool(pool.as_str())).map(|pool| &pool.spec.profiles);
    let boards: Vec<BoardGeometry> = status.boards.iter().map(BoardGeometry::from).collect();
    let offers: Vec<Option<Offers<'_>>> =
        boards.iter().map(|board| profiles.map(|names| Offers::of(snapshot, names, board))).collect();
    let gpu = |state: &gputenancy_crds::GpuState| {
        let spec = node.spec.gpus.iter().find(|g| g.uuid == state.uuid);
        let board = usize::try_from(state.board).ok();
        let offers = board.and_then(|board| offers.get(board)?.as_ref());
        let view = GpuView { world, spec, state, answers, marked: mark.as_deref() };
        let devices = devices(view);
        let rest = spec.zip(offers).map(|(spec, offers)| offers.rest(spec, state)).unwrap_or_default();
        let known = board.and_then(|board| boards.get(board));
        let available = view.is_available();
        let slices = GpuSlices { spec, state, board: known, offers, devices: &devices, rest: &rest, available }.bar();
        let product = board.and_then(|board| status.boards.get(board)).map(|b: &Board| b.product.clone());
        GpuStatus {
            gpu: state.index,
            uuid: state.uuid.clone(),
            product: product.unwrap_or_default(),
            managed: spec.is_some(),
            health: format!("{:?}", state.health),
            change: spec.and_then(|s| s.change.as_ref()).map(|c| format!("{:?}", c.phase)),
            devices,
            unallocated: rest.parts,
            slices,
        }
    };
    let mut gpus: Vec<GpuStatus> = status.gpus.iter().map(gpu).collect();
    gpus.sort_by(|a, b| (a.gpu, &a.uuid).cmp(&(b.gpu, &b.uuid)));
    gpus
}

fn other_limits(node: &GpuNode) -> Vec<OtherLimit> {
    let enforcement = node.status.iter().filter_map(|status| status.enforcement.as_ref());
    enforcement.flat_map(|enforcement| &enforcement.other_limits).cloned().collect()
}

fn silent<'a>(nodes: impl Iterator<Item = &'a NodeStatus>) -> usize {
    nodes.filter(|n| !n.agent.reports).count()
}

fn counts<'a>(nodes: impl Iterator<Item = &'a NodeStatus>) -> DeviceCounts {
    let mut counts = DeviceCounts::default();
    nodes.flat_map(|n| &n.gpus).flat_map(|g| &g.devices).for_each(|d| counts.count(d.state));
    counts
}

/// Every pool of the filter, also one without nodes.
fn pools(world: &World, filter: &Filter, nodes: &[NodeStatus]) -> Vec<PoolStatus> {
    let mut by_pool: BTreeMap<String, Vec<&NodeStatus>> = BTreeMap::new();
    if filter.node.is_none() {
        let wanted = |name: &String| filter.pool.as_ref().is_none_or(|pool| pool == name);
        by_pool
            .extend(world.fleet.pools.iter().map(ResourceExt::name_any).filter(wanted).map(|name| (name, Vec::new())));
    }
    for node in nodes {
        if let Some(pool) = &node.pool {
            by_pool.entry(pool.clone()).or_default().push(node);
        }
    }
    let status = |(pool, nodes): (String, Vec<&NodeStatus>)| {
        let here = || nodes.iter().copied();
        let unallocated = here().flat_map(|n| &n.gpus).flat_map(|g| &g.unallocated);
        PoolStatus {
            pool,
            nodes: nodes.len(),
            silent_agents: silent(here()),
            gpus: here().map(|n| n.gpus.len()).sum(),
            devices: counts(here()),
            stranded_slices: unallocated.filter(|u| u.stranded).map(|u| u.memory_slices.len()).sum(),
        }
    };
    by_pool.into_iter().map(status).collect()
}
