//! What is read: agents, GPUs and their nodes as the caches have them, and which nodes a decision has to visit.

pub mod agents;
pub mod inventory;
pub mod tolerated;
pub mod visits;
