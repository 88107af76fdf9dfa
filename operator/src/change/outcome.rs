//! What can go wrong while a GPU is carved, each with its own name, words and remedy.

use gputenancy_crds::{AgentStep, GpuError, Health};
use k8s_openapi::jiff::Timestamp;

use super::view::{Device, View};

/// Why the present phase cannot end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Reason of the event, in CamelCase.
    pub name: &'static str,
    /// What happened and what to do.
    pub words: String,
    /// No NVML call on this GPU can succeed: not even the old layout can be restored.
    pub hopeless: bool,
}

/// NVML's return codes that have an answer of their own.
mod code {
    pub const GPU_IS_LOST: i32 = 15;
    pub const RESET_REQUIRED: i32 = 16;
    pub const IN_USE: i32 = 19;
    pub const INSUFFICIENT_RESOURCES: i32 = 23;
}

/// Why `task` cannot end well, if it cannot. While the agent is away nothing is known to have failed, and nothing could be
/// undone. What may pass by itself is given until `timeout`; what NVML has refused is not.
pub(super) fn trouble(view: &View<'_>, timeout: Option<Timestamp>, task: &str) -> Option<Trouble> {
    if !view.fresh {
        return None;
    }
    if view.state.health == Health::Lost {
        return Some(lost());
    }
    let late = timeout.is_some_and(|at| at <= view.observation.now);
    if view.state.health == Health::Unhealthy {
        let why = view.state.fault.as_deref().unwrap_or("look for its Xid errors in the node's log");
        let words = format!("the GPU is unhealthy ({why}): reset or replace it");
        return late.then_some(Trouble { name: "GpuUnhealthy", words, hopeless: true });
    }
    if view.state.step == AgentStep::Failed {
        return Some(failed(view.state.error.as_ref()));
    }
    late.then(|| overdue(view, task))
}

/// A GPU that NVML does not reach any more.
pub(super) fn lost() -> Trouble {
    let words = "NVML has lost the GPU, so nothing on it can be changed: restart the node, and replace the GPU if it stays away";
    Trouble { name: "GpuLost", words: words.into(), hopeless: true }
}

fn failed(error: Option<&GpuError>) -> Trouble {
    let Some(error) = error else {
        let words = "the agent failed and did not say why: read its log".to_owned();
        return Trouble { name: "NvmlFailed", words, hopeless: false };
    };
    let words = fault(error);
    let (name, remedy) = match error.code {
        code::GPU_IS_LOST => return lost(),
        code::INSUFFICIENT_RESOURCES => (
            "NoRoom",
            "the board refuses this placement as it is now; another layout is planned, or the same one tried later",
        ),
        code::IN_USE => {
            ("InUse", "a process that NVML does not list holds the GPU: end it, or wait until it has ended")
        }
        code::RESET_REQUIRED => ("ResetRequired", "reset the GPU when nothing runs on it, or restart the node"),
        _ => return Trouble { name: "NvmlFailed", words, hopeless: false },
    };
    Trouble { name, words: format!("{words}; {remedy}"), hopeless: false }
}

fn overdue(view: &View<'_>, task: &str) -> Trouble {
    let (name, words) = match view.state.step {
        AgentStep::WaitingForReset => ("ModePending", doing(view)),
        AgentStep::WaitingForClients => ("InUse", doing(view)),
        _ => ("Overdue", format!("the agent did not {task} in time: {}", doing(view))),
    };
    Trouble { name, words, hopeless: false }
}

/// The call that failed, in words.
pub(super) fn fault(error: &GpuError) -> String {
    let GpuError { call, code, message, .. } = error;
    if call.is_empty() { message.clone() } else { format!("{call} returned {code}: {message}") }
}

/// What the agent is doing, in words.
pub(super) fn doing(view: &View<'_>) -> String {
    if !view.fresh {
        return "waiting for the agent to report".to_owned();
    }
    match view.state.step {
        AgentStep::Steady | AgentStep::Unmanaged => "waiting for kubelet to list the devices".to_owned(),
        AgentStep::WaitingForClients => clients(view),
        AgentStep::SettingMode => "the agent is setting the MIG mode".to_owned(),
        AgentStep::WaitingForReset => {
            let why = view.state.error.as_ref().map(|e| format!(" ({})", fault(e))).unwrap_or_default();
            format!("the MIG mode is pending until the GPU is reset{why}: end what holds the GPU, or restart the node")
        }
        AgentStep::Destroying => "the agent is destroying instances".to_owned(),
        AgentStep::Creating => "the agent is creating instances".to_owned(),
        AgentStep::Failed => "the agent failed".to_owned(),
        AgentStep::LeftAlone => "NVML shows another layout, and the agent leaves carving to others".to_owned(),
    }
}

fn clients(view: &View<'_>) -> String {
    let busy: Vec<Device<'_>> = view.devices().into_iter().filter(|d| d.state.clients > 0).collect();
    let mut places: Vec<String> = busy.iter().map(|d| format!("{} at {}", d.name(), d.start)).collect();
    if places.is_empty() {
        places.push("the GPU".to_owned());
    }
    let who: Vec<String> = view.state.holders.iter().map(ToString::to_string).collect();
    let who = if who.is_empty() { "a process".to_owned() } else { who.join(", ") };
    format!("{who} still uses {}", places.join(", "))
}
