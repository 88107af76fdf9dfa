//! The repository for git-driven tools under `samples/gitops`, as the tools see it: what kustomize builds, and what Argo CD calls healthy.

use std::path::{Path, PathBuf};
use std::process::Command;

use mlua::{Lua, LuaSerdeExt as _};
use serde::Deserialize;
use serde_json::Value;

/// Why the samples could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read, or kubectl not be started.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// kustomize refuses what it was given.
    #[error("kubectl kustomize {folder}: {said}")]
    Kustomize {
        /// The folder.
        folder: String,
        /// kubectl's output.
        said: String,
    },
    /// The text is not YAML of the kind that is expected.
    #[error("{what}: {said}")]
    Yaml {
        /// Which text.
        what: String,
        /// What is wrong.
        said: String,
    },
    /// The Lua program failed, which Argo CD would call an unknown health.
    #[error("health.lua: {0}")]
    Lua(#[from] mlua::Error),
}

/// What Argo CD shows for an object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Health {
    /// Healthy, Progressing, Degraded or Suspended.
    pub status: String,
    /// The message with it.
    pub message: String,
}

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The folder of the samples.
pub fn samples() -> PathBuf {
    root().join("samples/gitops")
}

/// A text file of the samples.
pub fn text(file: &str) -> Result<String, Error> {
    let path = samples().join(file);
    std::fs::read_to_string(&path).map_err(|source| Error::Io { what: format!("reading {}", path.display()), source })
}

/// The health of an object, by the program that Argo CD would run: in Lua 5.1, as Argo CD does, with the object as `obj`.
pub fn health(program: &str, object: &Value) -> Result<Health, Error> {
    let lua = Lua::new();
    // as from JSON: what is absent is nil, not a null value
    let options = mlua::serde::SerializeOptions::new().serialize_none_to_null(false).serialize_unit_to_null(false);
    lua.globals().set("obj", lua.to_value_with(object, options)?)?;
    let answer: mlua::Value = lua.load(program).eval()?;
    Ok(lua.from_value(answer)?)
}

/// What kustomize makes of a folder of the samples; `kubectl` is the lab's.
pub fn kustomize(folder: &str) -> Result<Vec<Value>, Error> {
    let kubectl = root().join("target/toolset/bin/kubectl");
    let what = || format!("running {} (it comes with `make tools`)", kubectl.display());
    let output = Command::new(&kubectl).arg("kustomize").arg(samples().join(folder)).output();
    let output = output.map_err(|source| Error::Io { what: what(), source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Kustomize { folder: folder.into(), said });
    }
    documents(folder, &String::from_utf8_lossy(&output.stdout))
}

/// The documents of a YAML text.
pub fn documents(what: &str, text: &str) -> Result<Vec<Value>, Error> {
    let parse = |text: &str| {
        serde_saphyr::from_str::<Value>(text).map_err(|e| Error::Yaml { what: what.into(), said: e.to_string() })
    };
    let all = text.split("\n---\n").map(parse).collect::<Result<Vec<Value>, Error>>()?;
    Ok(all.into_iter().filter(|v| !v.is_null()).collect())
}
