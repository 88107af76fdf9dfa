//! What the change machine looks at, and what it answers.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{ChangePhase, GpuNode, GpuSpec, Layout, OnTimeout, UnmanagedPods};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::window::Window;
use crate::{migmanager::Word, plan::PodName};

/// All that a step depends on, for one GPU.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// The time.
    pub now: Timestamp,
    /// The GPU, by NVML's UUID.
    pub uuid: &'a str,
    /// The agreement about its node: one object, so that spec and status are of one moment.
    pub node: &'a GpuNode,
    /// `status.allocatable` of the Node, for extended resources.
    pub allocatable: &'a BTreeMap<String, i64>,
    /// Nobody new can come to the node: it stands for the hold of devices that another plugin offers and that cannot be
    /// withdrawn one by one. `None`: our agent offers them.
    pub closed: Option<bool>,
    /// The layout that the plan wants; `None`: leave the GPU as it is.
    pub target: Option<&'a Layout>,
    /// Why the plan wants it, in a sentence.
    pub reason: &'a str,
    /// Digest of the profiles, pools and tenants that the plan follows from.
    pub intent: &'a str,
    /// Canary pods of this and other nodes, by name.
    pub canaries: &'a BTreeMap<String, CanaryPod>,
    /// Pods of this node, at least all that own a device of this GPU.
    pub pods: &'a BTreeMap<PodName, PodFacts>,
    /// The pool's rules.
    pub policy: &'a Policy,
    /// The agent answers, so that what its status says is of now.
    pub agent_alive: bool,
    /// How things stand with NVIDIA's MIG manager, where it carves the node.
    pub managed: Option<Managed<'a>>,
    /// A new change may begin now (the pool's limit of GPUs that change at once, see [`super::admit`]).
    pub may_start: bool,
}

/// What a change needs to know where NVIDIA's MIG manager carves, which changes a node as a whole.
#[derive(Clone, Debug)]
pub struct Managed<'a> {
    /// What has become of asking it.
    pub word: &'a Word,
    /// All other GPUs of the node that have to be carved are idle as well.
    pub together: bool,
    /// Why the GPU has to be carved anew though its layout stays, if it has to.
    pub anew: Option<&'a str>,
}

/// What the machine needs to know of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// The pod's UID.
    pub uid: String,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Who would replace it.
    pub controller: Controller,
    /// It carries `gputenancy.io/do-not-evict: "true"`.
    pub do_not_evict: bool,
    /// It carries the notice of this change.
    pub noticed: bool,
    /// The last eviction was refused.
    pub refused: Option<Refusal>,
}

/// Who replaces a pod when it is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Controller {
    /// Nobody.
    #[default]
    None,
    /// A DaemonSet puts it back on the same node, whatever the node offers.
    DaemonSet,
    /// Kubelet owns it: it cannot be evicted.
    Static,
    /// A controller that puts it where there is room.
    Replaces,
}

/// An eviction that the API server refused, such as for a `PodDisruptionBudget`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub at: Timestamp,
    /// The API server's words, which name the budget.
    pub message: String,
}

/// How carefully GPUs are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Owners are told this long before they are evicted.
    pub notice: SignedDuration,
    /// How long pods may take to go, after the notice.
    pub drain_timeout: SignedDuration,
    /// What to do then.
    pub on_timeout: OnTimeout,
    /// What to do with pods that nobody replaces.
    pub unmanaged_pods: UnmanagedPods,
    /// Whether the pool's maintenance windows allow a change to begin.
    pub window: Window,
    /// How long the agent may take to carve, and kubelet to agree.
    pub carve_timeout: SignedDuration,
    /// A layout that failed is tried again after this time; each further failure doubles it.
    pub retry_after: SignedDuration,
    /// What proves new devices before they are released.
    pub canary: Option<gputenancy_crds::Canary>,
    /// Time between two attempts to evict a pod whose budget refuses.
    pub eviction_retry: SignedDuration,
}

/// What to do now. Doing it twice does no harm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The GPU's new entry in `GpuNode.spec.gpus`; `None`: it stays as it is. Written before the rest is done; if the write
    /// fails nothing else is done.
    pub spec: Option<GpuSpec>,
    /// Pods to be evicted, through the eviction API and for exactly this UID.
    pub evictions: BTreeSet<Eviction>,
    /// Pods to be told, after the evictions: a pod may be in both, where no time lies between.
    pub notices: BTreeSet<Notice>,
    /// Canary pods to be created; one that is there already stays.
    pub canaries: Vec<Canary>,
    /// Names of canary pods that have a purpose yet: all others are removed.
    pub kept: BTreeSet<String>,
    /// Events about the node's GPUs; only ever together with `spec`, so that they are not repeated.
    pub events: Vec<Event>,
    /// What is being done and what is waited for; `None` when nothing is.
    pub progress: Option<Progress>,
    /// What a change that the plan wants and that has not begun waits for.
    pub pending: Option<String>,
    /// Pods that carry the notice of this change rightly: it is taken from all others.
    pub told: BTreeSet<PodName>,
    /// Look again at this time even if nothing changed.
    pub wake: Option<Timestamp>,
}

/// A pod is told that it will be evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The pod.
    pub pod: PodName,
    /// Its UID.
    pub uid: String,
    /// It is evicted from this time on.
    pub deadline: Timestamp,
    /// Why.
    pub reason: String,
    /// Extended resource of the device that it loses, so that whoever tells it can say where the same is free.
    pub resource: Option<String>,
    /// Where the same is free, in words; the machine sees one node only, so this is left to whoever sees the fleet.
    pub elsewhere: String,
}

/// A pod to be evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Eviction {
    /// The pod.
    pub pod: PodName,
    /// Its UID.
    pub uid: String,
    /// Why.
    pub reason: String,
}

/// A pod that proves one new device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Its name, which is another one for every try of every change.
    pub name: String,
    /// The device in words, such as `1g.10gb at 4 of gpu-1 GPU 0`.
    pub device: String,
    /// NVIDIA's name of the profile; `None`: a whole GPU.
    pub profile: Option<String>,
    /// Extended resource that no other device has.
    pub resource: String,
    /// It is ended after so many seconds, whoever looks after it.
    pub seconds: i64,
    /// What it runs.
    pub rules: gputenancy_crds::Canary,
}

/// A canary pod that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryPod {
    /// When it was created.
    pub created: Timestamp,
    /// What has become of it.
    pub fate: Fate,
}

/// What has become of a canary pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits or runs; in words.
    Runs(String),
    /// Its program ended with exit code 0.
    Passed,
    /// Its program failed; exit code and last words.
    Failed(String),
    /// It ended for reasons that say nothing about the device, such as a node that went down: another one is tried.
    Spoilt(String),
    /// It is being deleted.
    Leaves,
}

/// An event about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Warning, or else Normal.
    pub warning: bool,
    /// A word in CamelCase.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// Where a change stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its phase.
    pub phase: ChangePhase,
    /// What is being done and what is waited for, with names.
    pub message: String,
}
