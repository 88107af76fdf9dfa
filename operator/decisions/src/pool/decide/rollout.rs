//! Staged rollouts of pools with `spec.rollout`: what decisions are made from, and what the pool reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    ChangePhase, GpuNode, GpuPool, Layout, LayoutMode, ProvenDefinition, RolloutStatus,
    condition::{self, ConditionUpdate},
    reasons::{self, Reason},
};
use gputenancy_plan::{plain, resource_name};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{
    fleet_plan::Planned,
    planned_gpus::{PlannedGpu, planned_gpus},
};
use crate::{
    event::EventMessage,
    fingerprint::fingerprint,
    liveness::{GRACE_PERIOD, SLOT_TIMEOUT},
    pool::{derive::marks::Marks, read::inventory::Inventory},
    rollout::{FailedChange, Names, RolloutGpu, RolloutInput, RolloutNode, Stage, stage},
};

/// What is new has been served through the soak time.
const ROLLED_OUT: &str = "RolledOut";
/// Name of the definition of `spec.layout.fixed`.
const FIXED: &str = "spec.layout.fixed";

/// Stages by pool.
#[derive(Debug, Default)]
pub struct Stages(BTreeMap<String, PoolStage>);

#[derive(Debug)]
struct PoolStage {
    stage: Stage,
    /// Names of definitions by resource.
    resources: Resources,
    mode: LayoutMode,
}

type Resources = BTreeMap<String, String>;

/// What a stage means for a GPU that wants something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is on a node that serves it first: other GPUs wait for it, so it comes before changes of an earlier order.
    First,
    /// It may not begin now, with the reason.
    Waits(Arc<str>),
}

/// Decides the stage of every pool with rules for rollouts.
pub fn stages(planned: &Planned<'_>) -> Stages {
    let (inventory, marks) = (&planned.inventory(), planned.marks);
    let fleet = inventory.fleet;
    let mut pools = fleet.pools.iter().filter(|pool| pool.spec.rollout.is_some()).peekable();
    if pools.peek().is_none() {
        return Stages::default();
    }
    let mut by_pool: BTreeMap<&str, Vec<PlannedGpu<'_>>> = BTreeMap::new();
    for gpu in planned_gpus(planned) {
        by_pool.entry(gpu.plan.pool.as_str()).or_default().push(gpu);
    }
    let of = |pool: &GpuPool| {
        let (rules, mode) = (pool.spec.rollout.as_ref()?, pool.spec.layout.mode);
        let (definitions, resources) = definitions(planned, pool);
        let name = pool.name_any();
        let here = by_pool.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let gpus: Vec<RolloutGpu<'_>> = here.iter().map(|planned| gpu(planned, marks, &resources, mode)).collect();
        let nodes: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.node).collect();
        let input = RolloutInput {
            rules,
            generation: pool.metadata.generation.unwrap_or_default(),
            definitions,
            nodes: nodes.into_iter().map(|name| (name, node(inventory, marks, name))).collect(),
            gpus,
            now: inventory.now,
        };
        let before = pool.status.as_ref().and_then(|status| status.rollout.as_ref());
        let stage = stage(before, &input);
        Some((name, PoolStage { stage, resources, mode }))
    };
    Stages(pools.filter_map(of).collect())
}

/// The definitions of a pool, and the profile of each resource.
fn definitions(planned: &Planned<'_>, pool: &GpuPool) -> (Vec<ProvenDefinition>, Resources) {
    let mut resources = Resources::new();
    let mut definitions = Vec::new();
    for name in &pool.spec.profiles {
        let Some(profile) = planned.profile(name) else { continue };
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

fn gpu<'a>(planned: &PlannedGpu<'a>, marks: &'a Marks, resources: &'a Resources, mode: LayoutMode) -> RolloutGpu<'a> {
    let PlannedGpu { key, spec, target, wanted, blocked, rank, .. } = *planned;
    let change = spec.and_then(|s| s.change.as_ref());
    let failed = change.filter(|c| c.phase >= ChangePhase::RollingBack);
    let marked = marks.of_gpu(key.node.as_str(), key.uuid.as_str());
    // a change that the mark suspends goes on after it
    let suspended = change.filter(|c| marked.is_some() && c.phase < ChangePhase::RollingBack);
    let suspended = suspended.map(|c| uses(&c.to, resources, mode)).unwrap_or_default();
    RolloutGpu {
        node: key.node.as_str(),
        uses: next_uses(planned, resources, mode).into_iter().chain(suspended).collect(),
        wanted,
        begun: change.is_some_and(|c| c.phase < ChangePhase::RollingBack && target.is_some_and(|t| is_same(t, &c.to))),
        blocked,
        marked,
        rank,
        failed: failed.map(|c| FailedChange {
            uses: uses(&c.to, resources, mode),
            at: c.phase_since.0,
            why: c.reason.clone(),
        }),
    }
}

fn is_same(one: &Layout, other: &Layout) -> bool {
    plain(one.clone()) == plain(other.clone())
}

/// Definitions of the layout that a GPU has next.
fn next_uses<'a>(planned: &PlannedGpu<'_>, resources: &'a Resources, mode: LayoutMode) -> Names<'a> {
    match (planned.target, planned.spec) {
        (Some(target), _) => uses(target, resources, mode),
        (None, Some(spec)) => uses(&spec.layout(), resources, mode),
        (None, None) => Names::new(),
    }
}

fn uses<'a>(layout: &Layout, resources: &'a Resources, mode: LayoutMode) -> Names<'a> {
    let profiles = layout.resources().into_iter().filter_map(|r| resources.get(&r)).map(String::as_str);
    profiles.chain((mode == LayoutMode::Fixed).then_some(FIXED)).collect()
}

/// How a node fares. A mark explains that its agent is silent, as during a reboot, and no fault that the agent reports.
fn node(inventory: &Inventory<'_>, marks: &Marks, name: &str) -> RolloutNode {
    let (liveness, marked) = (inventory.fleet.liveness(name), marks.of(name));
    let silent = liveness.is_silent_for(GRACE_PERIOD, inventory.now);
    let failed = || inventory.fleet.gpu_nodes.get(name).and_then(|node| stalled(node));
    match marked {
        Some(why) if silent => RolloutNode::Marked(why.to_owned()),
        Some(why) => failed().map_or_else(|| RolloutNode::Marked(why.to_owned()), RolloutNode::Fails),
        None if liveness.is_silent_for(SLOT_TIMEOUT, inventory.now) => {
            let cause = liveness.cause().unwrap_or("its agent does not report");
            RolloutNode::Fails(format!("{cause} for more than {} minutes", SLOT_TIMEOUT.as_mins()))
        }
        None if silent => RolloutNode::Silent,
        None => failed().map_or(RolloutNode::Works, RolloutNode::Fails),
    }
}

/// Why the agent of a node makes no progress.
fn stalled(node: &GpuNode) -> Option<String> {
    let conditions = &node.status.as_ref()?.conditions;
    let stalled = conditions.iter().find(|c| c.type_ == condition::STALLED && c.status == "True")?;
    Some(format!("{} ({})", stalled.message, stalled.reason))
}

impl Stages {
    /// What the stage of its pool means for a GPU that wants another layout; `None`: nothing.
    pub fn standing(&self, planned: &PlannedGpu<'_>) -> Option<Standing> {
        let PoolStage { stage, resources, mode } = self.0.get(planned.plan.pool.as_str())?;
        if !planned.wanted || !stage.is_staged(&next_uses(planned, resources, *mode)) {
            return None;
        }
        Some(stage.waits(planned.key.node.as_str()).map_or(Standing::First, Standing::Waits))
    }

    /// The state of a pool's rollout, and its condition; `None` without rules.
    pub fn report(&self, pool: &str) -> Option<(RolloutStatus, ConditionUpdate)> {
        let PoolStage { stage, .. } = self.0.get(pool)?;
        Some((stage.status.clone(), update(stage)))
    }

    /// Pools whose rollout has stopped.
    pub fn stopped(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, pool)| pool.stage.status.stopped.is_some()).map(|(name, _)| name.as_str())
    }

    /// The ends of soak times.
    pub fn ends(&self) -> impl Iterator<Item = Timestamp> {
        self.0.values().filter_map(|pool| pool.stage.ends)
    }
}

fn update(stage: &Stage) -> ConditionUpdate {
    let status = &stage.status;
    let (trying, nodes, marked) = (status.trying.join(", "), stage.first_nodes(), stage.marked_nodes());
    if let Some(stopped) = &status.stopped {
        let message = format!(
            "{trying}: {}; no other node begins: set the profile or layout back, or correct it; after a repair of the node any edit of the GpuPool's spec tries again{}",
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
            let message = format!("{nodes} serves {trying}; other nodes follow at {at} if nothing fails{marked}");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_SOAKING, message)
        }
        None if nodes.is_empty() => {
            let message = format!("{trying}: no node can begin now; see status.pending{marked}");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_STAGED, message)
        }
        None => {
            let message = format!("{nodes} changes to {trying} first; other nodes wait{marked}");
            ConditionUpdate::no(ROLLED_OUT, reasons::ROLLOUT_STAGED, message)
        }
    }
}

/// The event about a rollout that has stopped or ended.
pub fn event(before: &[Condition], now: &[Condition]) -> Option<EventMessage> {
    let of = |all: &[Condition]| all.iter().find(|c| c.type_ == ROLLED_OUT).cloned();
    let new = of(now)?;
    let old = of(before);
    if old.as_ref().is_some_and(|old| old.reason == new.reason) {
        return None;
    }
    let reason = Reason::listed(&new.reason)?;
    if reasons::ROLLOUT_STOPPED == reason.as_str() {
        return Some(EventMessage::warning(reason, new.message));
    }
    // the first report of a pool is no transition
    old.map(|_| EventMessage::normal(reason, new.message))
}
