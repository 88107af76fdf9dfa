//! Conditions of a `GpuNode`: is it as the operator wants it, and if not, why and what to do.

use std::time::Duration;

use gputenancy_crds::{
    AgentStep, Health,
    condition::{Overall, Verdict},
};

use super::Sources;
use crate::gpu::Trouble;

/// NVML answers.
pub const NVML_READY: &str = "NvmlReady";
/// Kubelet knows the devices.
pub const PLUGIN_READY: &str = "PluginReady";

/// A call that takes longer hangs, until it returns.
const HANGS: Duration = Duration::from_secs(10);

/// Ready, Reconciling, Stalled, `NvmlReady` and `PluginReady`.
pub fn verdicts(sources: &Sources<'_>) -> Vec<Verdict> {
    let nvml = nvml(sources);
    let plugin = plugin(sources);
    let mut verdicts = overall(sources, &nvml, &plugin).verdicts();
    verdicts.extend([nvml, plugin]);
    verdicts
}

fn nvml(sources: &Sources<'_>) -> Verdict {
    let hangs = sources.under_way.filter(|(_, elapsed)| *elapsed > HANGS);
    if let Some((call, _)) = hangs {
        let message =
            format!("{call} has not returned for more than {} s; the GPU or its driver hangs", HANGS.as_secs());
        return Verdict::no(NVML_READY, "NvmlHangs", message);
    }
    match &sources.carved.trouble {
        // The elapsed time of a hang would change the message at every look.
        Some(Trouble::Hangs { call, .. }) => Verdict::no(NVML_READY, "NvmlHangs", format!("{call} does not return")),
        Some(trouble @ Trouble::NoLibrary(_)) => Verdict::no(NVML_READY, "DriverNotFound", trouble.to_string()),
        Some(trouble) => Verdict::no(NVML_READY, "NvmlFailed", trouble.to_string()),
        None => match &sources.carved.inventory {
            Some(inventory) => {
                let message = format!("driver {}, {} GPU(s)", inventory.driver_version, inventory.gpus.len());
                Verdict::yes(NVML_READY, "Answers", message)
            }
            None => Verdict::no(NVML_READY, "Starting", "NVML has not been asked yet"),
        },
    }
}

fn plugin(sources: &Sources<'_>) -> Verdict {
    let kubelet = sources.kubelet;
    if kubelet.plugin_ready {
        Verdict::yes(PLUGIN_READY, "Registered", "kubelet knows every resource")
    } else {
        Verdict::no(PLUGIN_READY, "NotRegistered", kubelet.message.clone())
    }
}

fn overall(sources: &Sources<'_>, nvml: &Verdict, plugin: &Verdict) -> Overall {
    let carved = sources.carved;
    let stalled = |reason: &str, message: String| Overall::Stalled { reason: reason.to_owned(), message };
    let reconciling = |reason: &str, message: String| Overall::Reconciling { reason: reason.to_owned(), message };
    if nvml.status != Some(true) {
        let (reason, message) = (nvml.reason.as_str(), nvml.message.clone());
        return if reason == "Starting" { reconciling(reason, message) } else { stalled(reason, message) };
    }
    let failed = carved.gpus.values().filter_map(|gpu| gpu.error.as_ref());
    let failed: Vec<String> =
        failed.map(|error| format!("{} ({}, {})", error.message, error.call, error.code)).collect();
    if !failed.is_empty() {
        return stalled("CarveFailed", failed.join("; "));
    }
    let sick =
        carved.inventory.iter().flat_map(|inventory| &inventory.gpus).filter(|gpu| gpu.health != Health::Healthy);
    let sick = sick.map(|gpu| {
        let fault = gpu.fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default();
        format!("gpu {} is {}{fault}", gpu.index, format!("{:?}", gpu.health).to_lowercase())
    });
    let sick: Vec<String> = sick.collect();
    if !sick.is_empty() {
        return stalled(
            "GpuUnhealthy",
            format!("{}: reset it, or look into the kernel's log for the Xid", sick.join("; ")),
        );
    }
    if !carved.absent.is_empty() {
        let message = format!("the spec names GPUs that NVML does not show: {}", carved.absent.join(", "));
        return stalled("GpuMissing", message);
    }
    let busy = carved.gpus.values().find(|gpu| !matches!(gpu.step, AgentStep::Steady | AgentStep::Unmanaged));
    if let Some(gpu) = busy {
        return reconciling(&format!("{:?}", gpu.step), gpu.waiting.clone());
    }
    if carved.generation.is_none() {
        return reconciling("Starting", "the spec has not been read yet".to_owned());
    }
    let managed = carved.gpus.values().filter(|gpu| gpu.step == AgentStep::Steady).count();
    if managed == 0 {
        return Overall::Ready { message: "no GPU of this node is managed: add the node to a GpuPool".to_owned() };
    }
    if plugin.status != Some(true) {
        return reconciling("PluginNotReady", plugin.message.clone());
    }
    Overall::Ready { message: format!("{managed} of {} GPU(s) managed and as wanted", carved.gpus.len()) }
}
