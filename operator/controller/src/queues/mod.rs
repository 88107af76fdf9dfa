//! The controller of queues: what teams may use, borrow and lend, as objects of Kueue.
//!
//! `observe` reads the caches and the view of the fleet, `teams` finds who queues for what, the numbers are those of [`gputenancy_decisions::queues`],
//! `render` makes objects of them, and `decide` compares and orders the writes. Kueue admits jobs by these objects; the operator never admits one.

mod controller;
mod decide;
mod limits;
mod notices;
mod observe;
mod pools;
mod render;
pub mod requeue;
mod teams;
#[cfg(test)]
mod tests;

mod usage;
mod view;
mod waits;
mod workloads;
mod write;

pub use controller::Controller;
pub use view::{QueueView, TenantQueue};
