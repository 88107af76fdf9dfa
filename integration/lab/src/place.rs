//! Folders on the host and inside the lab.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The lab's own tmpfs, inside the lab's mount namespace.
pub const LAB: &str = "/run/lab";
/// The folder that a node shares with the lab, as the node sees it.
pub const SHARE: &str = "/run/lab";

/// The folders on the host.
#[derive(Debug, Clone)]
pub struct Folders {
    /// The checkout.
    pub root: PathBuf,
    /// Built programs.
    pub target: PathBuf,
    /// `bin` and `cni` with links to the Go programs.
    pub toolset: PathBuf,
    /// Tools and images, keyed by content, shared by all checkouts.
    pub cache: PathBuf,
    /// One small folder for each lab.
    pub state: PathBuf,
}

impl Folders {
    /// From the environment (`GPUTENANCY_CACHE`, `GPUTENANCY_STATE`, `CARGO_TARGET_DIR`), else the defaults.
    pub fn find() -> Result<Self> {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_path_buf).ok_or_else(|| {
                Error::Missing("the checkout that this program was built in no longer exists".to_owned())
            })?;
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let target = variable("CARGO_TARGET_DIR").unwrap_or_else(|| root.join("target"));
        let cache = match variable("GPUTENANCY_CACHE") {
            Some(cache) => cache,
            None => variable("HOME")
                .ok_or_else(|| Error::Missing("HOME is not set; set it or GPUTENANCY_CACHE".to_owned()))?
                .join(".cache/gputenancy"),
        };
        let state = variable("GPUTENANCY_STATE").unwrap_or_else(|| root.join("target/lab"));
        Ok(Self { toolset: root.join("target/toolset"), root, target, cache, state })
    }

    /// The folder of one lab.
    pub fn lab(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// A program of the toolset.
    pub fn tool(&self, name: &str) -> Result<PathBuf> {
        let path = self.toolset.join("bin").join(name);
        if path.exists() {
            return Ok(path);
        }
        Err(Error::Missing(format!("{name} has not been built yet ({} is missing): run `make tools`", path.display())))
    }

    /// A packed chart of the toolset.
    pub fn chart(&self, file: &str) -> Result<PathBuf> {
        let path = self.toolset.join("charts").join(file);
        if path.exists() {
            return Ok(path);
        }
        Err(Error::Missing(format!("{} is missing: run `make tools`", path.display())))
    }
}

/// The folder of a node inside the lab's mount namespace: disk, state, and what it shares with the lab.
pub fn node_folder(node: &str) -> PathBuf {
    Path::new(LAB).join("nodes").join(node)
}

/// The folder shared by lab and node: keys, logs, control socket.
pub fn node_share(node: &str) -> PathBuf {
    node_folder(node).join("share")
}
