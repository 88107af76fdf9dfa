//! Progress of one GPU, as the status reports it.

use gputenancy_crds::{AgentStep, GpuError};

use super::decide::{PartitionDecision, WaitCause};
use crate::gpu::{ObservedGpu, Operation, policy};

/// Progress of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProgress {
    /// What the agent does with it.
    pub step: AgentStep,
    /// The call that failed.
    pub error: Option<GpuError>,
    /// What the agent waits for or does; empty once converged.
    pub waiting: String,
    /// Processes that the check before a destroy found, which NVML's lists may not have.
    pub blockers: Vec<u32>,
}

impl GpuProgress {
    /// The progress that a decision amounts to. `kubelet` says what the device plugin waits for.
    pub fn of(decision: &PartitionDecision, gpu: &ObservedGpu, kubelet: &str) -> Self {
        let (step, error, waiting) = match decision {
            PartitionDecision::Converged => (AgentStep::Steady, None, String::new()),
            PartitionDecision::Operate(operation) => (step(operation), None, operation.to_string()),
            PartitionDecision::Failed(error) => {
                let step = if policy::is_reset(error) { AgentStep::WaitingForReset } else { AgentStep::Failed };
                (step, Some(error.clone()), String::new())
            }
            PartitionDecision::LeftAlone => {
                let reason =
                    "NVML shows another layout than the spec, and the agent does not partition (spec.partitioner)";
                (AgentStep::LeftAlone, None, format!("GPU {}: {reason}", gpu.index))
            }
            PartitionDecision::Wait(cause, starts) => {
                let (step, reason) = wait(*cause, starts, kubelet);
                (step, None, format!("GPU {}: {reason}", gpu.index))
            }
        };
        Self { step, error, waiting, blockers: Vec::new() }
    }
}

fn step(operation: &Operation) -> AgentStep {
    match operation {
        Operation::SetMode { .. } | Operation::Reset { .. } => AgentStep::SettingMode,
        Operation::DestroyCompute { .. } | Operation::DestroyInstance { .. } => AgentStep::Destroying,
        Operation::CreateInstance { .. } | Operation::CreateCompute { .. } => AgentStep::Creating,
        // not decided from a layout: the tenancy of shares sets it
        Operation::SetComputeMode { .. } => AgentStep::Steady,
    }
}

fn wait(cause: WaitCause, starts: &[Option<u32>], kubelet: &str) -> (AgentStep, String) {
    let subject = subject(starts);
    match cause {
        WaitCause::Clients => (AgentStep::WaitingForClients, format!("{subject} still in use by a process")),
        WaitCause::Owners => {
            let text = "pods own devices that the spec lacks; their layout stays until the operator has it in the spec";
            (AgentStep::WaitingForClients, text.to_owned())
        }
        WaitCause::Kubelet => {
            (AgentStep::Destroying, format!("{subject} not yet withdrawn from kubelet and free of owners: {kubelet}"))
        }
        WaitCause::Idle => {
            let step = if *starts == [None] { AgentStep::SettingMode } else { AgentStep::Destroying };
            (step, format!("{subject} unused; waiting for a second scan that confirms it"))
        }
        WaitCause::Driver => (AgentStep::Creating, format!("{subject} created; waiting for the driver to list it")),
    }
}

fn subject(starts: &[Option<u32>]) -> String {
    match starts {
        [] => "a removed instance is".to_owned(),
        [None] => "the whole GPU is".to_owned(),
        [Some(start)] => format!("the instance at {start} is"),
        many => {
            let many: Vec<String> = many.iter().flatten().map(u32::to_string).collect();
            format!("the instances at {} are", many.join(", "))
        }
    }
}
