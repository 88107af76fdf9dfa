//! Checks the structure of the repository: module cycles in the sources, and references in the documentation.
//!
//! [`workspace`] lists the crates, [`source`] parses one crate into modules, [`resolve`] finds the module that defines the
//! target of a path, [`cycles`] reports modules that depend on each other. [`docs`] reads the Markdown pages.

pub mod cycles;
pub mod docs;
pub mod resolve;
pub mod source;
pub mod workspace;
