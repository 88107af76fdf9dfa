//! Staged rollouts of pools with `spec.rollout`: what the engine decides from, and what the pool reports.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    ChangePhase, GpuNode, GpuPool, GpuPoolStatus, GpuSpec, Layout, LayoutMode, ProvenDefinition,
    condition::{self, ConditionUpdate},
    reasons::{self, Reason},
};
use gputenancy_engine::{
    fingerprint::fingerprint,
    fleet::Fleet,
    liveness::GRACE_PERIOD,
    rollout::{RolloutGpu, RolloutInput, Stage, stage},
};
use gputenancy_service::events::EventType;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{
    fleet_plan::FleetPlan,
    inventory::Inventory,
    ownership::Ownership,
    wishes::{GpuWish, wishes},
};
use crate::plan::{PoolName, resource_name};

/// What is new has been served through the soak time.
const ROLLED_OUT: &str = "RolledOut";
/// Name of the definition of `spec.layout.fixed`.
const FIXED: &str = "spec.layout.fixed";

/// Stages by pool.
#[derive(Debug, Default)]
pub struct Stages(BTreeMap<String, (Stage, Resources)>);

/// Names of definitions by resource.
type Resources = BTreeMap<String, String>;

/// Decides the stage of every pool with rules for rollouts.
pub fn stages(inventory: &Inventory<'_>, ownership: &Ownership, plan: &FleetPlan<'_>) -> Stages {
    let fleet = inventory.fleet;
    let mut pools = fleet.pools.iter().filter(|pool| pool.spec.rollout.is_some()).peekable();
    if pools.peek().is_none() {
        return Stages::default();
    }
    let mut by_pool: BTreeMap<&PoolName, Vec<GpuWish<'_>>> = BTreeMap::new();
    for wish in wishes(inventory, ownership, plan) {
        by_pool.entry(&wish.plan.pool).or_default().push(wish);
    }
    let of = |pool: &GpuPool| {
        let rules = pool.spec.rollout.as_ref()?;
        let (definitions, resources) = definitions(fleet, pool);
        let here = by_pool.iter().filter(|(name, _)| name.as_str() == pool.name_any()).flat_map(|(_, wishes)| wishes);
        let gpus: Vec<RolloutGpu<'_>> = here.map(|wish| gpu(inventory, wish, &resources, pool)).collect();
        let nodes: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.node).collect();
        let input = RolloutInput {
            rules,
            generation: pool.metadata.generation.unwrap_or_default(),
            definitions,
            stalled: nodes.iter().filter_map(|node| Some((*node, stalled(fleet.gpu_nodes.get(*node)?)?))).collect(),
            gpus,
            now: inventory.now,
        };
        let before = pool.status.as_ref().and_then(|status| status.rollout.as_ref());
        Some((pool.name_any(), (stage(before, &input), resources)))
    };
    Stages(pools.filter_map(of).collect())
}

/// The definitions of a pool, and the profile of each resource.
fn definitions(fleet: &Fleet, pool: &GpuPool) -> (Vec<ProvenDefinition>, Resources) {
    let mut resources = Resources::new();
    let mut definitions = Vec::new();
    for name in &pool.spec.profiles {
        let Some(profile) = fleet.profiles.iter().find(|p| p.name_any() == *name) else { continue };
        let (device, resource) = (&profile.spec.device, resource_name(name, &profile.spec));
        let replicas = device.time_slice.as_ref().map(|t| t.replicas);
        let replicas = replicas.or_else(|| device.mps.as_ref()?.replicas);
        definitions.push(ProvenDefinition { name: name.clone(), hash: fingerprint(&(device, &resource)), replicas });
        resources.insert(resource, name.clone());
    }
    let layout = &pool.spec.layout;
    if layout.mode == LayoutMode::Fixed {
        definitions.push(ProvenDefinition { name: FIXED.to_owned(), hash: fingerprint(&layout.fixed), replicas: None });
    }
    (definitions, resources)
}

fn gpu<'a>(inventory: &Inventory<'_>, wish: &GpuWish<'a>, resources: &'a Resources, pool: &GpuPool) -> RolloutGpu<'a> {
    let GpuWish { key, plan: _, spec, target, changing, wanted, blocked, rank, unknown: _ } = *wish;
    let node = key.node.as_str();
    let silent = inventory.fleet.liveness(node).is_silent_for(GRACE_PERIOD, inventory.now);
    let change = spec.and_then(|s| s.change.as_ref());
    let failed = change.filter(|c| c.phase >= ChangePhase::RolledBack && target == Some(&c.to));
    RolloutGpu {
        node,
        uses: uses(&layout_of(spec, target), resources, pool.spec.layout.mode),
        wanted,
        changing,
        blocked: blocked || silent,
        rank,
        failed: failed.map(|c| (c.phase_since.0, c.reason.clone())),
    }
}

/// The next layout of a GPU.
fn layout_of(spec: Option<&GpuSpec>, target: Option<&Layout>) -> Layout {
    target.cloned().or_else(|| spec.map(GpuSpec::layout)).unwrap_or_default()
}

fn uses<'a>(layout: &Layout, resources: &'a Resources, mode: LayoutMode) -> BTreeSet<&'a str> {
    let profiles = layout.resources().into_iter().filter_map(|r| resources.get(&r)).map(String::as_str);
    profiles.chain((mode == LayoutMode::Fixed).then_some(FIXED)).collect()
}

/// Why the agent of a node makes no progress.
fn stalled(node: &GpuNode) -> Option<String> {
    let conditions = &node.status.as_ref()?.conditions;
    let stalled = conditions.iter().find(|c| c.type_ == condition::STALLED && c.status == "True")?;
    Some(format!("{} ({})", stalled.message, stalled.reason))
}

impl Stages {
    /// Why the rollout of its pool keeps a GPU from its next layout; `None`: it does not.
    pub fn waits(&self, fleet: &Fleet, wish: &GpuWish<'_>) -> Option<String> {
        let (stage, resources) = self.0.get(wish.plan.pool.as_str())?;
        let mode = fleet.pools.iter().find(|p| p.name_any() == wish.plan.pool.as_str())?.spec.layout.mode;
        stage.waits(wish.key.node.as_str(), &uses(&layout_of(wish.spec, wish.target), resources, mode))
    }

    /// Whether a GPU's next layout is staged: then it goes before others, because the others of its kind wait for it.
    pub fn is_first(&self, fleet: &Fleet, wish: &GpuWish<'_>) -> bool {
        let found = || {
            let (stage, resources) = self.0.get(wish.plan.pool.as_str())?;
            let mode = fleet.pools.iter().find(|p| p.name_any() == wish.plan.pool.as_str())?.spec.layout.mode;
            Some(stage.is_staged(&uses(&layout_of(wish.spec, wish.target), resources, mode)))
        };
        found().unwrap_or(false) && self.waits(fleet, wish).is_none()
    }

    /// Adds the state to a pool's status, and its condition.
    pub fn report(&self, pool: &str, status: &mut GpuPoolStatus) -> Option<ConditionUpdate> {
        let (stage, _) = self.0.get(pool)?;
        status.rollout = Some(stage.status.clone());
        Some(update(stage))
    }

    /// The ends of soak times.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> {
        self.0.values().filter_map(|(stage, _)| stage.ends)
    }
}

fn update(stage: &Stage) -> ConditionUpdate {
    let status = &stage.status;
    let (trying, nodes) = (status.trying.join(", "), status.nodes.join(", "));
    if let Some(stopped) = &status.stopped {
        let message = format!(
            "{trying}: {}; no other node begins: correct the profile, or repair the node; any edit of the GpuPool's spec tries again{}",
            stopped.cause,
            stage.way_back()
        );
        return ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_STOPPED, message);
    }
    match stage.ends {
        _ if status.trying.is_empty() => {
            ConditionUpdate::yes(ROLLED_OUT, reasons::ROLLED_OUT, "no node has, or waits for, anything new")
        }
        Some(at) => {
            let message = format!("{nodes} serves {trying}; other nodes follow at {at} if nothing fails");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_SOAKING, message)
        }
        None if nodes.is_empty() => {
            let message = format!("{trying}: no node can begin now; see status.pending");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_STAGED, message)
        }
        None => {
            let message = format!("{nodes} changes to {trying} first; other nodes wait");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_STAGED, message)
        }
    }
}

/// The event about a rollout that has stopped or ended.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<(EventType, Reason, String)> {
    let of = |all: &[Condition]| all.iter().find(|c| c.type_ == ROLLED_OUT).cloned();
    let new = of(now)?;
    let old = of(before);
    if old.as_ref().is_some_and(|old| old.reason == new.reason) {
        return None;
    }
    let reason = Reason::listed(&new.reason)?;
    if reasons::ROLLOUT_STOPPED == reason.as_str() {
        return Some((EventType::Warning, reason, new.message));
    }
    // the first report of a pool is no transition
    old.map(|_| (EventType::Normal, reason, new.message))
}
