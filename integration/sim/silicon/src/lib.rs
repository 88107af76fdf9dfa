//! Simulated NVIDIA GPUs: boards, MIG geometry and the state that all processes of a node share.
//!
//! The pure part ([`board`], [`machine`], [`mig`], [`compute`]) decides; the thin part ([`store`], [`clients`],
//! [`visible`]) keeps the state in files under the simulated driver root, where `libnvidia-ml.so.1` finds it.

pub mod accounting;
pub mod activity;
pub mod attach;
pub mod board;
pub mod boards;
pub mod cgroup;
pub mod clients;
pub mod code;
pub mod compute;
pub mod compute_profile;
pub mod engines;
pub mod fault;
pub mod history;
pub mod ids;
pub mod install;
pub mod latency;
mod limit_memory;
pub mod machine;
pub mod materialize;
pub mod memory_limits;
pub mod mig;
pub mod mode;
pub mod mps;
pub mod nodes;
pub mod operations;
pub mod paths;
pub mod physical;
pub mod registry;
pub mod store;
pub mod visible;

pub use board::{Board, Profile, Variant};
pub use code::Code;
pub use machine::{LINKS, Links, Machine, Virtualization};
pub use store::Store;
