//! Reads the workspace's sources and answers which modules use each other.
//!
//! [`workspace`] lists the crates, [`source`] parses one crate into modules, [`resolve`] finds the module that defines the
//! target of a path, [`cycles`] reports modules that depend on each other.

pub mod cycles;
pub mod resolve;
pub mod source;
pub mod workspace;
