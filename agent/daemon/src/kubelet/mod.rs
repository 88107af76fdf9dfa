//! The device plugin: advertises devices to kubelet, keeps a journal of allocations, and corrects the node's allocatable.

#[cfg(test)]
mod allocation_model;
pub mod cdi;
pub mod config;
pub mod device_list;
mod manager;
pub mod node;
pub mod plugin;

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
