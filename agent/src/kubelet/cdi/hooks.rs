//! NVIDIA's hook program on the host, which completes a container's file system before its program starts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use memchr::memmem;
use serde_json::{Value, json};

use crate::kubelet::config::Config;

/// Paths of the program on the host.
const PROGRAMS: [&str; 3] =
    ["/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook"];

/// Adds the libraries of an image that is newer than the driver to the search path. Must precede [`LDCACHE`], which reads that path.
const COMPAT: &str = "enable-cuda-compat";
/// Updates the cache of libraries.
const LDCACHE: &str = "update-ldcache";
/// Keeps programs in the container from making device nodes of other GPUs.
const NO_NODES: &str = "disable-device-node-modification";

/// The program, and what it can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookProgram {
    /// Its path on the host.
    path: PathBuf,
    /// Commands among those of newer releases. A container does not start with a command that its release does not know.
    newer: Vec<&'static str>,
}

impl HookProgram {
    /// Searches the host.
    pub fn find(config: &Config) -> Option<Self> {
        let (path, local) =
            PROGRAMS.iter().map(|p| (p.into(), config.mounted(Path::new(p)))).find(|(_, local)| local.exists())?;
        // the agent cannot run a program of the host, but the name of each command is in it
        let program = fs::read(local).unwrap_or_default();
        let known = |command: &&str| memmem::find(&program, command.as_bytes()).is_some();
        Some(Self { path, newer: [COMPAT, NO_NODES].into_iter().filter(known).collect() })
    }

    /// The hooks of a specification, for libraries in this folder of the container and a driver of this version.
    pub fn hooks(&self, libraries: &Path, version: Option<&str>) -> Vec<Value> {
        let hook = |command: &'static str, options: Vec<String>| {
            let args: Vec<String> =
                ["nvidia-cdi-hook", command].map(str::to_owned).into_iter().chain(options).collect();
            json!({"hookName": "createContainer", "path": self.path, "args": args})
        };
        let newer = |command: &'static str| self.newer.contains(&command);
        let compat = version.filter(|_| newer(COMPAT));
        let compat = compat.map(|version| hook(COMPAT, vec![format!("--host-driver-version={version}")]));
        let ldcache = hook(LDCACHE, vec!["--folder".to_owned(), libraries.display().to_string()]);
        let no_nodes = newer(NO_NODES).then(|| hook(NO_NODES, Vec::new()));
        compat.into_iter().chain([ldcache]).chain(no_nodes).collect()
    }
}
