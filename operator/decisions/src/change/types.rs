//! Observations and decisions of the change machine.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Canary, ChangePhase, GpuNode, GpuSpec, Layout, ids::PodName};
use k8s_openapi::jiff::Timestamp;

use super::policy::Policy;
use crate::{
    event::EventMessage,
    partitioner::{Partitioner, RequestState},
};

/// All that a step depends on, for one GPU.
#[derive(Clone, Debug)]
pub struct ChangeObservation<'a> {
    /// The time.
    pub now: Timestamp,
    /// The GPU, by NVML's UUID.
    pub uuid: &'a str,
    /// The `GpuNode` of its node: spec and status of one moment.
    pub node: &'a GpuNode,
    /// `status.allocatable` of the Node, for extended resources.
    pub allocatable: &'a BTreeMap<String, i64>,
    /// Where NVIDIA's plugin advertises: the node is cordoned and pods bound before have arrived. It replaces the withdrawal of single
    /// devices. `None`: the agent advertises.
    pub cordoned: Option<bool>,
    /// The layout that the plan wants; `None`: leave the GPU as it is.
    pub target: Option<&'a Layout>,
    /// Why the plan wants it, in a sentence.
    pub reason: &'a str,
    /// Fingerprint of the profiles, pools and tenants that the plan follows from.
    pub intent: &'a str,
    /// Canary pods of all nodes, by name.
    pub canaries: &'a BTreeMap<String, CanaryPod>,
    /// Pods of this node, at least all that own a device of this GPU.
    pub pods: &'a BTreeMap<PodName, PodFacts>,
    /// The pool's rules.
    pub policy: &'a Policy,
    /// The agent is alive, so that its status is current.
    pub agent_alive: bool,
    /// Since when it has been, as far as it is known: time limits of a change do not run while its agent is away.
    pub alive_since: Option<Timestamp>,
    /// Where the node changes as a whole: all its other GPUs that have to change are idle as well.
    pub others_idle: bool,
    /// The component that partitions the node.
    pub partitioner: &'static dyn Partitioner,
    /// State of the request for the node, if that component takes one.
    pub request: Option<&'a RequestState>,
    /// Why the GPU is recreated though its layout stays, if it is.
    pub recreate: Option<&'a str>,
    /// The stage of a rollout forbids the target: a change in progress must not be redirected to it.
    pub staged: bool,
    /// Why the change may not begin now; `None`: it may.
    pub waits: Option<&'a str>,
}

/// The facts about a pod that the change machine needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// The pod's UID.
    pub uid: String,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Its controller, which may replace it.
    pub controller: PodController,
    /// It carries `gputenancy.io/do-not-evict: "true"`.
    pub do_not_evict: bool,
    /// When it was created, from which the time of that annotation counts; `None`: not known.
    pub created: Option<Timestamp>,
    /// When kubelet accepted it, from which a notice of its own counts; `None`: it has none of its own.
    pub started: Option<Timestamp>,
    /// It carries the notice of this change, or was notified already. Decides only whether it is notified: its owner may write
    /// the annotation.
    pub noticed: bool,
    /// The last eviction was refused.
    pub refused: Option<Refusal>,
}

/// The controller that replaces a pod after its eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodController {
    /// Nothing.
    #[default]
    None,
    /// A DaemonSet restores it on the same node, whatever the node advertises.
    DaemonSet,
    /// Kubelet owns it: it cannot be evicted.
    Static,
    /// A controller whose replacement the scheduler places.
    Replaces,
}

/// An eviction that the API server refused, such as for a `PodDisruptionBudget`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub at: Timestamp,
    /// The API server's message, which names the budget.
    pub message: String,
}

/// The actions that are due now. Every part is idempotent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeDecision {
    /// The GPU's new entry in `GpuNode.spec.gpus`; `None`: unchanged. It is written first; if that fails the rest is skipped.
    pub spec: Option<GpuSpec>,
    /// Pods to evict, through the eviction API and for exactly this UID.
    pub evictions: BTreeSet<Eviction>,
    /// Pods to notify, after the evictions: with a notice of zero a pod is in both.
    pub notices: BTreeSet<EvictionNotice>,
    /// Canary pods to create unless they exist.
    pub canaries: Vec<CanaryRequest>,
    /// Names of canary pods that are still needed: all others are deleted.
    pub kept_canaries: BTreeSet<String>,
    /// Events; only together with `spec`, so that they are not repeated.
    pub events: Vec<EventMessage>,
    /// Progress of the change; `None` without one.
    pub progress: Option<ChangeProgress>,
    /// The cause of the wait of a planned change that has not begun.
    pub pending: Option<String>,
    /// Pods that carry the notice of this change: it is removed from all others.
    pub notified: BTreeSet<PodName>,
    /// Reconcile again at this time even without an event.
    pub requeue_at: Option<Timestamp>,
}

/// The notice on a pod that it will be evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionNotice {
    /// The pod.
    pub pod: PodName,
    /// Its UID.
    pub uid: String,
    /// It is evicted from this time on.
    pub deadline: Timestamp,
    /// Why.
    pub reason: String,
    /// Extended resource of the device that it loses.
    pub resource: Option<String>,
    /// Where the same resource is free; set by the caller, since the machine sees one node only.
    pub elsewhere: String,
}

/// A pod to evict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Eviction {
    /// The pod.
    pub pod: PodName,
    /// Its UID.
    pub uid: String,
    /// Why.
    pub reason: String,
}

/// A canary pod to create for one new device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryRequest {
    /// Its name, unique for each attempt of each change.
    pub name: String,
    /// The device, such as `1g.10gb at 4 of gpu-1 GPU 0`.
    pub device: String,
    /// NVIDIA's name of the profile; `None`: a whole GPU.
    pub profile: Option<String>,
    /// Extended resource that no other device has.
    pub resource: String,
    /// Active deadline in seconds.
    pub seconds: i64,
    /// The program that it runs.
    pub rules: Canary,
}

/// A canary pod that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryPod {
    /// When it was created.
    pub created: Timestamp,
    /// Its outcome so far.
    pub outcome: CanaryOutcome,
}

/// The outcome of a canary pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CanaryOutcome {
    /// It waits or runs; with its state.
    Pending(String),
    /// Its program ended with exit code 0.
    Passed,
    /// Its program failed; with exit code and last output.
    Failed(String),
    /// It ended for a reason unrelated to the device, such as a node restart: it is replaced.
    Inconclusive(String),
    /// It is being deleted.
    Terminating,
}

/// Progress of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeProgress {
    /// Its phase.
    pub phase: ChangePhase,
    /// Activity and cause of the wait, with names.
    pub message: String,
}
