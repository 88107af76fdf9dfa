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
        // The agent cannot run a program of the host, but the name of each command is in it. NVIDIA's toolkit container before 1.20.1
        // installs a script of this name, which runs the program with the ending `.real` in the same folder.
        let programs = [local.with_extension("real"), local].map(|file| fs::read(file).unwrap_or_default());
        let known = |command: &&str| programs.iter().any(|p| memmem::find(p, command.as_bytes()).is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_the_program_that_a_script_runs() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/local/nvidia/toolkit");
        fs::create_dir_all(&folder).unwrap();
        let config = Config { host_root: root.path().to_owned(), ..Config::default() };
        assert_eq!(HookProgram::find(&config), None);
        fs::write(folder.join("nvidia-cdi-hook"), "#! /bin/sh\nexec nvidia-cdi-hook.real \"$@\"\n").unwrap();
        let commands = || {
            let hooks = HookProgram::find(&config).unwrap().hooks(Path::new("/lib"), Some("580.1"));
            hooks.iter().map(|hook| hook["args"][1].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(commands(), [LDCACHE]);
        fs::write(folder.join("nvidia-cdi-hook.real"), format!("\0{NO_NODES}\0{LDCACHE}\0{COMPAT}\0")).unwrap();
        assert_eq!(commands(), [COMPAT, LDCACHE, NO_NODES]);
    }
}
