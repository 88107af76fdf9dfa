//! Each device is given to one pod, and only when it is clean.

mod allocation_churn;
mod allocation_kills;
mod checkpoints;
mod handover;
mod kubelet_memory;
mod memory_residue;
mod mig_isolation;
mod process_attribution;
mod stale_names;
