//! One node as observed: requested and present shape of each GPU, and which GPUs a request would repartition.

use std::collections::BTreeSet;

use gputenancy_crds::{Change, ChangePhase, DeviceState, GpuNode, GpuSpec, GpuState, names};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    config::{MigConfig, Shape, base, is_ours},
    types::RequestObservation,
};

/// A GPU in PCI order.
pub(super) struct Gpu<'a> {
    pub state: &'a GpuState,
    change: Option<&'a Change>,
    spec: Option<&'a GpuSpec>,
    /// The shape that a request contains: a GPU without a change keeps its own.
    pub wanted: Shape,
    /// The shape that NVML shows.
    pub shown: Shape,
}

pub(super) struct NodeContext<'a> {
    pub gpus: Vec<Gpu<'a>>,
    /// The agent is alive and its status reflects the present spec.
    pub fresh: bool,
    pub state: Option<&'a str>,
    pub label: Option<&'a str>,
    node: &'a GpuNode,
}

impl<'a> NodeContext<'a> {
    pub fn of(observation: &RequestObservation<'a>) -> Self {
        let observed = observation.node.status.as_ref().and_then(|s| s.observed_generation);
        let label = |name: &str| observation.labels.get(name).map(String::as_str);
        Self {
            gpus: gpus(observation.node),
            fresh: observation.agent_alive && observed >= observation.node.metadata.generation,
            state: label(names::MIG_STATE_LABEL),
            label: label(names::MIG_CONFIG_LABEL),
            node: observation.node,
        }
    }

    /// The requested layout of the node.
    pub fn config(&self) -> MigConfig {
        config(&self.gpus, |g| g.wanted.clone())
    }

    /// Pods may still have to be evicted.
    pub fn draining(&self) -> bool {
        self.changes().any(|c| c.phase <= ChangePhase::Idle)
    }

    /// Changes wait for the MIG manager, or are being verified after it.
    pub fn acting(&self) -> bool {
        self.gpus.iter().any(Gpu::acts)
    }

    pub fn stuck(&self) -> bool {
        self.changes().any(|c| c.phase == ChangePhase::Stuck)
    }

    /// The state label shows that the MIG manager is partitioning.
    pub fn busy(&self) -> bool {
        matches!(self.state, Some("pending" | "rebooting"))
    }

    /// When the last change began to wait for the MIG manager.
    pub fn acting_since(&self) -> Option<Time> {
        self.acting_changes().map(|c| c.phase_since.clone()).max_by_key(|t| t.0)
    }

    /// A change was started again after this time.
    pub fn retried_since(&self, then: Timestamp) -> bool {
        self.acting_changes().any(|c| c.phase_since.0 > then)
    }

    /// Whether a request is necessary. It also is when NVML shows all requested shapes while the label names another layout of ours: the
    /// MIG manager would apply that one when it restarts.
    pub fn needs(&self, name: &str) -> bool {
        let shown = self.fresh && self.gpus.iter().filter(|g| g.acts()).all(|g| g.wanted == g.shown);
        let verified = [ChangePhase::Canary, ChangePhase::Verifying];
        let waiting = self.acting_changes().any(|c| !verified.contains(&c.phase));
        !shown || (waiting && self.names_another(name))
    }

    /// Every GPU has the shape in its spec, and the label names another layout of ours: the MIG manager would apply that one when it
    /// restarts.
    pub fn misnamed(&self) -> bool {
        let as_specified = |g: &Gpu<'_>| g.spec.is_none_or(|s| Shape::of(&s.layout()) == g.shown);
        let ours = self.gpus.iter().any(|g| g.spec.is_some()) && self.gpus.iter().all(as_specified);
        self.fresh && ours && !self.stuck() && self.names_another(&self.config().name())
    }

    /// The label names a layout of ours other than this one.
    fn names_another(&self, name: &str) -> bool {
        self.label.is_some_and(|l| is_ours(l) && base(l) != name)
    }

    /// Why the MIG manager must not partition now: a GPU is in use, or would be repartitioned although it does not change.
    pub fn obstacle(&self) -> Option<String> {
        let swept = sweeps(self.node, |state| {
            self.gpus.iter().find(|g| g.state.uuid == state.uuid).map(|g| g.wanted.clone()).unwrap_or_default()
        });
        let swept = || self.gpus.iter().filter(|g| swept.contains(&g.state.uuid));
        if let Some(bystander) = swept().find(|g| g.spec.is_some() && !g.acts()) {
            let GpuState { index, .. } = bystander.state;
            return Some(format!("waiting for GPU {index}, which would be repartitioned too and is not idle yet"));
        }
        swept().find_map(|g| in_use(g.state))
    }

    fn changes(&self) -> impl Iterator<Item = &'a Change> {
        self.gpus.iter().filter_map(|g| g.change)
    }

    fn acting_changes(&self) -> impl Iterator<Item = &'a Change> {
        self.gpus.iter().filter(|g| g.acts()).filter_map(|g| g.change)
    }
}

impl Gpu<'_> {
    fn acts(&self) -> bool {
        let acting = [ChangePhase::Partitioning, ChangePhase::Canary, ChangePhase::Verifying, ChangePhase::RollingBack];
        self.change.is_some_and(|c| acting.contains(&c.phase))
    }
}

fn in_use(state: &GpuState) -> Option<String> {
    let used = |d: &DeviceState| d.owner.is_some() || d.clients > 0;
    let index = state.index;
    if let Some(holder) = state.holders.first() {
        return Some(format!("process {} ({}) uses GPU {index}: end it", holder.pid, holder.command));
    }
    let instance = state.instances.iter().find(|i| i.device.as_ref().is_some_and(used));
    let instance = instance.map(|i| format!("{} at {} of GPU {index} is in use", i.profile, i.start));
    let share = state.shares.iter().find(|s| used(&s.device));
    let instance = instance.or_else(|| share.map(|s| format!("share {} of GPU {index} is in use", s.number)));
    instance.or_else(|| state.whole.as_ref().filter(|w| used(w)).map(|_| format!("GPU {index} is in use")))
}

fn spec_of<'a>(node: &'a GpuNode, state: &GpuState) -> Option<&'a GpuSpec> {
    node.spec.gpus.iter().find(|s| s.uuid == state.uuid)
}

fn gpus(node: &GpuNode) -> Vec<Gpu<'_>> {
    let mut states: Vec<&GpuState> = node.status.iter().flat_map(|s| &s.gpus).collect();
    states.sort_by_key(|s| (&s.pci_bus_id, s.index));
    let gpu = |state| {
        let spec = spec_of(node, state);
        let (change, shown) = (spec.and_then(|s| s.change.as_ref()), Shape::seen(state));
        let wanted = match change {
            Some(c) if c.phase < ChangePhase::RollingBack => Shape::of(&c.to),
            Some(c) if c.phase == ChangePhase::RollingBack => Shape::of(&c.from),
            _ => shown.clone(),
        };
        Gpu { state, change, spec, wanted, shown }
    };
    states.into_iter().map(gpu).collect()
}

fn config(gpus: &[Gpu<'_>], shape: impl Fn(&Gpu<'_>) -> Shape) -> MigConfig {
    MigConfig::new(&gpus.iter().map(shape).collect::<Vec<_>>())
}

/// UUIDs of the GPUs that a request for these shapes repartitions. mig-parted leaves a GPU alone whose mode and counts are right; but
/// for one change of mode it clears every GPU with MIG on, and resets all GPUs where the boards need a reset.
pub fn sweeps(node: &GpuNode, wanted: impl Fn(&GpuState) -> Shape) -> BTreeSet<String> {
    let status = node.status.as_ref();
    let gpus = || status.iter().flat_map(|s| &s.gpus);
    let flips = |s: &GpuState| wanted(s).mig != Shape::seen(s).mig;
    let needs_reset = |s: &GpuState| {
        let board = usize::try_from(s.board).ok().and_then(|b| status?.boards.get(b));
        board.is_some_and(|b| b.mode_needs_reset)
    };
    let (mode, reset) = (gpus().any(flips), gpus().any(|s| flips(s) && needs_reset(s)));
    let swept = |s: &&GpuState| wanted(s) != Shape::seen(s) || reset || (mode && Shape::seen(s).mig);
    gpus().filter(swept).map(|s| s.uuid.clone()).collect()
}

/// Layouts of a node that the `ConfigMap` must contain: the requested one, the one to roll back to, and that of the spec.
pub fn configs(node: &GpuNode) -> Vec<MigConfig> {
    let gpus = gpus(node);
    let before = |g: &Gpu<'_>| g.change.map_or_else(|| g.shown.clone(), |c| Shape::of(&c.from));
    let specified = |g: &Gpu<'_>| g.spec.map_or_else(|| g.shown.clone(), |s| Shape::of(&s.layout()));
    vec![config(&gpus, |g| g.wanted.clone()), config(&gpus, before), config(&gpus, specified)]
}
