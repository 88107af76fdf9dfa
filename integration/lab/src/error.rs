//! Errors of the lab, with the object that failed and its log.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation and object.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The API server refused a request or could not be reached.
    #[error("{what}: {source}")]
    Kube {
        /// The request.
        what: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// A condition did not become true in time.
    #[error("timed out after {} s waiting for {what}{}", .after.as_secs(), see(.log.as_deref()))]
    Timeout {
        /// The condition.
        what: String,
        /// The limit.
        after: Duration,
        /// A log file that may show why.
        log: Option<PathBuf>,
    },
    /// The lab's own process refused a request.
    #[error("lab {lab}: {message}")]
    Refused {
        /// The lab's name.
        lab: String,
        /// Its answer.
        message: String,
    },
    /// A requirement is missing; the message has the remedy.
    #[error("{0}")]
    Missing(String),
    /// A description (spec, state file, object) is not valid.
    #[error("{what}: {why}")]
    Invalid {
        /// The description.
        what: String,
        /// The fault.
        why: String,
    },
}

fn see(log: Option<&Path>) -> String {
    log.map(|path| format!(" (see {})", path.display())).unwrap_or_default()
}

/// The lab's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the operation to an I/O error.
pub(crate) trait During<T> {
    /// `what` names the action and its object.
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}

/// Adds the request to a client error.
pub(crate) trait Asking<T> {
    /// `what` names the request.
    fn asking(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Asking<T> for std::result::Result<T, kube::Error> {
    fn asking(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Kube { what: what(), source: Box::new(source) })
    }
}
