//! Plain columns, as kubectl prints them.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

use super::style::WIDTH;

/// A table without borders, two spaces in front and between its columns.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH - 2);
    table.set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| format!("  {}", line.trim_end())).collect();
    lines.join("\n") + "\n"
}
