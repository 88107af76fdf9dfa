//! The next step of one GPU: a pure function of what it shall be and what NVML shows.

use gputenancy_crds::{GpuError, GpuSpec, InstanceSpec};
use gputenancy_nvml::{InstanceProfile, code};

use crate::gpu::{Order, SeenGpu, SeenInstance};

/// What is known besides NVML.
pub struct Facts<'a> {
    /// Generation of the spec.
    pub generation: i64,
    /// Carving is ours: without this nothing is ever done.
    pub carves: bool,
    /// May kubelet still give this instance (or, for `None`, the whole GPU) to a container, or has it given it to one?
    pub taken: &'a dyn Fn(Option<&SeenInstance>) -> bool,
    /// Has it been seen unused for long enough? See [`Idleness`](super::idle::Idleness).
    pub idle: &'a dyn Fn(Option<&SeenInstance>) -> bool,
    /// A call that failed for this generation of the spec, as long as it must not be tried again.
    pub failure: Option<&'a GpuError>,
}

/// What to do with a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Carry this out, then look again.
    Act(Order),
    /// Nothing, for now.
    Rest(Rest),
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// NVML shows exactly what the spec wants.
    Steady,
    /// What must go has clients: first memory slices, or `None` for the whole GPU.
    WaitingForClients {
        /// Where.
        starts: Vec<Option<u32>>,
    },
    /// What must go can still be given to a container, or kubelet says that one has it.
    WaitingForKubelet {
        /// Where.
        starts: Vec<Option<u32>>,
    },
    /// What must go is unused, and has to be seen so once more.
    WaitingForSecondLook {
        /// Where.
        starts: Vec<Option<u32>>,
    },
    /// All is there, and the driver has yet to list some of it as devices.
    WaitingForDriver {
        /// Where.
        starts: Vec<Option<u32>>,
    },
    /// NVML shows something else, and carving is not ours.
    LeftAlone,
    /// A call failed, or the spec cannot be carried out.
    Failed(GpuError),
}

/// Decides the next step. Nothing is destroyed while anything that must go is in use, so that a spec that is taken back in
/// time has cost nothing.
pub fn step(spec: &GpuSpec, gpu: &SeenGpu, facts: &Facts<'_>) -> Decision {
    let refuse = |call: &str, code: u32, message: String| {
        Decision::Rest(Rest::Failed(GpuError {
            call: call.to_owned(),
            code: i32::try_from(code).unwrap_or(i32::MAX),
            message,
            generation: facts.generation,
        }))
    };
    let Some(mode) = gpu.mode else {
        if spec.mig && !facts.carves {
            return Decision::Rest(Rest::LeftAlone);
        }
        if spec.mig {
            return refuse("nvmlDeviceGetMigMode", code::NOT_SUPPORTED, format!("{} has no MIG", gpu.board.name));
        }
        return Decision::Rest(Rest::Steady);
    };
    let (missing, surplus) = difference(spec, gpu);
    let mode_is_right = mode.current == spec.mig && mode.pending == spec.mig;
    if mode_is_right && missing.is_empty() && surplus.is_empty() {
        return Decision::Rest(complete(gpu));
    }
    if !facts.carves {
        return Decision::Rest(Rest::LeftAlone);
    }
    if let Some(failure) = facts.failure {
        return Decision::Rest(Rest::Failed(failure.clone()));
    }
    if let Err(message) = possible(spec, gpu) {
        return refuse("nvmlDeviceGetGpuInstancePossiblePlacements_v2", code::INVALID_ARGUMENT, message);
    }
    if let Some(decision) = clear(gpu, &surplus, facts) {
        return decision;
    }
    if !mode_is_right {
        return change_mode(spec.mig, gpu, facts);
    }
    missing.first().map_or(Decision::Rest(Rest::Steady), |missing| create(missing, gpu, facts.generation))
}

/// Nothing is left to do.
fn complete(gpu: &SeenGpu) -> Rest {
    let unlisted = gpu.instances.iter().filter(|seen| seen.whole_compute().is_none());
    let starts: Vec<Option<u32>> = unlisted.map(|seen| Some(seen.start)).collect();
    if starts.is_empty() { Rest::Steady } else { Rest::WaitingForDriver { starts } }
}

/// An instance that the spec wants and that is not wholly there.
struct Missing<'a> {
    wanted: &'a InstanceSpec,
    /// The GPU instance is there and has no compute instance: a crash came between the two.
    bare: Option<&'a SeenInstance>,
}

/// Instances to complete or create, and instances (or parts of them) to destroy, each by start.
fn difference<'a>(spec: &'a GpuSpec, gpu: &'a SeenGpu) -> (Vec<Missing<'a>>, Vec<&'a SeenInstance>) {
    let wanted = |seen: &SeenInstance| spec.mig && spec.instances.iter().any(|wanted| matches(wanted, seen));
    let whole = |seen: &SeenInstance| seen.compute.is_empty() || seen.whole_compute().is_some();
    // A UUID that the driver has yet to list is no reason to destroy what is there.
    let unlisted = |seen: &SeenInstance| matches!(seen.compute.as_slice(), [only] if only.full_width);
    let surplus = gpu.instances.iter().filter(|seen| !(wanted(seen) && (whole(seen) || unlisted(seen)))).collect();
    let mut missing: Vec<Missing<'_>> = Vec::new();
    for wanted in spec.instances.iter().filter(|_| spec.mig) {
        match gpu.instances.iter().find(|seen| matches(wanted, seen)) {
            Some(seen) if !seen.compute.is_empty() => {}
            bare => missing.push(Missing { wanted, bare }),
        }
    }
    missing.sort_by_key(|missing| missing.wanted.start);
    (missing, surplus)
}

/// Same place and same profile.
pub fn matches(wanted: &InstanceSpec, seen: &SeenInstance) -> bool {
    u32::try_from(wanted.start) == Ok(seen.start) && wanted.profile == seen.profile
}

/// Can this layout exist on this board at all? Asked before anything is destroyed for it.
fn possible(spec: &GpuSpec, gpu: &SeenGpu) -> Result<(), String> {
    // Some drivers tell profiles only while MIG is on.
    if !spec.mig || gpu.board.profiles.is_empty() {
        return Ok(());
    }
    let mut covered: Vec<(u32, u32, &str)> = Vec::new();
    for wanted in &spec.instances {
        let (profile, start) = placed(wanted, gpu)?;
        let end = start + profile.size;
        if let Some((_, _, other)) = covered.iter().find(|(from, to, _)| start < *to && *from < end) {
            return Err(format!("{} at {start} overlaps {other}", wanted.profile));
        }
        covered.push((start, end, &wanted.profile));
    }
    Ok(())
}

fn placed<'a>(wanted: &InstanceSpec, gpu: &'a SeenGpu) -> Result<(&'a InstanceProfile, u32), String> {
    let name = &wanted.profile;
    let profile = gpu.board.profile(name).ok_or_else(|| format!("{} has no profile {name}", gpu.board.name))?;
    let start = u32::try_from(wanted.start).ok().filter(|start| profile.starts.contains(start));
    let start = start.ok_or_else(|| format!("{name} may start at {:?}, not at {}", profile.starts, wanted.start))?;
    Ok((profile, start))
}

/// Destroys the first of what must go, once nothing of it is in use.
fn clear(gpu: &SeenGpu, surplus: &[&SeenInstance], facts: &Facts<'_>) -> Option<Decision> {
    let starts = |used: &dyn Fn(&SeenInstance) -> bool| -> Vec<Option<u32>> {
        surplus.iter().filter(|seen| used(seen)).map(|seen| Some(seen.start)).collect()
    };
    let in_use = starts(&|seen| gpu.clients_of(seen.gi).next().is_some());
    if !in_use.is_empty() {
        return Some(Decision::Rest(Rest::WaitingForClients { starts: in_use }));
    }
    // An instance without a compute instance is no device; nobody can have been given it.
    let taken = starts(&|seen| !seen.compute.is_empty() && (facts.taken)(Some(seen)));
    if !taken.is_empty() {
        return Some(Decision::Rest(Rest::WaitingForKubelet { starts: taken }));
    }
    let unproven = starts(&|seen| !(facts.idle)(Some(seen)));
    if !unproven.is_empty() {
        return Some(Decision::Rest(Rest::WaitingForSecondLook { starts: unproven }));
    }
    let first = surplus.first()?;
    Some(Decision::Act(match first.compute.first() {
        Some(compute) => Order::DestroyCompute { gi: first.gi, ci: compute.ci },
        None => Order::DestroyInstance { gi: first.gi },
    }))
}

/// The mode is wrong, or will be after the next reset; nothing that must go is left.
fn change_mode(on: bool, gpu: &SeenGpu, facts: &Facts<'_>) -> Decision {
    let Some(mode) = gpu.mode else { return Decision::Rest(Rest::Steady) };
    if mode.current == on {
        // A change that is pending is called off, which touches nobody.
        return Decision::Act(Order::SetMode { on });
    }
    if !gpu.clients.is_empty() {
        return Decision::Rest(Rest::WaitingForClients { starts: vec![None] });
    }
    if (facts.taken)(None) {
        return Decision::Rest(Rest::WaitingForKubelet { starts: vec![None] });
    }
    if !(facts.idle)(None) {
        return Decision::Rest(Rest::WaitingForSecondLook { starts: vec![None] });
    }
    if mode.pending == on && gpu.board.mode_needs_reset {
        return Decision::Act(Order::Reset { pci_bus_id: gpu.pci_bus_id.clone() });
    }
    Decision::Act(Order::SetMode { on })
}

fn create(missing: &Missing<'_>, gpu: &SeenGpu, generation: i64) -> Decision {
    match (placed(missing.wanted, gpu), missing.bare) {
        (Ok((profile, _)), Some(bare)) => Decision::Act(Order::CreateCompute { gi: bare.gi, slices: profile.slices }),
        (Ok((profile, start)), None) => {
            Decision::Act(Order::CreateInstance { profile_id: profile.id, start, size: profile.size })
        }
        (Err(message), _) => Decision::Rest(Rest::Failed(GpuError {
            call: "nvmlDeviceGetGpuInstancePossiblePlacements_v2".to_owned(),
            code: i32::try_from(code::INVALID_ARGUMENT).unwrap_or(i32::MAX),
            message,
            generation,
        })),
    }
}
