//! The agent as kubelet sees it: a device plugin that knows what it gave away and keeps the node's allocatable true.

pub mod allocatable;
pub mod bound;
pub mod cdi;
pub mod config;
mod drive;
mod holders;
pub mod ledger;
mod listeners;
mod node;
pub mod offer;
pub mod plugin;
pub mod pods;
pub mod preferred;
pub mod proto;
mod rest;
mod serve;
pub mod uds;

pub use config::{Allocation, Config};
pub use drive::{Error, run};

/// The text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
