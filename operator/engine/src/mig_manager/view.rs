//! One node as an observation shows it: what each GPU is to have and has, and what asking for it would carve anew.

use std::collections::BTreeSet;

use gputenancy_crds::{Change, ChangePhase, DeviceState, GpuNode, GpuSpec, GpuState, names};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    config::{MigConfig, Shape, base, is_ours},
    types::MigManagerObservation,
};

/// A GPU in PCI order.
pub(super) struct Gpu<'a> {
    pub state: &'a GpuState,
    pub change: Option<&'a Change>,
    /// It is offered to pods; one that is not has nothing to withdraw.
    listed: bool,
    /// What the MIG manager is to leave it with.
    pub wanted: Shape,
    pub shown: Shape,
}

pub(super) struct NodeContext<'a> {
    pub gpus: Vec<Gpu<'a>>,
    pub fresh: bool,
    pub state: Option<&'a str>,
    pub label: Option<&'a str>,
    node: &'a GpuNode,
}

impl<'a> NodeContext<'a> {
    pub fn of(seen: &MigManagerObservation<'a>) -> Self {
        let observed = seen.node.status.as_ref().and_then(|s| s.observed_generation);
        let label = |name: &str| seen.labels.get(name).map(String::as_str);
        Self {
            gpus: gpus(seen.node),
            fresh: seen.agent_alive && observed >= seen.node.metadata.generation,
            state: label(names::MIG_STATE_LABEL),
            label: label(names::MIG_CONFIG_LABEL),
            node: seen.node,
        }
    }

    /// What the node is to have.
    pub fn config(&self) -> MigConfig {
        MigConfig::new(&self.gpus.iter().map(|g| g.wanted.clone()).collect::<Vec<_>>())
    }

    /// Pods may still have to leave.
    pub fn draining(&self) -> bool {
        self.phases().any(|p| p <= ChangePhase::Idle)
    }

    /// Changes wait for the MIG manager, or were finished by it and are being verified.
    pub fn acting(&self) -> bool {
        self.gpus.iter().any(Gpu::acts)
    }

    pub fn stuck(&self) -> bool {
        self.phases().any(|p| p == ChangePhase::Stuck)
    }

    /// When the last change began to wait for the MIG manager.
    pub fn acting_since(&self) -> Option<Time> {
        self.gpus.iter().filter(|g| g.acts()).filter_map(|g| Some(g.change?.phase_since.clone())).max_by_key(|t| t.0)
    }

    /// A change was begun anew after this time.
    pub fn retried_since(&self, then: Timestamp) -> bool {
        self.gpus.iter().filter(|g| g.acts()).filter_map(|g| g.change).any(|c| c.phase_since.0 > then)
    }

    /// NVML shows on every GPU whose change waits what it waits for.
    pub fn shown(&self) -> bool {
        self.fresh && self.gpus.iter().filter(|g| g.acts()).all(|g| g.wanted == g.shown)
    }

    /// Does the MIG manager have to be asked? Also when all is there and the label names another layout of ours: it would carve that
    /// one when it starts anew.
    pub fn needs(&self, name: &str) -> bool {
        let carved = [ChangePhase::Canary, ChangePhase::Verifying];
        let waiting = self.gpus.iter().any(|g| g.acts() && g.change.is_some_and(|c| !carved.contains(&c.phase)));
        let misnamed = self.label.is_some_and(|l| is_ours(l) && base(l) != name);
        !self.shown() || (waiting && misnamed)
    }

    /// All is as agreed, and the label names another layout of ours: whatever is there now would go when the MIG manager starts anew.
    pub fn misnamed(&self) -> bool {
        let agreed = |g: &Gpu<'_>| spec_of(self.node, g.state).is_none_or(|s| Shape::of(&s.layout()) == g.shown);
        let ours = self.gpus.iter().any(|g| g.listed) && self.gpus.iter().all(agreed);
        let name = self.config().name();
        self.fresh && ours && !self.stuck() && self.label.is_some_and(|l| is_ours(l) && base(l) != name)
    }

    /// What must not be carved anew and would be, or is in use; in words.
    pub fn obstacle(&self) -> Option<String> {
        let swept = sweeps(self.node, |state| {
            self.gpus.iter().find(|g| g.state.uuid == state.uuid).map(|g| g.wanted.clone()).unwrap_or_default()
        });
        let swept = || self.gpus.iter().filter(|g| swept.contains(&g.state.uuid));
        if let Some(bystander) = swept().find(|g| g.listed && !g.acts()) {
            let GpuState { index, .. } = bystander.state;
            return Some(format!("GPU {index} would be carved anew as well, and is not free for that"));
        }
        swept().find_map(|g| in_use(g.state))
    }

    fn phases(&self) -> impl Iterator<Item = ChangePhase> {
        self.gpus.iter().filter_map(|g| Some(g.change?.phase))
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
    let instance = state.instances.iter().find(|i| used(&i.device));
    let instance = instance.map(|i| format!("{} at {} of GPU {index} is in use", i.profile, i.start));
    instance.or_else(|| state.whole.as_ref().filter(|w| used(w)).map(|_| format!("GPU {index} is in use")))
}

fn gpus(node: &GpuNode) -> Vec<Gpu<'_>> {
    let mut states: Vec<&GpuState> = node.status.iter().flat_map(|s| &s.gpus).collect();
    states.sort_by_key(|s| (&s.pci_bus_id, s.index));
    let gpu = |state| {
        let (shown, spec) = (Shape::seen(state), spec_of(node, state));
        let (change, listed) = (spec.and_then(|s| s.change.as_ref()), spec.is_some());
        let wanted = match change {
            Some(c) if c.phase < ChangePhase::RollingBack => Shape::of(&c.to),
            Some(c) if c.phase == ChangePhase::RollingBack => Shape::of(&c.from),
            // what does not change is left as it is, whatever that is
            _ => shown.clone(),
        };
        Gpu { state, change, listed, wanted, shown }
    };
    states.into_iter().map(gpu).collect()
}

fn spec_of<'a>(node: &'a GpuNode, state: &GpuState) -> Option<&'a GpuSpec> {
    node.spec.gpus.iter().find(|s| s.uuid == state.uuid)
}

/// GPUs that are carved anew when the node is asked for what `wanted` says: mig-parted leaves a GPU alone when its mode and counts are
/// right, but one change of mode makes it clear every GPU with MIG on, and reset all GPUs where the boards need that.
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

/// Layouts of a node that have to be in the `ConfigMap`: the one that it has, the one that it is to have, and the one to go back to.
pub fn configs(node: &GpuNode) -> Vec<MigConfig> {
    let gpus = gpus(node);
    let of = |pick: &dyn Fn(&Gpu<'_>) -> Shape| MigConfig::new(&gpus.iter().map(pick).collect::<Vec<_>>());
    let wanted = of(&|g| g.wanted.clone());
    let before = of(&|g| g.change.map_or_else(|| g.shown.clone(), |c| Shape::of(&c.from)));
    let agreed = of(&|g| spec_of(node, g.state).map_or_else(|| g.shown.clone(), |s| Shape::of(&s.layout())));
    vec![wanted, before, agreed]
}
