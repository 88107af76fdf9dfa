//! The structure of the repository: modules, crates, and the references in its pages.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod crates;
mod docs;
mod errors;
mod files;
mod folders;
mod levels;
mod modules;
mod ways;
