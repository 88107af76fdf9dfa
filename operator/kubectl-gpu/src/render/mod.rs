//! Results as text: tables, JSON and YAML.

mod catalog;
mod catalog_page;
mod changes;
mod fit;
mod lint;
mod plan;
mod queue;
mod slices;
mod status;
mod style;
mod table;
mod tenant;
mod top;
pub mod width;

pub use catalog::catalog;
pub use catalog_page::catalog_page;
pub use changes::{change_line, changes, reason_line};
pub use lint::lint;
pub use plan::plan;
use serde::Serialize;
pub use status::status;
pub use tenant::tenant;
pub use top::{top, trend_key};

use crate::args::Output;

/// JSON without characters that a terminal would obey or hide; serde escapes those below U+0020.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character != '\n' && (character.is_control() || style::is_invisible(character)) {
            let mut units = [0; 2];
            text.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(character);
        }
    }
    text
}

/// Why a result cannot be written as a document.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// As JSON.
    #[error("writing Json: {0}")]
    Json(#[from] serde_json::Error),
    /// As YAML.
    #[error("writing Yaml: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
}

/// A result as one document or as a table.
pub fn document(
    result: &impl Serialize,
    output: Output,
    table: impl FnOnce() -> String,
) -> Result<String, RenderError> {
    Ok(match output {
        Output::Table => style::printable(&table()),
        Output::Json => escaped(&serde_json::to_string_pretty(result)?) + "\n",
        Output::Yaml => serde_saphyr::to_string(result)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_others_texts_has_no_character_that_a_terminal_obeys_and_the_same_content() {
        let texts = ["a\u{9b}2Jb\u{1b}[31m", "c\u{202e}d", "e\u{e0041}f", "ä → b\nc"];
        let json = document(&texts, Output::Json, String::new).unwrap();
        assert!(!json.contains(|c: char| c != '\n' && c.is_control() || style::is_invisible(c)), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), texts);
        assert!(json.contains("ä → b"), "{json}");
    }
}
