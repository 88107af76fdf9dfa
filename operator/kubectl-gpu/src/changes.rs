//! GPU changes in progress. Pure: from objects to a list.

use gputenancy_crds::{ChangePhase, FlappingGuarantee, GpuNode, GpuPool, GpuTenant};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::seconds;

/// Steps of a successful change, from notice to verification.
const STEPS: u8 = 6;

/// All changes at one moment.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChangeList {
    /// `gputenancy.io/v1alpha1`.
    pub api_version: String,
    /// `ChangeList`.
    pub kind: String,
    /// The changes, by node and index.
    pub items: Vec<RunningChange>,
    /// What has not started yet, in sentences: pools and tenants that are not reconciled.
    pub pending: Vec<String>,
}

/// A GPU that is changing, or whose last change failed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunningChange {
    /// Its node.
    pub node: String,
    /// NVML's index on the node.
    pub gpu: i32,
    /// Its pool, once the pool's status lists the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Phase, such as `Evicting`.
    pub phase: String,
    /// Steps done, of `steps`.
    pub step: u8,
    /// Steps of a change.
    pub steps: u8,
    /// When the present phase began, in RFC 3339.
    pub since: String,
    /// Seconds since then.
    pub seconds: u64,
    /// Current action and what it waits for.
    pub message: String,
    /// Why the GPU is changed, or why the change failed.
    pub reason: String,
    /// It failed: it was rolled back, or is stuck.
    pub failed: bool,
}

/// Objects with state of changes.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// GPU nodes.
    pub nodes: Vec<GpuNode>,
    /// The pools.
    pub pools: Vec<GpuPool>,
    /// The tenants.
    pub tenants: Vec<GpuTenant>,
}

/// All changes in progress and pending.
pub fn changes(objects: &Objects, now: Timestamp) -> ChangeList {
    let mut items: Vec<RunningChange> = objects.nodes.iter().flat_map(|n| of_node(objects, n, now)).collect();
    items.sort_by(|a, b| (&a.node, a.gpu).cmp(&(&b.node, b.gpu)));
    let mut pending = pending(objects);
    pending.sort();
    ChangeList { api_version: "gputenancy.io/v1alpha1".into(), kind: "ChangeList".into(), items, pending }
}

impl ChangeList {
    /// No change is in progress or pending.
    pub fn is_over(&self) -> bool {
        self.pending.is_empty() && self.items.iter().all(|c| c.failed)
    }

    /// A change has failed.
    pub fn failed(&self) -> bool {
        self.items.iter().any(|c| c.failed)
    }
}

fn of_node(objects: &Objects, node: &GpuNode, now: Timestamp) -> Vec<RunningChange> {
    let name = node.name_any();
    let of = |spec: &gputenancy_crds::GpuSpec| {
        let change = spec.change.as_ref()?;
        let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| g.uuid == spec.uuid);
        let index = state.map_or(-1, |s| s.index);
        let listed = objects.pools.iter().find_map(|pool| {
            let found = pool.status.iter().flat_map(|s| &s.changes).find(|c| c.node == name && c.gpu == index)?;
            Some((pool.name_any(), found))
        });
        // the pool's status may be one phase behind
        let message = listed.as_ref().filter(|(_, c)| c.phase == change.phase).map(|(_, c)| c.message.clone());
        Some(RunningChange {
            node: name.clone(),
            gpu: index,
            pool: listed.map(|(pool, _)| pool),
            phase: format!("{:?}", change.phase),
            step: step(change.phase),
            steps: STEPS,
            since: change.phase_since.0.to_string(),
            seconds: seconds(now.duration_since(change.phase_since.0)),
            message: message.unwrap_or_default(),
            reason: change.reason.clone(),
            failed: change.phase >= ChangePhase::RolledBack,
        })
    };
    node.spec.gpus.iter().filter_map(of).collect()
}

fn step(phase: ChangePhase) -> u8 {
    match phase {
        ChangePhase::Noticed => 1,
        ChangePhase::Held => 2,
        ChangePhase::Evicting => 3,
        ChangePhase::Idle => 4,
        ChangePhase::Partitioning | ChangePhase::RollingBack => 5,
        ChangePhase::Canary | ChangePhase::Verifying | ChangePhase::RolledBack | ChangePhase::Stuck => 6,
    }
}

/// A guarantee that is planned later, because it went up and down.
fn settling(pool: &str, flapping: &FlappingGuarantee) -> Option<String> {
    let FlappingGuarantee { tenant, profile, writers: _, changes: _, wanted, planned, planned_at } = flapping;
    let at = planned_at.as_ref()?.0;
    Some(format!(
        "GpuPool {pool}: of {profile} {planned} devices are planned for tenant {tenant}, and {wanted} from {at} on if it stays"
    ))
}

/// Objects that the operator has not reconciled, planned changes, and guarantees that are planned later.
fn pending(objects: &Objects) -> Vec<String> {
    let unseen = |kind: &str, name: String, generation: Option<i64>, observed: Option<i64>| {
        (observed < generation).then(|| {
            format!("{kind} {name}: the operator has not reconciled generation {} yet", generation.unwrap_or(0))
        })
    };
    let pools = objects.pools.iter().flat_map(|p| {
        let status = p.status.clone().unwrap_or_default();
        let behind = unseen("GpuPool", p.name_any(), p.metadata.generation, status.observed_generation);
        let waiting = status.pending.iter().map(|w| format!("{} GPU {}: {}", w.node, w.gpu, w.message));
        let settling = status.flapping.iter().filter_map(|f| settling(&p.name_any(), f));
        behind.into_iter().chain(waiting).chain(settling).collect::<Vec<_>>()
    });
    let tenants = objects.tenants.iter().filter_map(|t| {
        let status = t.status.clone().unwrap_or_default();
        let behind = unseen("GpuTenant", t.name_any(), t.metadata.generation, status.observed_generation);
        // a planned change shows in the condition of the waiting tenant before it shows on a GPU
        let waits = ["Planning", "Changing", "ChangePlanned"];
        let planned = |c: &&Condition| c.type_ == "CapacityReady" && waits.contains(&c.reason.as_str());
        let waiting =
            status.conditions.iter().find(planned).map(|c| format!("GpuTenant {}: {}", t.name_any(), c.message));
        behind.or(waiting)
    });
    pools.chain(tenants).collect()
}
