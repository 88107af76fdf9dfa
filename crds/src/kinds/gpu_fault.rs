//! How a GPU returns after a fault: what its agent has seen, and what was found about it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::tolerant::Extensible;

/// Faults of a GPU in the last 24 hours, and whether it returns without a reset. Written by the agent.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FaultRecovery {
    /// Where the recovery is.
    #[serde(default, deserialize_with = "crate::schema::tolerant::value")]
    pub state: RecoveryState,
    /// Why, and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Times of the faults of the last 24 hours, oldest first, at most 8; faults within 30 seconds are one. The last one stays until the GPU has
    /// returned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub faults: Vec<Time>,
}

/// Where the recovery of a GPU is.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum RecoveryState {
    /// The driver asks for a reset or a restart, or 30 seconds without a fault are not over.
    #[default]
    Waiting,
    /// The driver asks for nothing: a canary pod has to pass on a free device.
    AwaitingCanary,
    /// Only a reset, a restart of the node or a person lets it return.
    StaysOut,
    /// It is in use again.
    Cleared,
}

impl Extensible for RecoveryState {
    /// Nothing is tried.
    const UNKNOWN: Self = Self::StaysOut;
}

/// The finding about the faults of a GPU. Written by the operator.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FaultVerdict {
    /// Time of the latest fault that it is about, as in status.gpus[].recovery.faults. It says nothing about later ones.
    pub until: Time,
    /// The finding.
    #[serde(deserialize_with = "crate::schema::tolerant::value")]
    pub finding: FaultFinding,
    /// The component that found it, and its evidence.
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// A finding about the faults of a GPU.
#[derive(Deserialize, Serialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum FaultFinding {
    /// A canary pod has passed: the GPU is in use again.
    CanaryPassed,
    /// A canary pod has failed: the GPU stays out until a reset.
    CanaryFailed,
    /// A person has cleared them: the GPU is in use again, and they do not count among the faults of 24 hours.
    ClearedByPerson,
}

impl Extensible for FaultFinding {
    /// The GPU stays out.
    const UNKNOWN: Self = Self::CanaryFailed;
}

impl FaultRecovery {
    /// Time of the latest fault.
    pub fn latest(&self) -> Option<&Time> {
        self.faults.last()
    }
}

impl FaultVerdict {
    /// The GPU is in use again.
    pub fn is_cleared(&self) -> bool {
        self.finding != FaultFinding::CanaryFailed
    }

    /// It is about this fault.
    pub fn covers(&self, fault: &Time) -> bool {
        self.until.0 >= fault.0
    }
}
