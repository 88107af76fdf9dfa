//! The kinds of `gputenancy.io/v1alpha1`: what platform engineers type, and what operator and agent agree on.
//!
//! | kind | written by | says |
//! |---|---|---|
//! | [`GpuProfile`] | platform team | product: a named GPU shape that tenants can ask for |
//! | [`GpuPool`] | platform team | supply: which nodes carry which profiles, and how they may be changed |
//! | [`GpuTenant`] | team, GitOps | demand: a team, its namespaces, how many of which profile |
//! | [`GpuNode`] | operator (spec), agent (status) | agreement: the layout of every GPU of one node |
//! | [`GpuGrant`] | operator | what a team may use in one namespace |

#![allow(clippy::doc_markdown, reason = "these comments are what `kubectl explain` prints, where names stand plain")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of one kind share their type")]

pub mod condition;
pub mod duration;
mod gpu_grant;
mod gpu_node;
mod gpu_pool;
mod gpu_profile;
mod gpu_tenant;
pub mod manifest;
mod mig_manager;
pub mod names;
pub mod quantity;
pub mod quota;
pub mod reasons;

pub use duration::{DurationError, DurationText};
pub use gpu_grant::*;
pub use gpu_node::*;
pub use gpu_pool::*;
pub use gpu_profile::*;
pub use gpu_tenant::*;
pub use mig_manager::*;
pub use quantity::{MemoryText, QuantityError};

/// API group of all kinds.
pub const GROUP: &str = "gputenancy.io";
/// Version of all kinds.
pub const VERSION: &str = "v1alpha1";
