//! The workspace as cargo describes it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

/// Why cargo's answer could not be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// Cargo could not be started.
    #[error("starting cargo: {0}")]
    Start(#[from] std::io::Error),
    /// Cargo reported an error.
    #[error("cargo {0}: {1}")]
    Failed(String, String),
    /// Cargo's answer is not the expected JSON.
    #[error("cargo metadata: {0}")]
    Json(#[from] serde_json::Error),
}

/// One library or program of the workspace.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the library or program.
    pub name: String,
    /// Its root file, such as `src/lib.rs`.
    pub src_path: PathBuf,
    /// `lib`, `bin`, `test` and so on.
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

/// The libraries and programs of the workspace; tests, benchmarks and build scripts are left out.
pub fn targets() -> Result<Vec<Target>, WorkspaceError> {
    let text = cargo(&["metadata", "--no-deps", "--format-version=1", "--offline", "--locked"])?;
    let Metadata { packages } = serde_json::from_str(&text)?;
    let targets = packages.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(|t| t.kind.iter().any(|k| matches!(k.as_str(), "lib" | "bin" | "cdylib"))).collect())
}

/// Names of all packages that a package is built from, its own included; development and build dependencies are left out.
pub fn dependencies(package: &str) -> Result<Vec<String>, WorkspaceError> {
    let tree = cargo(&["tree", "--package", package, "--edges=normal", "--prefix=none", "--offline", "--locked"])?;
    Ok(tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

fn cargo(arguments: &[&str]) -> Result<String, WorkspaceError> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(program).args(arguments).current_dir(folder).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(WorkspaceError::Failed(arguments.join(" "), String::from_utf8_lossy(&output.stderr).into_owned()))
}
