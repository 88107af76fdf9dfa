//! Findings as text: a line for each in the form of compilers, so that editors find the place.

use std::fmt::Write as _;

use super::words::{GREEN, RED, counted, styled};
use crate::lint::LintReport;

/// The whole report.
pub fn lint(report: &LintReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
        let object = if finding.object.is_empty() { String::new() } else { format!("{}: ", finding.object) };
        let _ = writeln!(text, "{}:{}: {object}{field}{}", finding.file, finding.line, finding.message);
    }
    if !report.not_checked.is_empty() {
        let _ = writeln!(text, "Not checked:");
    }
    for what in &report.not_checked {
        let _ = writeln!(text, "  - {what}");
    }
    let outcome = match report.findings.len() {
        0 => styled(GREEN, "nothing found"),
        n => styled(RED, &format!("{} found", counted(n, "mistake"))),
    };
    let _ = writeln!(text, "{}: {outcome}", counted(report.documents, "document"));
    text
}
