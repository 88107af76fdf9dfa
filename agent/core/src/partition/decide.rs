//! The next operation on one GPU: a pure function of spec and inventory.

use crate::nvml::{InstanceProfile, code};
use gputenancy_crds::{GpuError, GpuSpec, InstanceSpec};

use crate::{
    gpu::{ObservedGpu, ObservedInstance, Operation},
    to_i32,
};

const PLACEMENTS_CALL: &str = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";

/// What is known besides spec and inventory. For the whole GPU the callbacks get `None`.
pub struct DecisionInput<'a> {
    /// Generation of the spec.
    pub generation: i64,
    /// This agent partitions; otherwise it changes nothing.
    pub partitions: bool,
    /// Kubelet has given this instance to a container, or still can.
    pub allocatable: &'a dyn Fn(Option<&ObservedInstance>) -> bool,
    /// It was unused for long enough, see [`Idleness`](super::idle::Idleness).
    pub idle: &'a dyn Fn(Option<&ObservedInstance>) -> bool,
    /// An error for this generation of the spec that forbids further operations for now.
    pub failure: Option<&'a GpuError>,
}

/// What follows for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionDecision {
    /// Execute this operation, then read the inventory again.
    Operate(Operation),
    /// The GPU has exactly the layout of the spec.
    Converged,
    /// Wait for these instances, by first memory slice; `None` is the whole GPU.
    Wait(WaitCause, Vec<Option<u32>>),
    /// The GPU has another layout, and this agent does not partition.
    LeftAlone,
    /// An operation failed, or the layout is not possible.
    Failed(GpuError),
}

/// What removed or new instances wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// Processes that use them.
    Clients,
    /// Kubelet, which has given them to a container or still can.
    Kubelet,
    /// A proof that they are unused.
    Idle,
    /// Pods, which own devices that the spec lacks.
    Owners,
    /// The driver, which does not list their devices yet.
    Driver,
}

/// Decides the next operation. Nothing is destroyed while any removed instance is in use, so that a spec can be withdrawn until then.
pub fn decide(spec: &GpuSpec, gpu: &ObservedGpu, input: &DecisionInput<'_>) -> PartitionDecision {
    let Some(mode) = gpu.mode else {
        let message = || format!("{} has no MIG", gpu.board.name);
        return match (spec.mig, input.partitions) {
            (false, _) => PartitionDecision::Converged,
            (true, false) => PartitionDecision::LeftAlone,
            (true, true) => failed("nvmlDeviceGetMigMode", code::NOT_SUPPORTED, message(), input.generation),
        };
    };
    let (missing, removed) = difference(spec, gpu);
    let mode_matches = mode.current == spec.mig && mode.pending == spec.mig;
    if mode_matches && missing.is_empty() && removed.is_empty() {
        return complete(gpu);
    }
    if !input.partitions {
        return PartitionDecision::LeftAlone;
    }
    if let Some(failure) = input.failure {
        return PartitionDecision::Failed(failure.clone());
    }
    if let Err(error) = possible(spec, gpu) {
        return failed(PLACEMENTS_CALL, code::INVALID_ARGUMENT, error.to_string(), input.generation);
    }
    if let Some(decision) = remove(gpu, &removed, input) {
        return decision;
    }
    if !mode_matches {
        return change_mode(spec.mig, gpu, input);
    }
    missing.first().map_or(PartitionDecision::Converged, |missing| create(missing, gpu, input.generation))
}

fn failed(call: &str, code: u32, message: String, generation: i64) -> PartitionDecision {
    PartitionDecision::Failed(GpuError { call: call.to_owned(), code: to_i32(code), message, generation })
}

fn complete(gpu: &ObservedGpu) -> PartitionDecision {
    let unlisted = gpu.instances.iter().filter(|instance| instance.whole_compute().is_none());
    let starts: Vec<Option<u32>> = unlisted.map(|instance| Some(instance.start)).collect();
    if starts.is_empty() { PartitionDecision::Converged } else { PartitionDecision::Wait(WaitCause::Driver, starts) }
}

/// An instance of the spec that does not exist completely.
struct Missing<'a> {
    wanted: &'a InstanceSpec,
    /// The GPU instance without a compute instance, as a crash between the two calls leaves it.
    bare: Option<&'a ObservedInstance>,
}

/// Instances to create, and instances to remove, each by start.
fn difference<'a>(spec: &'a GpuSpec, gpu: &'a ObservedGpu) -> (Vec<Missing<'a>>, Vec<&'a ObservedInstance>) {
    let wanted = |instance: &ObservedInstance| spec.mig && spec.instances.iter().any(|w| matches(w, instance));
    // one full-width compute instance is kept even if the driver does not list its UUID yet
    let usable = |instance: &ObservedInstance| match instance.compute.as_slice() {
        [] => true,
        [only] => only.full_width,
        _ => false,
    };
    let removed = gpu.instances.iter().filter(|instance| !(wanted(instance) && usable(instance))).collect();
    let mut missing: Vec<Missing<'_>> = Vec::new();
    for wanted in spec.instances.iter().filter(|_| spec.mig) {
        match gpu.instances.iter().find(|instance| matches(wanted, instance)) {
            Some(instance) if !instance.compute.is_empty() => {}
            bare => missing.push(Missing { wanted, bare }),
        }
    }
    missing.sort_by_key(|missing| missing.wanted.start);
    (missing, removed)
}

/// Same start and same profile.
pub fn matches(wanted: &InstanceSpec, instance: &ObservedInstance) -> bool {
    u32::try_from(wanted.start) == Ok(instance.start) && wanted.profile == instance.profile
}

/// Why a board cannot have a layout.
#[derive(Debug, thiserror::Error)]
enum Impossible {
    #[error("{profile} at {start} overlaps {other}")]
    Overlap { profile: String, start: u32, other: String },
    #[error("{0} has no profile {1}")]
    Profile(String, String),
    #[error("{profile} may start at {starts:?}, not at {start}")]
    Start { profile: String, starts: Vec<u32>, start: i32 },
}

/// Checks, before anything is destroyed, that the board can have this layout.
fn possible(spec: &GpuSpec, gpu: &ObservedGpu) -> Result<(), Impossible> {
    // some drivers list profiles only while MIG is on
    if !spec.mig || gpu.board.profiles.is_empty() {
        return Ok(());
    }
    let mut covered: Vec<(u32, u32, &str)> = Vec::new();
    for wanted in &spec.instances {
        let (profile, start) = placement(wanted, gpu)?;
        let end = start + profile.size;
        if let Some((_, _, other)) = covered.iter().find(|(from, to, _)| start < *to && *from < end) {
            let other = (*other).to_owned();
            return Err(Impossible::Overlap { profile: wanted.profile.clone(), start, other });
        }
        covered.push((start, end, &wanted.profile));
    }
    Ok(())
}

fn placement<'a>(wanted: &InstanceSpec, gpu: &'a ObservedGpu) -> Result<(&'a InstanceProfile, u32), Impossible> {
    let name = &wanted.profile;
    let profile = gpu.board.profile(name).ok_or_else(|| Impossible::Profile(gpu.board.name.clone(), name.clone()))?;
    let start = u32::try_from(wanted.start).ok().filter(|start| profile.starts.contains(start));
    let start = start.ok_or_else(|| Impossible::Start {
        profile: name.clone(),
        starts: profile.starts.clone(),
        start: wanted.start,
    })?;
    Ok((profile, start))
}

/// Destroys the first removed instance, once none of them is in use.
fn remove(gpu: &ObservedGpu, removed: &[&ObservedInstance], input: &DecisionInput<'_>) -> Option<PartitionDecision> {
    let wait = |cause: WaitCause, blocked: &dyn Fn(&ObservedInstance) -> bool| {
        let blocked = removed.iter().filter(|instance| blocked(instance));
        let starts: Vec<Option<u32>> = blocked.map(|instance| Some(instance.start)).collect();
        (!starts.is_empty()).then_some(PartitionDecision::Wait(cause, starts))
    };
    let first = removed.first()?;
    wait(WaitCause::Clients, &|instance| gpu.clients_of(instance.gi).next().is_some())
        // an instance without a compute instance is no device, so no container can have it
        .or_else(|| {
            wait(WaitCause::Kubelet, &|instance| !instance.compute.is_empty() && (input.allocatable)(Some(instance)))
        })
        .or_else(|| wait(WaitCause::Idle, &|instance| !(input.idle)(Some(instance))))
        .or_else(|| {
            Some(PartitionDecision::Operate(match first.compute.first() {
                Some(compute) => Operation::DestroyCompute { gi: first.gi, ci: compute.ci },
                None => Operation::DestroyInstance { gi: first.gi },
            }))
        })
}

/// The current or pending mode differs from the spec, and no removed instance is left.
fn change_mode(on: bool, gpu: &ObservedGpu, input: &DecisionInput<'_>) -> PartitionDecision {
    let Some(mode) = gpu.mode else { return PartitionDecision::Converged };
    if mode.current == on {
        // cancelling a pending change disturbs no process
        return PartitionDecision::Operate(Operation::SetMode { on });
    }
    let blocked = [
        (WaitCause::Clients, !gpu.clients.is_empty()),
        (WaitCause::Kubelet, (input.allocatable)(None)),
        (WaitCause::Idle, !(input.idle)(None)),
    ];
    if let Some((cause, _)) = blocked.into_iter().find(|(_, blocked)| *blocked) {
        return PartitionDecision::Wait(cause, vec![None]);
    }
    PartitionDecision::Operate(if mode.pending == on && gpu.board.mode_needs_reset {
        Operation::Reset { pci_bus_id: gpu.pci_bus_id.clone() }
    } else {
        Operation::SetMode { on }
    })
}

fn create(missing: &Missing<'_>, gpu: &ObservedGpu, generation: i64) -> PartitionDecision {
    let (profile, start) = match placement(missing.wanted, gpu) {
        Ok(placement) => placement,
        Err(error) => return failed(PLACEMENTS_CALL, code::INVALID_ARGUMENT, error.to_string(), generation),
    };
    PartitionDecision::Operate(match missing.bare {
        Some(bare) => Operation::CreateCompute { gi: bare.gi, slices: profile.slices },
        None => Operation::CreateInstance { profile_id: profile.id, start, size: profile.size },
    })
}
