//! Results as text: tables, JSON and YAML.

mod catalog;
mod catalog_page;
mod changes;
mod lint;
mod plan;
mod status;
mod style;
mod table;
mod tenant;
pub mod width;

pub use catalog::catalog;
pub use catalog_page::catalog_page;
pub use changes::{change_line, changes, reason_line};
pub use lint::lint;
pub use plan::plan;
use serde::Serialize;
pub use status::status;
pub use tenant::tenant;

use crate::args::Output;

/// A result as one document or as a table.
pub fn document(result: &impl Serialize, output: Output, table: impl FnOnce() -> String) -> Result<String, String> {
    match output {
        Output::Table => Ok(style::printable(&table())),
        Output::Json => serde_json::to_string_pretty(result).map(|json| json + "\n").map_err(|e| e.to_string()),
        Output::Yaml => serde_saphyr::to_string(result).map_err(|e| e.to_string()),
    }
    .map_err(|error| format!("writing {output:?}: {error}"))
}
