//! Plain columns, as kubectl prints them.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

use super::style::WIDTH;

/// A table without borders, two spaces in front and between its columns.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    lines(Table::new().set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH - 2), header, rows)
}

fn lines(table: &mut Table, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table.load_style(NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| format!("  {}", line.trim_end())).collect();
    lines.join("\n") + "\n"
}

/// The same as wide as its cells are: a row is one line.
pub(super) fn wide(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    lines(Table::new().set_content_arrangement(ContentArrangement::Disabled), header, rows)
}
