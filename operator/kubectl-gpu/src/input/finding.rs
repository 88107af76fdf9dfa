//! A mistake in a file, with its place.

use std::fmt;

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

impl Finding {
    /// Is another finding about the same field of the same object, or about a part of it?
    pub fn covers(&self, other: &Self) -> bool {
        let below =
            other.field.strip_prefix(&self.field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        self.file == other.file && self.object == other.object && !self.field.is_empty() && below
    }
}

/// In the form of compilers, so that editors find the place.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", in_one_line(&self.file), self.line)?;
        for part in [&self.object, &self.field].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{}: ", in_one_line(part))?;
        }
        f.write_str(&in_one_line(&self.message))
    }
}

/// A text of a manifest in one line. Its author could otherwise write whole lines of the output, and runners of CI obey lines such as
/// `::stop-commands::`.
fn in_one_line(text: &str) -> String {
    let character = |c: char| match c {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(character).collect()
}

/// The text of these errors, a line for each.
pub(super) fn lines(errors: &[impl fmt::Display]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_line_breaks_writes_no_line_of_its_own() {
        let object = "Pod x\n::stop-commands::abc\r\n3 documents: \u{1b}[32mnothing found".to_owned();
        let finding =
            Finding { file: "a.yaml".into(), line: 1, object, field: "spec".into(), message: "wrong\u{2028}x".into() };
        let shown = finding.to_string();
        assert_eq!(shown.lines().count(), 1);
        assert!(
            shown.starts_with("a.yaml:1: Pod x ::stop-commands::abc") && !shown.contains(['\u{1b}', '\u{2028}']),
            "{shown}"
        );
    }
}
