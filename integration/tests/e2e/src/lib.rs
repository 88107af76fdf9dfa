//! Shared by the end-to-end tests and the demo: a lab with the product installed, fixtures, and waiting.

pub mod actor;
pub mod departure;
pub mod discovery;
mod enter;
mod error;
pub mod fixtures;
mod installation;
pub mod interrupt;
pub mod kubelet;
mod lab_lock;
pub mod manifests;
pub mod mig_manager;
pub mod objects;
pub mod plan_preview;
pub mod product;
pub mod requests;
pub mod scenario;
mod specs;
pub mod virtual_cluster;
pub mod wait;
mod world;

pub use error::{Error, Result};
pub use world::World;
