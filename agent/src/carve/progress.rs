//! Where a GPU stands, in the words of its status.

use gputenancy_crds::{AgentStep, GpuError};

use super::{policy, step::Rest};
use crate::gpu::{Order, SeenGpu};

/// Where one GPU stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProgress {
    /// What the agent is doing with it.
    pub step: AgentStep,
    /// The call that failed.
    pub error: Option<GpuError>,
    /// What is waited for, in a sentence; empty while nothing is.
    pub waiting: String,
    /// Processes that the last look before a destroy found, and NVML's lists may not show.
    pub blockers: Vec<u32>,
}

/// A GPU on which an order is being carried out.
pub fn of_order(order: &Order) -> GpuProgress {
    let step = match order {
        Order::SetMode { .. } | Order::Reset { .. } => AgentStep::SettingMode,
        Order::DestroyCompute { .. } | Order::DestroyInstance { .. } => AgentStep::Destroying,
        Order::CreateInstance { .. } | Order::CreateCompute { .. } => AgentStep::Creating,
    };
    GpuProgress { step, waiting: order.to_string(), ..GpuProgress::default() }
}

/// A GPU on which nothing is done now. `kubelet` is what kubelet's side waits for.
pub fn of_rest(rest: &Rest, gpu: &SeenGpu, kubelet: &str) -> GpuProgress {
    let (step, error, waiting) = match rest {
        Rest::Steady => (AgentStep::Steady, None, String::new()),
        Rest::WaitingForClients { starts } => {
            let waiting = format!("GPU {}: {} still in use by a process", gpu.index, places(starts));
            (AgentStep::WaitingForClients, None, waiting)
        }
        Rest::WaitingForKubelet { starts } => {
            let what = places(starts);
            let waiting =
                format!("GPU {}: {what} must be withdrawn from kubelet and free of owners: {kubelet}", gpu.index);
            (AgentStep::Destroying, None, waiting)
        }
        Rest::WaitingForSecondLook { starts } => {
            let step = if *starts == [None] { AgentStep::SettingMode } else { AgentStep::Destroying };
            let (have, go) = if starts.len() > 1 { ("have", "they go") } else { ("has", "it goes") };
            let what = places(starts);
            let waiting = format!("GPU {}: {what} unused, and {have} to be seen so twice before {go}", gpu.index);
            (step, None, waiting)
        }
        Rest::WaitingForDriver { starts } => {
            let waiting = format!("GPU {}: {} there, and the driver has yet to list it", gpu.index, places(starts));
            (AgentStep::Creating, None, waiting)
        }
        Rest::LeftAlone => {
            let waiting = format!(
                "GPU {}: NVML shows another layout than the spec, which leaves carving to others (spec.partitioner)",
                gpu.index
            );
            (AgentStep::LeftAlone, None, waiting)
        }
        Rest::Failed(error) if policy::is_reset(error) => {
            (AgentStep::WaitingForReset, Some(error.clone()), String::new())
        }
        Rest::Failed(error) => (AgentStep::Failed, Some(error.clone()), String::new()),
    };
    GpuProgress { step, error, waiting, blockers: Vec::new() }
}

fn places(starts: &[Option<u32>]) -> String {
    match starts {
        [] => "an instance that must go is".to_owned(),
        [None] => "the whole GPU is".to_owned(),
        [Some(start)] => format!("the instance at {start} is"),
        many => {
            let many: Vec<String> = many.iter().flatten().map(u32::to_string).collect();
            format!("the instances at {} are", many.join(", "))
        }
    }
}
