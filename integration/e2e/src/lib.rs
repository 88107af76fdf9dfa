//! What the end-to-end tests and the demo have in common: the lab, the product installed in it, and ways to wait.

pub mod actor;
pub mod discovery;
mod enter;
mod error;
pub mod forecast;
pub mod mig_manager;
pub mod objects;
pub mod product;
pub mod scene;
pub mod story;
pub mod strike;
mod turn;
pub mod wait;
mod world;

pub use error::{Error, Result};
pub use world::World;
