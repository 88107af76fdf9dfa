//! The types of `gputenancy.io/v1alpha1`.
//!
//! | kind | written by | content |
//! |---|---|---|
//! | [`GpuProfile`] | platform team | product: a named GPU shape that tenants can request |
//! | [`GpuPool`] | platform team | supply: nodes, the profiles that they offer, rules for changes |
//! | [`GpuTenant`] | team, GitOps | demand: a team, its namespaces, its guaranteed devices |
//! | [`GpuNode`] | operator (spec), agent (status) | desired and actual layout of every GPU of one node |
//! | [`GpuGrant`] | operator | what a team may use in one namespace |

#![allow(clippy::doc_markdown, reason = "these comments are the text of `kubectl explain`, without backticks")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of one type are alike")]

pub mod admission;
pub mod backoff;
mod change_phase;
pub mod condition;
pub mod duration;
mod enforcement;
mod gpu_fault;
mod gpu_grant;
mod gpu_node;
mod gpu_pool;
mod gpu_pool_status;
mod gpu_processes;
mod gpu_profile;
mod gpu_tenant;
pub mod ids;
mod isolation;
mod layout;
pub mod manifest;
mod memory_scrub;
pub mod metadata;
mod mig_manager;
pub mod names;
mod node_enforcement;
mod node_health;
mod patterns;
pub mod projection;
pub mod quantity;
pub mod quota;
pub mod quota_refusal;
pub mod reasons;
mod rollout;
mod sharing;
mod tolerant;
pub mod vcluster;
mod virtual_cluster;
pub mod virtual_pod;
pub mod words;

pub use change_phase::ChangePhase;
pub use duration::{DurationError, DurationText};
pub use enforcement::*;
pub use gpu_fault::*;
pub use gpu_grant::*;
pub use gpu_node::*;
pub use gpu_pool::*;
pub use gpu_pool_status::*;
pub use gpu_processes::*;
pub use gpu_profile::*;
pub use gpu_tenant::*;
pub use isolation::*;
pub use layout::*;
pub use memory_scrub::*;
pub use mig_manager::*;
pub use node_enforcement::*;
pub use node_health::*;
pub use quantity::{MemoryText, QuantityError};
pub use rollout::*;
pub use sharing::*;
pub use virtual_cluster::*;

/// API group of all types.
pub const GROUP: &str = "gputenancy.io";
/// Version of all types.
pub const VERSION: &str = "v1alpha1";
