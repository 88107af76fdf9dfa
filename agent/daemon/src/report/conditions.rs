//! Conditions of a `GpuNode`.

use std::time::Duration;

use gputenancy_crds::{
    AgentStep, Health,
    condition::{ConditionUpdate, Overall, READY, RECONCILING, STALLED},
    reasons::{self, Reason},
    words::counted,
};

use super::{input::StatusInput, scrub};
use crate::{
    device::{Device, DriverLimits, Limiters, ShimState},
    enforcement::{NOT_INSTALLED, conflict},
    gpu::{NvmlError, ObservedGpu, inventory::UNLICENSED},
    mps,
};

/// NVML answers.
pub const NVML_READY: &str = "NvmlReady";
/// The device plugin is registered with kubelet.
pub const PLUGIN_READY: &str = "PluginReady";

/// The vGPUs of this virtual machine have their licence.
pub const VGPU_LICENSED: &str = "VgpuLicensed";

/// Time-slices and fractions are served with a memory limit.
pub const MEMORY_LIMITED: &str = "MemoryLimited";

/// A call that takes longer counts as hanging.
const HANGS: Duration = Duration::from_secs(10);

/// Ready, Reconciling, Stalled, `NvmlReady` and `PluginReady`; with MPS shares also `MpsReady`, with vGPUs `VgpuLicensed`, with
/// time-slices and fractions `MemoryLimited`.
pub fn updates(input: &StatusInput<'_>) -> Vec<ConditionUpdate> {
    let nvml = nvml(input);
    let plugin = plugin(input);
    let mut updates = overall(input, &nvml, &plugin).updates();
    updates.extend([nvml, plugin]);
    updates.extend(mps::state::condition(input.mps, &input.view.devices));
    updates.extend(licence(input));
    updates.extend(memory_limits(input));
    updates.extend(scrub::condition(input));
    updates
}

/// All conditions of [`updates`] as Unknown, because the agent stops.
pub fn stopped_updates() -> Vec<ConditionUpdate> {
    let unknown = |type_: &'static str| {
        let message = if type_ == READY { STOPPED.to_owned() } else { String::new() };
        ConditionUpdate { type_, status: None, reason: reasons::AGENT_STOPPED, message }
    };
    [READY, RECONCILING, STALLED, NVML_READY, PLUGIN_READY].map(unknown).into()
}

/// Message of `Ready` once the agent has stopped.
const STOPPED: &str = "the agent has stopped; pods keep their devices, no other pod gets one, and no layout changes. If no new agent \
    starts, see that the DaemonSet gputenancy-agent selects this node: labels of agent.nodeSelectors, and \
    nvidia.com/gpu.deploy.client=true with the GPU Operator";

fn nvml(input: &StatusInput<'_>) -> ConditionUpdate {
    let no = |reason: Reason, message: String| ConditionUpdate::no(NVML_READY, reason, message);
    if let Some((call, _)) = input.nvml_call.filter(|(_, elapsed)| *elapsed > HANGS) {
        let duration = format!("more than {} s", HANGS.as_secs());
        return no(
            reasons::NVML_TIMEOUT,
            format!("{call} has not returned for {duration}; the GPU or its driver hangs"),
        );
    }
    match (&input.state.nvml_error, &input.state.inventory) {
        // without the elapsed time, which would change the message with every scan
        (Some(NvmlError::Hangs { call, .. }), _) => no(reasons::NVML_TIMEOUT, format!("{call} does not return")),
        (Some(error @ NvmlError::NoLibrary(_)), _) => no(reasons::DRIVER_NOT_FOUND, error.to_string()),
        (Some(error @ NvmlError::Platform(_)), _) => no(reasons::PLATFORM_NOT_SUPPORTED, error.to_string()),
        (Some(error), _) => no(reasons::NVML_FAILED, error.to_string()),
        (None, None) => no(reasons::STARTING, "waiting for the first inventory from NVML".to_owned()),
        (None, Some(inventory)) => {
            let message = format!("driver {}, {}", inventory.driver_version, counted(inventory.gpus.len(), "GPU"));
            ConditionUpdate::yes(NVML_READY, reasons::ANSWERS, message)
        }
    }
}

fn plugin(input: &StatusInput<'_>) -> ConditionUpdate {
    let kubelet = input.kubelet;
    if kubelet.plugin_ready && !input.view.advertiser.is_agent() && kubelet.nothing_listed {
        let offers =
            |gpu: &&ObservedGpu| gpu.health == Health::Healthy && (!gpu.mig_enabled() || !gpu.instances.is_empty());
        let steady = |gpu: &&ObservedGpu| input.state.gpus.get(&gpu.uuid).is_some_and(|g| g.step == AgentStep::Steady);
        let gpus = input.state.inventory.iter().flat_map(|i| &i.gpus).filter(offers).filter(steady).count();
        if gpus > 0 {
            let message = format!(
                "kubelet lists no device of {}, which NVIDIA's device plugin has to advertise: see that its pod runs on this node, and read its log",
                counted(gpus, "GPU")
            );
            return ConditionUpdate::no(PLUGIN_READY, reasons::DEVICE_PLUGIN_DOWN, message);
        }
    }
    if kubelet.plugin_ready {
        ConditionUpdate::yes(PLUGIN_READY, reasons::REGISTERED, "all resources are registered with kubelet")
    } else {
        ConditionUpdate::no(PLUGIN_READY, reasons::NOT_REGISTERED, kubelet.message.clone())
    }
}

/// Of shares with a limit; none where memory is not to be limited, or not yet.
fn memory_limits(input: &StatusInput<'_>) -> Option<ConditionUpdate> {
    let limited = |device: &Device| device.share.as_ref().is_some_and(|share| share.limit_mib.is_some());
    let count = input.view.devices.iter().filter(|device| limited(device)).count();
    let Limiters { shim, driver } = input.kubelet.limiters;
    match shim {
        // also without shares: a pool that demands limits gets none
        ShimState::Conflict(other) => {
            let message = format!("memory limits are off on this node: {}", conflict(other));
            Some(ConditionUpdate::no(MEMORY_LIMITED, reasons::OTHER_LIMITER_FOUND, message))
        }
        // the driver's limits do not depend on the library
        shim if count > 0 && (shim == ShimState::Served || driver == DriverLimits::Supported) => {
            Some(ConditionUpdate::yes(
                MEMORY_LIMITED,
                reasons::LIMITED,
                format!("{} with a memory limit", counted(count, "share")),
            ))
        }
        ShimState::NotInstalled if count > 0 => {
            let message = format!("{} without a memory limit: {NOT_INSTALLED}", counted(count, "share"));
            Some(ConditionUpdate::no(MEMORY_LIMITED, reasons::SHIM_NOT_INSTALLED, message))
        }
        _ => None,
    }
}

/// Of the vGPUs; none where NVML reports no licence.
fn licence(input: &StatusInput<'_>) -> Option<ConditionUpdate> {
    let gpus = input.state.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let vgpus: Vec<&ObservedGpu> = gpus.filter(|gpu| gpu.licensed.is_some()).collect();
    if vgpus.is_empty() {
        return None;
    }
    let without: Vec<String> =
        vgpus.iter().filter(|gpu| gpu.licensed == Some(false)).map(|gpu| format!("gpu {}", gpu.index)).collect();
    Some(if without.is_empty() {
        ConditionUpdate::yes(
            VGPU_LICENSED,
            reasons::LICENSED,
            format!("{} with a licence", counted(vgpus.len(), "vGPU")),
        )
    } else {
        let message = format!("no vGPU licence: {}: {UNLICENSED}", without.join(", "));
        ConditionUpdate::no(VGPU_LICENSED, reasons::UNLICENSED, message)
    })
}

fn overall(input: &StatusInput<'_>, nvml: &ConditionUpdate, plugin: &ConditionUpdate) -> Overall {
    let state = input.state;
    let stalled = |reason: Reason, message: String| Overall::Stalled { reason, message };
    let reconciling = |reason: Reason, message: String| Overall::Reconciling { reason, message };
    if nvml.status != Some(true) {
        let (reason, message) = (nvml.reason, nvml.message.clone());
        return if reason == reasons::STARTING { reconciling(reason, message) } else { stalled(reason, message) };
    }
    let failed = state.gpus.values().filter_map(|gpu| gpu.error.as_ref());
    let failed: Vec<String> =
        failed.map(|error| format!("{} ({}, {})", error.message, error.call, error.code)).collect();
    if !failed.is_empty() {
        return stalled(reasons::PARTITION_FAILED, failed.join("; "));
    }
    let unhealthy =
        state.inventory.iter().flat_map(|inventory| &inventory.gpus).filter(|gpu| gpu.health != Health::Healthy);
    let unhealthy = unhealthy.map(|gpu| {
        let fault = gpu.fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default();
        let recovery = gpu.recovery.as_ref().filter(|_| gpu.fault.is_some());
        let what = recovery.map_or("reset the GPU, or search the kernel log for the Xid", |r| r.message.as_str());
        format!("gpu {} is {}{fault}: {what}", gpu.index, format!("{:?}", gpu.health).to_lowercase())
    });
    let unhealthy: Vec<String> = unhealthy.collect();
    if !unhealthy.is_empty() {
        return stalled(reasons::GPU_UNHEALTHY, unhealthy.join("; "));
    }
    if !state.absent.is_empty() {
        let message = format!("GPUs of the spec that NVML does not list: {}", state.absent.join(", "));
        return stalled(reasons::GPU_MISSING, message);
    }
    let changing = state.gpus.values().find(|gpu| !matches!(gpu.step, AgentStep::Steady | AgentStep::Unmanaged));
    if let Some(gpu) = changing {
        return reconciling(in_progress(gpu.step), gpu.waiting.clone());
    }
    if state.generation.is_none() {
        return reconciling(reasons::STARTING, "waiting for the spec".to_owned());
    }
    let managed = state.gpus.values().filter(|gpu| gpu.step == AgentStep::Steady).count();
    if managed == 0 {
        return Overall::Ready { message: "no GPU of this node is managed: add the node to a GpuPool".to_owned() };
    }
    if plugin.reason == reasons::DEVICE_PLUGIN_DOWN {
        return stalled(plugin.reason, plugin.message.clone());
    }
    if plugin.status != Some(true) {
        return reconciling(reasons::PLUGIN_NOT_READY, plugin.message.clone());
    }
    Overall::Ready {
        message: format!("{managed} of {} managed, with the layout of the spec", counted(state.gpus.len(), "GPU")),
    }
}

/// Reason while the agent is at this step.
fn in_progress(step: AgentStep) -> Reason {
    match step {
        AgentStep::WaitingForClients => reasons::WAITING_FOR_CLIENTS,
        AgentStep::SettingMode => reasons::SETTING_MODE,
        AgentStep::WaitingForReset => reasons::WAITING_FOR_RESET,
        AgentStep::Destroying => reasons::DESTROYING,
        AgentStep::Creating => reasons::CREATING,
        AgentStep::Failed => reasons::FAILED,
        AgentStep::LeftAlone => reasons::LEFT_ALONE,
        AgentStep::Steady | AgentStep::Unmanaged => reasons::READY,
    }
}
