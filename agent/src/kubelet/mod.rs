//! The device plugin: advertises devices to kubelet, keeps a journal of allocations, and corrects the node's allocatable.

pub mod allocatable;
#[cfg(test)]
mod allocation_model;
pub mod cdi;
pub mod config;
pub mod device_list;
pub mod journal;
mod manager;
mod own_node;
pub mod owner_lookup;
pub mod plugin;
mod poll;
pub mod preferred;
pub mod requests;
pub mod runtime_classes;
pub mod sandbox;
mod serve;
mod stale_names;
mod watchers;

use std::{fs, io, path::Path};

pub use config::{Allocation, Config};
pub use manager::{Channels, run};

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

/// Removes a file, if it exists.
fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
