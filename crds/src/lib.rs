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
pub mod condition;
pub mod duration;
pub mod ids;
mod kinds;
pub mod manifest;
pub mod metadata;
pub mod names;
pub mod projection;
pub mod quantity;
pub mod quota;
pub mod quota_refusal;
pub mod reasons;
mod rules;
mod schema;
pub mod vcluster;
pub mod virtual_pod;
pub mod words;

pub use duration::{DurationError, DurationText};
pub use kinds::*;
pub use quantity::{MemoryText, QuantityError};
pub use rules::*;

/// API group of all types.
pub const GROUP: &str = "gputenancy.io";
/// Version of all types.
pub const VERSION: &str = "v1alpha1";
