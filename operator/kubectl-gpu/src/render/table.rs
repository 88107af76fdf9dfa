//! Plain columns, as kubectl prints them. No word is cut: where the columns do not fit, each row becomes a block of lines.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets::NOTHING};
use textwrap::{Options, WordSplitter};

use super::width;

/// Spaces in front of each line.
const INDENT: u16 = 2;
/// Spaces between columns.
const BETWEEN: u16 = 2;

/// A table without borders, two spaces in front and between its columns.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    lines(header, &rows.into_iter().collect::<Vec<_>>(), Some(width::text()), width::row())
}

/// The same as wide as its cells are: a row is one line, unless the output is narrower.
pub(super) fn wide(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let width = width::row();
    lines(header, &rows.into_iter().collect::<Vec<_>>(), width, width)
}

/// `wanted`: characters that lines should have; `limit`: what the output has.
fn lines(header: &[&str], rows: &[Vec<String>], wanted: Option<u16>, limit: Option<u16>) -> String {
    let least: Vec<u16> = (0..header.len()).map(|column| longest_word(header, rows, column)).collect();
    let needed = least.iter().fold(INDENT, |sum, word| sum.saturating_add(*word).saturating_add(BETWEEN)) - BETWEEN;
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        return stacked(header, rows, limit);
    }
    let mut table = Table::new();
    match wanted {
        Some(width) => table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width.max(needed).saturating_sub(INDENT) + BETWEEN),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table.load_style(NOTHING).set_header(header).add_rows(rows);
    for (column, least) in table.column_iter_mut().zip(least) {
        column.set_padding((0, BETWEEN)).set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least + BETWEEN)));
    }
    let lines: Vec<String> = table.lines().map(|line| format!("  {}", line.trim_end())).collect();
    lines.join("\n") + "\n"
}

/// Characters of the longest word of a column.
fn longest_word(header: &[&str], rows: &[Vec<String>], column: usize) -> u16 {
    let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
    let words = cells.chain(header.get(column).copied()).flat_map(str::split_whitespace);
    words.map(|word| u16::try_from(word.chars().count()).unwrap_or(u16::MAX)).max().unwrap_or_default()
}

/// A line for each cell with the name of its column; the first begins the row.
pub(super) fn stacked(header: &[&str], rows: &[Vec<String>], width: u16) -> String {
    let mut text = String::new();
    for row in rows {
        let cells = header.iter().zip(row).enumerate().filter(|(column, (_, cell))| *column == 0 || !cell.is_empty());
        for (column, (name, cell)) in cells {
            let indent = if column == 0 { "  " } else { "    " };
            let options = Options::new(width.into()).initial_indent(indent).subsequent_indent("      ");
            let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
            text.push_str(&textwrap::fill(&format!("{name}: {cell}"), options));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(wanted: Option<u16>, limit: Option<u16>) -> String {
        let row = |words: [&str; 3]| words.map(str::to_owned).to_vec();
        let rows = [
            row(["inference", "nvidia.com/mig-1g.10gb", "waits for a window that opens on Saturday"]),
            row(["b", "", "x"]),
        ];
        lines(&["POOL", "RESOURCE", "NOTE"], &rows, wanted, limit)
    }

    #[test]
    fn columns_become_narrower_and_no_word_is_cut() {
        let plain = shown(None, None);
        assert_eq!(plain.lines().count(), 3, "{plain}");
        for width in [80, 60] {
            let text = shown(Some(width), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{text}");
            assert!(text.starts_with("  POOL") && text.contains(" nvidia.com/mig-1g.10gb "), "{text}");
        }
    }

    #[test]
    fn rows_become_blocks_where_the_columns_do_not_fit() {
        let expected = "  POOL: inference\n    RESOURCE: nvidia.com/mig-1g.10gb\n    NOTE: waits for a window that opens\n      on Saturday\n  POOL: b\n    NOTE: x\n";
        assert_eq!(shown(Some(40), Some(40)), expected);
    }
}
