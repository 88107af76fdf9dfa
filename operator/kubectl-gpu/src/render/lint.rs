//! Findings as text.

use std::fmt::Write as _;

use super::style::{GREEN, RED, styled};
use crate::{lint::LintReport, units::counted};

/// The whole report.
pub fn lint(report: &LintReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(text, "{finding}");
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
