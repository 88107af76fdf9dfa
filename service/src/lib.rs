//! What the operator and the agent share as long-running programs.

pub mod backoff;
pub mod endpoints;
pub mod events;
pub mod logging;
pub mod metrics;
pub mod shutdown;
