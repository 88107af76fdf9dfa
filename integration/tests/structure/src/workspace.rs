//! The workspace as cargo describes it.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    name: String,
    targets: Vec<Target>,
}

fn packages() -> Result<Vec<Package>, WorkspaceError> {
    let text = cargo(&["metadata", "--no-deps", "--format-version=1", "--offline", "--locked"])?;
    Ok(serde_json::from_str::<Metadata>(&text)?.packages)
}

/// The libraries and programs of the workspace; tests, benchmarks and build scripts are left out.
pub fn targets() -> Result<Vec<Target>, WorkspaceError> {
    let targets = packages()?.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(|t| t.kind.iter().any(|k| matches!(k.as_str(), "lib" | "bin" | "cdylib"))).collect())
}

/// The programs of integration tests of each crate.
pub fn test_programs() -> Result<BTreeMap<String, Vec<String>>, WorkspaceError> {
    let tests = |package: Package| {
        let tests = package.targets.into_iter().filter(|t| t.kind.iter().any(|k| k == "test"));
        (package.name, tests.map(|t| t.name).collect())
    };
    Ok(packages()?.into_iter().map(tests).collect())
}

/// The root files of all targets, programs of tests and benchmarks included.
pub fn roots() -> Result<Vec<PathBuf>, WorkspaceError> {
    Ok(packages()?.into_iter().flat_map(|package| package.targets).map(|target| target.src_path).collect())
}

/// The sets of features that each crate is built with for the whole workspace, by name and version: by `cargo build`, or with `tests` also
/// what its tests need. What procedural macros are built from is left out: cargo unifies it apart.
pub fn features(tests: bool) -> Result<BTreeMap<String, BTreeSet<String>>, WorkspaceError> {
    let edges = if tests { "--edges=normal,dev,no-proc-macro" } else { "--edges=normal,no-proc-macro" };
    let tree = cargo(&["tree", "--workspace", edges, "--prefix=none", "--format={p}|{f}|", "--offline", "--locked"])?;
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in tree.lines() {
        if let Some((package, features)) = line.split_once('|') {
            let features = features.split('|').next().unwrap_or_default();
            all.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    Ok(all)
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
