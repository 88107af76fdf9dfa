//! A mistake in a file, with its place.

use std::{error::Error, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mistake.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Line of the field, from 1.
    pub line: u64,
    /// Kind and name.
    pub object: String,
    /// Path of the field, such as `spec.gpus[0].count`.
    pub field: String,
    /// What is wrong, and what to write.
    pub message: String,
}

/// In the form of compilers, so that editors find the place.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        for part in [&self.object, &self.field].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// One error with a line for each mistake, or else the value.
pub(super) fn ok_unless<T>(mistakes: &[impl fmt::Display], value: T) -> Result<T, Box<dyn Error>> {
    if mistakes.is_empty() {
        return Ok(value);
    }
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    Err(lines.join("\n").into())
}
