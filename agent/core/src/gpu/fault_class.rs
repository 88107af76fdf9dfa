//! Faults that the driver reports, and what they mean, by NVIDIA's catalog of Xid errors (docs.nvidia.com/deploy/xid-errors).

use crate::nvml::FaultKind;

/// Xid errors that a program causes by itself; the GPU stays usable. 13 graphics engine exception, 31 memory page fault, 43 channel
/// stopped, 45 clean-up after another error, 68 video processor exception, 109 context switch timeout.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];
/// Xid errors after which the GPU does not come back without a restart of the node: 79 fallen off the bus, 119 and 120 the GPU's system
/// processor does not answer.
const OF_NODES: [u64; 3] = [79, 119, 120];

/// A fault that the driver reported since the agent started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFault {
    /// Counts from 1.
    pub number: u64,
    /// The GPU, unless it does not answer any more.
    pub uuid: Option<String>,
    /// Id of the GPU instance, if the fault is of one.
    pub instance: Option<u32>,
    /// What it is.
    pub kind: FaultKind,
}

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultClass {
    /// The team: its program is wrong.
    Application,
    /// The platform: the GPU needs a reset or a replacement.
    Hardware,
    /// The platform: the node needs a restart.
    Node,
}

impl FaultClass {
    /// The class of a fault. An error that is not listed counts as one of the hardware: the GPU gets no work until it was looked at.
    pub fn of(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Xid(number) if OF_PROGRAMS.contains(&number) => Self::Application,
            FaultKind::Xid(number) if OF_NODES.contains(&number) => Self::Node,
            FaultKind::Xid(_) | FaultKind::UncorrectableEcc => Self::Hardware,
        }
    }
}

/// A fault as text.
pub fn text(kind: FaultKind) -> String {
    match kind {
        FaultKind::Xid(number) => format!("Xid {number}"),
        FaultKind::UncorrectableEcc => "uncorrectable ECC error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_programs_of_the_gpu_and_of_the_node_differ() {
        for (number, class) in [
            (13, FaultClass::Application),
            (31, FaultClass::Application),
            (48, FaultClass::Hardware),
            (79, FaultClass::Node),
            (9999, FaultClass::Hardware),
        ] {
            assert_eq!(FaultClass::of(FaultKind::Xid(number)), class, "Xid {number}");
        }
        assert_eq!(FaultClass::of(FaultKind::UncorrectableEcc), FaultClass::Hardware);
    }
}
