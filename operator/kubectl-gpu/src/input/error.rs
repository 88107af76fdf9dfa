//! Why manifests cannot be read.

use std::io;

use super::{Finding, finding::lines};
use crate::output;

/// Errors of files.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Files that cannot be read.
    #[error("{}", lines(.0))]
    Files(Vec<FileError>),
    /// Mistakes in files, with their places.
    #[error("{}", lines(.0))]
    Mistakes(Vec<Finding>),
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// With `--prune` a folder without manifests would mean that no object is wanted.
    #[error(
        "{0}: no file with the ending .yaml, .yml or .json in this folder or below: name the folder of the manifests"
    )]
    Empty(String),
    /// An error of the operating system.
    #[error("{name}: {}", reason(source))]
    Read {
        /// The file.
        name: String,
        /// The error.
        source: io::Error,
    },
}

/// The cause with what to do, without the number of the operating system's error.
fn reason(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": name a file or a folder, or - for standard input",
        io::ErrorKind::InvalidData => ": write the manifest in UTF-8",
        _ => "",
    };
    format!("{}{remedy}", output::cause(error))
}
