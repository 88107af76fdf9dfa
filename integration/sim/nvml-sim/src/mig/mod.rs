//! Instances of GPUs: MIG mode, profiles, placements, and both kinds of instances.

pub mod compute_instance;
pub mod gpu_instance;
pub mod mode;
pub mod placement;
pub mod profile;
