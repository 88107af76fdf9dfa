//! Conditions of a `GpuNode`.

use std::time::Duration;

use gputenancy_crds::{
    AgentStep, Health,
    condition::{Overall, Verdict},
};

use super::input::StatusInput;
use crate::gpu::NvmlError;

/// NVML answers.
pub const NVML_READY: &str = "NvmlReady";
/// The device plugin is registered with kubelet.
pub const PLUGIN_READY: &str = "PluginReady";

/// A call that takes longer counts as hanging.
const HANGS: Duration = Duration::from_secs(10);

/// Ready, Reconciling, Stalled, `NvmlReady` and `PluginReady`.
pub fn verdicts(input: &StatusInput<'_>) -> Vec<Verdict> {
    let nvml = nvml(input);
    let plugin = plugin(input);
    let mut verdicts = overall(input, &nvml, &plugin).verdicts();
    verdicts.extend([nvml, plugin]);
    verdicts
}

fn nvml(input: &StatusInput<'_>) -> Verdict {
    let hangs = input.nvml_call.filter(|(_, elapsed)| *elapsed > HANGS);
    if let Some((call, _)) = hangs {
        let message =
            format!("{call} has not returned for more than {} s; the GPU or its driver hangs", HANGS.as_secs());
        return Verdict::no(NVML_READY, "NvmlHangs", message);
    }
    match &input.state.nvml_error {
        // without the elapsed time, which would change the message with every scan
        Some(NvmlError::Hangs { call, .. }) => Verdict::no(NVML_READY, "NvmlHangs", format!("{call} does not return")),
        Some(error @ NvmlError::NoLibrary(_)) => Verdict::no(NVML_READY, "DriverNotFound", error.to_string()),
        Some(error) => Verdict::no(NVML_READY, "NvmlFailed", error.to_string()),
        None => match &input.state.inventory {
            Some(inventory) => {
                let message = format!("driver {}, {} GPU(s)", inventory.driver_version, inventory.gpus.len());
                Verdict::yes(NVML_READY, "Answers", message)
            }
            None => Verdict::no(NVML_READY, "Starting", "waiting for the first inventory from NVML"),
        },
    }
}

fn plugin(input: &StatusInput<'_>) -> Verdict {
    let kubelet = input.kubelet;
    if kubelet.plugin_ready {
        Verdict::yes(PLUGIN_READY, "Registered", "all resources are registered with kubelet")
    } else {
        Verdict::no(PLUGIN_READY, "NotRegistered", kubelet.message.clone())
    }
}

fn overall(input: &StatusInput<'_>, nvml: &Verdict, plugin: &Verdict) -> Overall {
    let state = input.state;
    let stalled = |reason: &str, message: String| Overall::Stalled { reason: reason.to_owned(), message };
    let reconciling = |reason: &str, message: String| Overall::Reconciling { reason: reason.to_owned(), message };
    if nvml.status != Some(true) {
        let (reason, message) = (nvml.reason.as_str(), nvml.message.clone());
        return if reason == "Starting" { reconciling(reason, message) } else { stalled(reason, message) };
    }
    let failed = state.gpus.values().filter_map(|gpu| gpu.error.as_ref());
    let failed: Vec<String> =
        failed.map(|error| format!("{} ({}, {})", error.message, error.call, error.code)).collect();
    if !failed.is_empty() {
        return stalled("PartitionFailed", failed.join("; "));
    }
    let unhealthy =
        state.inventory.iter().flat_map(|inventory| &inventory.gpus).filter(|gpu| gpu.health != Health::Healthy);
    let unhealthy = unhealthy.map(|gpu| {
        let fault = gpu.fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default();
        format!("gpu {} is {}{fault}", gpu.index, format!("{:?}", gpu.health).to_lowercase())
    });
    let unhealthy: Vec<String> = unhealthy.collect();
    if !unhealthy.is_empty() {
        return stalled(
            "GpuUnhealthy",
            format!("{}: reset the GPU, or search the kernel log for the Xid", unhealthy.join("; ")),
        );
    }
    if !state.absent.is_empty() {
        let message = format!("GPUs of the spec that NVML does not list: {}", state.absent.join(", "));
        return stalled("GpuMissing", message);
    }
    let changing = state.gpus.values().find(|gpu| !matches!(gpu.step, AgentStep::Steady | AgentStep::Unmanaged));
    if let Some(gpu) = changing {
        return reconciling(&format!("{:?}", gpu.step), gpu.waiting.clone());
    }
    if state.generation.is_none() {
        return reconciling("Starting", "waiting for the spec".to_owned());
    }
    let managed = state.gpus.values().filter(|gpu| gpu.step == AgentStep::Steady).count();
    if managed == 0 {
        return Overall::Ready { message: "no GPU of this node is managed: add the node to a GpuPool".to_owned() };
    }
    if plugin.status != Some(true) {
        return reconciling("PluginNotReady", plugin.message.clone());
    }
    Overall::Ready { message: format!("{managed} of {} GPU(s) managed, with the layout of the spec", state.gpus.len()) }
}
