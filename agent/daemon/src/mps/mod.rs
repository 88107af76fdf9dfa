//! NVIDIA's Multi-Process Service: shares of a GPU whose memory and threads a server limits.
//!
//! [`share`] is what a container gets, [`tenancy`] decides who may use a GPU's server, [`control`] runs the control program, [`daemons`]
//! starts, watches and restarts one daemon for each GPU, and [`state`] is what the status reports.
//!
//! A GPU serves the pods of one tenant at a time, because clients of one server share its faults.

pub mod control;
pub mod daemons;
mod error;
pub mod host;
pub mod share;
pub mod state;
pub mod tenancy;

pub use daemons::Mps;
pub use error::Error;
pub use state::MpsView;
