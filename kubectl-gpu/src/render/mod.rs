//! Results as text: tables, JSON and YAML.

mod changes;
mod lint;
mod plan;
mod table;
mod tenant;
mod words;

pub use changes::{beginning, changes, line};
pub use lint::lint;
pub use plan::plan;
use serde::Serialize;
pub use tenant::tenant;

use crate::args::Output;

/// Why a result cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// As JSON.
    #[error("writing JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// As YAML.
    #[error("writing YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// A result as one document or as a table.
pub fn document(
    result: &impl Serialize,
    output: Output,
    table: impl FnOnce() -> String,
) -> Result<String, RenderError> {
    Ok(match output {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(result)? + "\n",
        Output::Yaml => serde_saphyr::to_string(result)?,
    })
}
