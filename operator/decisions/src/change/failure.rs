//! The failures of a partitioning, each with its own reason and remedy.

use gputenancy_crds::{
    AgentStep, GpuError, Health,
    reasons::{self, Reason},
};
use k8s_openapi::jiff::Timestamp;

use super::context::ChangeContext;

/// Why the present phase cannot succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Reason of the event.
    pub reason: Reason,
    /// State and remedy.
    pub message: String,
    /// No NVML call on this GPU can succeed: not even the old layout can be restored.
    pub fatal: bool,
}

impl Failure {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), fatal: false }
    }

    pub fn canary(message: String) -> Self {
        Self::new(reasons::CANARY_FAILED, message)
    }

    /// NVML does not reach the GPU any more.
    pub fn lost() -> Self {
        let message = "NVML has lost the GPU, so nothing on it can be changed: restart the node, and replace the GPU if it stays lost";
        Self { fatal: true, ..Self::new(reasons::GPU_LOST, message) }
    }

    /// Why `task` cannot succeed, if so. While the agent is down nothing is known to have failed. Conditions that may pass fail only at
    /// `timeout`; an NVML error fails at once.
    pub fn of(ctx: &ChangeContext<'_>, timeout: Option<Timestamp>, task: &str) -> Option<Self> {
        if !ctx.fresh {
            return None;
        }
        let late = timeout.is_some_and(|at| at <= ctx.observation.now);
        match ctx.state.health {
            Health::Lost => return Some(Self::lost()),
            Health::Unhealthy => {
                let why = ctx.state.fault.as_deref().unwrap_or("look for its Xid errors in the node's log");
                let message = format!("the GPU is unhealthy ({why}): reset or replace it");
                return late.then_some(Self { fatal: true, ..Self::new(reasons::GPU_UNHEALTHY, message) });
            }
            Health::Healthy => {}
        }
        if ctx.state.step == AgentStep::Failed {
            return Some(nvml(ctx.state.error.as_ref()));
        }
        late.then(|| overdue(ctx, task))
    }
}

/// NVML's return codes with a reason of their own.
mod code {
    pub const GPU_IS_LOST: i32 = 15;
    pub const RESET_REQUIRED: i32 = 16;
    pub const IN_USE: i32 = 19;
    pub const INSUFFICIENT_RESOURCES: i32 = 23;
}

fn nvml(error: Option<&GpuError>) -> Failure {
    let (reason, remedy) = match error.map(|e| e.code) {
        Some(code::GPU_IS_LOST) => return Failure::lost(),
        Some(code::INSUFFICIENT_RESOURCES) => (
            reasons::PLACEMENT_REFUSED,
            "; the board refuses this placement now; another layout is planned, or the same one retried later",
        ),
        Some(code::IN_USE) => {
            (reasons::IN_USE, "; a process that NVML does not list uses the GPU: end it, or wait until it has ended")
        }
        Some(code::RESET_REQUIRED) => {
            (reasons::RESET_REQUIRED, "; reset the GPU when nothing runs on it, or restart the node")
        }
        _ => (reasons::NVML_FAILED, ""),
    };
    Failure::new(reason, format!("{}{remedy}", fault(error)))
}

fn overdue(ctx: &ChangeContext<'_>, task: &str) -> Failure {
    match ctx.state.step {
        AgentStep::WaitingForReset => Failure::new(reasons::MODE_PENDING, activity(ctx)),
        AgentStep::WaitingForClients => Failure::new(reasons::IN_USE, activity(ctx)),
        _ => Failure::new(reasons::OVERDUE, format!("the agent did not {task} in time: {}", activity(ctx))),
    }
}

/// The call that failed.
pub(super) fn fault(error: Option<&GpuError>) -> String {
    match error {
        None => "the agent failed and reported no error: read its log".to_owned(),
        Some(GpuError { call, message, .. }) if call.is_empty() => message.clone(),
        Some(GpuError { call, code, message, .. }) => format!("{call} returned {code}: {message}"),
    }
}

/// The activity of the agent, in messages.
pub(super) fn activity(ctx: &ChangeContext<'_>) -> String {
    if !ctx.fresh {
        return "waiting for the agent to report".to_owned();
    }
    let text = match ctx.state.step {
        AgentStep::Steady | AgentStep::Unmanaged => "waiting for kubelet to list the devices",
        AgentStep::WaitingForClients => return clients(ctx),
        AgentStep::SettingMode => "the agent is setting the MIG mode",
        AgentStep::WaitingForReset => {
            let error = ctx.state.error.as_ref();
            let why = error.map(|e| format!(" ({})", fault(Some(e)))).unwrap_or_default();
            return format!(
                "the MIG mode is pending until the GPU is reset{why}: end what uses the GPU, or restart the node"
            );
        }
        AgentStep::Destroying => "the agent is destroying instances",
        AgentStep::Creating => "the agent is creating instances",
        AgentStep::Failed => "the agent failed",
        AgentStep::LeftAlone => "NVML shows another layout, and the agent does not partition this node",
    };
    text.to_owned()
}

fn clients(ctx: &ChangeContext<'_>) -> String {
    let busy = ctx.devices().into_iter().filter(|d| d.state.clients > 0).map(|d| d.place());
    let or = |names: Vec<String>, other: &str| if names.is_empty() { other.to_owned() } else { names.join(", ") };
    let holders = or(ctx.state.holders.iter().map(ToString::to_string).collect(), "a process");
    format!("{holders} still uses {}", or(busy.collect(), "the GPU"))
}
