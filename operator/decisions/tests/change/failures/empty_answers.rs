//! A source that has just started answers with nothing, and the operator decides at that moment.

use gputenancy_crds::GpuNodeStatus;

use crate::change::small::World;

/// What is empty.
#[derive(Clone, Copy, Debug)]
pub enum EmptyAnswer {
    /// NVML lists no GPU, and so does the agent's status.
    Gpus,
    /// The API server lists no pod.
    Pods,
    /// The Node has no allocatable devices.
    Allocatable,
    /// The status is that of a new `GpuNode`.
    Status,
}

impl EmptyAnswer {
    pub const ALL: [Self; 4] = [Self::Gpus, Self::Pods, Self::Allocatable, Self::Status];

    /// One decision with the empty answer, which is carried out; then the source answers completely. The world checks that no device in use is destroyed.
    pub fn decide(self, world: &mut World) {
        let (status, pods, allocatable) = (world.node.status.clone(), world.pods.clone(), world.allocatable.clone());
        let evicted = world.evicted.len();
        match self {
            Self::Gpus => world.node.status.as_mut().unwrap().gpus.clear(),
            Self::Pods => world.pods.clear(),
            Self::Allocatable => world.allocatable.clear(),
            Self::Status => world.node.status = Some(GpuNodeStatus::default()),
        }
        world.operate(3);
        (world.node.status, world.allocatable) = (status, allocatable);
        match self {
            Self::Pods => world.pods = pods,
            // evictions of a change in progress go on
            Self::Allocatable => return,
            Self::Gpus | Self::Status => {}
        }
        assert_eq!(world.evicted.len(), evicted, "a pod is evicted because of an empty answer: {self:?}");
    }
}
