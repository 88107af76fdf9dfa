//! The sample repository `samples/gitops` as tools process it: kustomize's output, and Argo CD's health.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

/// Why the samples could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read, or kubectl not be started.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// kustomize failed.
    #[error("kubectl kustomize {folder}: {output}")]
    Kustomize {
        /// The folder.
        folder: String,
        /// kubectl's output.
        output: String,
    },
    /// The text is not the expected YAML.
    #[error("{what}: {output}")]
    Yaml {
        /// The text.
        what: String,
        /// The error.
        output: String,
    },
    #[cfg(feature = "lua")]
    /// The Lua script failed; Argo CD shows the health as Unknown.
    #[error("health.lua: {0}")]
    Lua(#[from] mlua::Error),
}

/// Health of an object in Argo CD.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Health {
    /// Healthy, Progressing, Degraded or Suspended.
    pub status: String,
    /// Its message.
    pub message: String,
}

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).unwrap_or(here).to_owned()
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

/// The health of an object by a Lua script, run as Argo CD does: Lua 5.1, the object as `obj`.
#[cfg(feature = "lua")]
pub fn health(program: &str, object: &Value) -> Result<Health, Error> {
    use mlua::LuaSerdeExt as _;

    let lua = mlua::Lua::new();
    // absent fields are nil and not a null value, as from JSON
    let options = mlua::serde::SerializeOptions::new().serialize_none_to_null(false).serialize_unit_to_null(false);
    lua.globals().set("obj", lua.to_value_with(object, options)?)?;
    let answer: mlua::Value = lua.load(program).eval()?;
    Ok(lua.from_value(answer)?)
}

/// Runs `kubectl kustomize` of the lab's toolset on a folder of the samples.
pub fn kustomize(folder: &str) -> Result<Vec<Value>, Error> {
    let kubectl = root().join("target/toolset/bin/kubectl");
    let what = || format!("running {} (it comes with `make tools`)", kubectl.display());
    let output = Command::new(&kubectl).arg("kustomize").arg(samples().join(folder)).output();
    let output = output.map_err(|source| Error::Io { what: what(), source })?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Kustomize { folder: folder.into(), output });
    }
    documents(folder, &String::from_utf8_lossy(&output.stdout))
}

/// The documents of a YAML text.
pub fn documents(what: &str, text: &str) -> Result<Vec<Value>, Error> {
    let parse = |text: &str| {
        serde_saphyr::from_str::<Value>(text).map_err(|e| Error::Yaml { what: what.into(), output: e.to_string() })
    };
    let all = text.split("\n---\n").map(parse).collect::<Result<Vec<Value>, Error>>()?;
    Ok(all.into_iter().filter(|v| !v.is_null()).collect())
}
