//! The catalog as a Markdown page, to be published by a platform team.

use std::fmt::Write as _;

use super::catalog::{OVERVIEW, facts, overview};
use crate::catalog::{Catalog, CatalogEntry};

/// The whole page.
pub fn catalog_page(catalog: &Catalog) -> String {
    let mut page = "# GPU catalog\n\nA pod requests one of these resources in `resources.limits`.\n\n".to_owned();
    let header = OVERVIEW.map(str::to_lowercase).join(" | ");
    let _ = writeln!(page, "| {header} |\n|{}", "---|".repeat(OVERVIEW.len()));
    for entry in &catalog.entries {
        let _ = writeln!(page, "| {} |", overview(entry).join(" | "));
    }
    page.push_str("\nA tenant's trust decides which profiles it may use:\n\n| trust | profiles |\n|---|---|\n");
    for level in &catalog.trust {
        let names = if level.profiles.is_empty() { "none".to_owned() } else { level.profiles.join(", ") };
        let _ = writeln!(page, "| {} | {names} |", level.trust);
    }
    catalog.entries.iter().for_each(|e| entry(e, &mut page));
    if !catalog.not_visible.is_empty() {
        let _ = writeln!(page, "\nThis page was made without the right to read: {}.", catalog.not_visible.join("; "));
    }
    page
}

fn entry(entry: &CatalogEntry, page: &mut String) {
    let _ = writeln!(page, "\n## {}\n\nOne device is {}.\n", entry.profile, entry.device);
    for (name, value) in facts(entry) {
        let _ = writeln!(page, "- {name}: {}", plain(&value));
    }
    let _ = writeln!(page, "\nIsolation: {}.\n", entry.isolation);
    if entry.isolated.is_empty() {
        page.push_str("- isolated: nothing\n");
    }
    for (name, sentences) in [("isolated", &entry.isolated), ("**not isolated**", &entry.not_isolated)] {
        for sentence in sentences {
            let _ = writeln!(page, "- {name}: {}", plain(sentence));
        }
    }
    let (expected, incident) = (plain(&entry.expected), plain(&entry.incident));
    let _ = writeln!(page, "\nContract:\n\n- expected: {expected}\n- incident: {incident}");
    let _ = writeln!(page, "\nPod to copy:\n\n```yaml\n{}```", entry.pod_template);
    page.push_str("\nIf it does not start:\n\n");
    for line in &entry.pending {
        let _ = writeln!(page, "- {line}");
    }
}

/// A text of an object in one line, without the start of an HTML tag.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('<', "&lt;")
}
