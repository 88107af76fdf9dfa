//! Mistakes in the input, each with its place.

use std::{fmt, io};

/// One mistake.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The text is not YAML.
    #[error("{file}:{line}: {what}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// A field of an object is wrong.
    #[error("{file}:{line}: {object}: {field}: {what}")]
    Field {
        /// The file.
        file: String,
        /// Line of the field, from 1.
        line: u64,
        /// Kind and name.
        object: String,
        /// Path of the field, such as `spec.gpus[0].count`.
        field: String,
        /// What is wrong.
        what: String,
    },
}

/// All mistakes, a line for each; never empty.
#[derive(Debug, Default, thiserror::Error)]
pub struct InputErrors(pub Vec<InputError>);

impl fmt::Display for InputErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl From<InputError> for InputErrors {
    fn from(error: InputError) -> Self {
        Self(vec![error])
    }
}
