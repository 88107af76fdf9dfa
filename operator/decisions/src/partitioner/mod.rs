//! The components that create and destroy the instances of a node: [`Partitioner`] is how they differ for a change, and the functions are about
//! requests for nodes that are partitioned as a whole.

mod mig_manager;

use std::fmt::Debug;

use gputenancy_crds::{self as crds, GpuNode, GpuState, Layout};

pub use mig_manager::{
    MigConfig, MigConfigError, MigConfigs, REPARTITIONED_WITH_NODE, RequestDecision, RequestObservation, RequestState,
    RequestTimeouts, Shape, adopted, awaits_answer, base, configs, conflict, effects, is_engaged, is_ours, placed,
    step, sweeps, twin,
};

/// A component that creates and destroys the instances of a node. By default it partitions each GPU by itself, as its spec lists it.
pub trait Partitioner: Debug + Sync {
    /// Its name, if it partitions a node as a whole at a request, recreates all instances of a GPU, and chooses placements itself.
    fn whole_node(&self) -> Option<&'static str> {
        None
    }

    /// Whether it recreates the instances of a GPU for this layout though some could stay.
    fn recreates(&self, _state: &GpuState, _layout: &Layout) -> bool {
        false
    }
}

#[derive(Debug)]
struct Agent;

impl Partitioner for Agent {}

/// The component that `spec.partitioner` of a pool or a `GpuNode` names. Without one, changes wait as for an agent that does nothing.
pub fn of(partitioner: crds::Partitioner) -> &'static dyn Partitioner {
    match partitioner {
        crds::Partitioner::Agent | crds::Partitioner::None => &Agent,
        crds::Partitioner::MigManager => &mig_manager::MigManager,
    }
}

/// Is this node partitioned as a whole?
pub fn is_whole(node: &GpuNode) -> bool {
    of(node.spec.partitioner).whole_node().is_some()
}
