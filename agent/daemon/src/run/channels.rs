//! What the tasks exchange.

use std::time::Instant;

use tokio::sync::watch;

use crate::{
    attribution::Attributed,
    audit::Bypasses,
    device::{DeviceView, DriverLimits, KubeletView},
    enforcement::{OtherLimits, PodCompute, ShareSizes},
    forbidden_variables::EnvFromContainers,
    kubelet::node::{requests::PodRequests, runtime_classes::RuntimeClasses},
    partition::PartitionState,
    pods_past_grace::TerminatingPods,
    report::gpu_node::Watched,
};

/// The latest state of each task. Each channel has one task that writes it; [`super::tasks`] shows which, and the tasks that read it.
#[derive(Debug)]
pub struct Channels {
    /// The `GpuNode` of this node: what is desired.
    pub watched: watch::Sender<Watched>,
    /// The devices of this node.
    pub view: watch::Sender<DeviceView>,
    /// How kubelet uses them.
    pub kubelet: watch::Sender<KubeletView>,
    /// The latest inventory, and the progress of each GPU.
    pub state: watch::Sender<PartitionState>,
    /// Start of the latest reconcile of the GPUs.
    pub heartbeat: watch::Sender<Instant>,
    /// Devices that pods request; none without the right to read pods.
    pub requests: watch::Sender<Option<PodRequests>>,
    /// Containers with `envFrom`.
    pub containers: watch::Sender<EnvFromContainers>,
    /// Limits that other products give to pods.
    pub other_limits: watch::Sender<OtherLimits>,
    /// Priority and suspension of pods.
    pub compute: watch::Sender<Option<PodCompute>>,
    /// Pods that are being deleted.
    pub terminating: watch::Sender<TerminatingPods>,
    /// The cluster's `RuntimeClasses`.
    pub classes: watch::Sender<Option<RuntimeClasses>>,
    /// Processes by container, and memory that no process explains.
    pub attributed: watch::Sender<Attributed>,
    /// Shares whose memory limit is bypassed.
    pub bypasses: watch::Sender<Bypasses>,
    /// Whether the driver limits memory.
    pub driver_limits: watch::Sender<DriverLimits>,
    /// Memory of containers on fractions.
    pub sizes: watch::Sender<ShareSizes>,
    /// Missing rights, one per line.
    pub lacks: watch::Sender<Option<String>>,
}

impl Default for Channels {
    fn default() -> Self {
        Self {
            watched: watch::Sender::default(),
            view: watch::Sender::default(),
            kubelet: watch::Sender::default(),
            state: watch::Sender::default(),
            heartbeat: watch::Sender::new(Instant::now()),
            requests: watch::Sender::default(),
            containers: watch::Sender::default(),
            other_limits: watch::Sender::default(),
            compute: watch::Sender::default(),
            terminating: watch::Sender::default(),
            classes: watch::Sender::default(),
            attributed: watch::Sender::default(),
            bypasses: watch::Sender::default(),
            driver_limits: watch::Sender::default(),
            sizes: watch::Sender::default(),
            lacks: watch::Sender::default(),
        }
    }
}
