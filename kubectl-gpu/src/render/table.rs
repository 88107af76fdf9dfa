//! Plain columns, as kubectl prints them.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

use super::width;

/// Spaces in front of each line.
const INDENT: u16 = 2;

/// A table without borders, two spaces in front and between its columns.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    lines(
        Table::new()
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width::text().saturating_sub(INDENT)),
        header,
        rows,
    )
}

fn lines(table: &mut Table, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table.load_style(NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| format!("  {}", line.trim_end())).collect();
    lines.join("\n") + "\n"
}

/// The same as wide as its cells are: a row is one line, unless the output is narrower.
pub(super) fn wide(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    match width::row() {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.saturating_sub(INDENT))
        }
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    lines(&mut table, header, rows)
}
