//! The table of `kubectl gpu top` in a narrow output: columns are dropped and names are shortened, so that a row stays a line. Only the last column,
//! the note, is wrapped.

use std::{borrow::Cow, iter};

use textwrap::{Options, WordSplitter};

use super::style::{YELLOW, styled};

/// Spaces in front of each line.
const INDENT: usize = 2;
/// Spaces between columns.
const BETWEEN: usize = 2;
/// Characters of a line of the note.
const NOTE: usize = 14;
/// Columns that are shortened, one after the other, each with the characters that are left.
const SHORTENED: [(&str, usize); 7] =
    [("DEVICE", 16), ("POD", 24), ("TREND", 10), ("TENANT", 12), ("DEVICE", 10), ("POD", 16), ("TENANT", 8)];

/// The table as wide as its cells are.
pub(super) fn whole(header: &[&str], rows: &[Vec<String>]) -> String {
    Grid::new(header, rows, &[]).text(None)
}

/// The table in at most `width` characters; `None` where the narrowest one does not fit.
pub(super) fn fitted(header: &[&str], rows: &[Vec<String>], width: usize) -> Option<String> {
    let attempts: [(&[&str], bool); 4] =
        [(&[], false), (&["SOURCE"], false), (&["SOURCE", "MODE"], true), (&["SOURCE", "MODE", "TREND"], true)];
    attempts.into_iter().find_map(|(dropped, shortened)| {
        let mut grid = Grid::new(header, rows, dropped);
        if shortened {
            grid.shorten(width);
        }
        (grid.needed() <= width).then(|| grid.text(Some(width)))
    })
}

/// The columns that are shown.
struct Grid {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    fn new(header: &[&str], rows: &[Vec<String>], dropped: &[&str]) -> Self {
        let kept = |row: &Vec<String>| -> Vec<String> {
            let cells = header.iter().zip(row).filter(|(name, _)| !dropped.contains(name));
            cells.map(|(_, cell)| cell.clone()).collect()
        };
        let names = header.iter().filter(|name| !dropped.contains(name));
        Self { header: names.map(|name| (*name).to_owned()).collect(), rows: rows.iter().map(kept).collect() }
    }

    /// Characters of each column; of the last one those that it has at least.
    fn widths(&self) -> Vec<usize> {
        (0..self.header.len()).map(|column| self.width(column)).collect()
    }

    fn width(&self, column: usize) -> usize {
        let all = iter::once(&self.header).chain(&self.rows);
        let cells: Vec<&str> = all.filter_map(|row| row.get(column)).map(String::as_str).collect();
        let longest = cells.iter().copied().map(length).max().unwrap_or_default();
        if column + 1 < self.header.len() {
            return longest;
        }
        let words = cells.iter().copied().flat_map(str::split_whitespace);
        words.map(length).max().unwrap_or_default().max(longest.min(NOTE))
    }

    /// Characters of the narrowest line.
    fn needed(&self) -> usize {
        let widths = self.widths();
        INDENT + widths.iter().sum::<usize>() + BETWEEN * widths.len().saturating_sub(1)
    }

    /// Shortens names until a line fits, or nothing more can be shortened.
    fn shorten(&mut self, width: usize) {
        for (name, least) in SHORTENED {
            let excess = self.needed().saturating_sub(width);
            let Some(column) = self.header.iter().position(|header| header == name) else { continue };
            let present = self.widths().get(column).copied().unwrap_or_default();
            let most = least.max(present.saturating_sub(excess));
            if most >= present {
                continue;
            }
            for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(column)) {
                *cell = match name {
                    "DEVICE" => device(cell, most),
                    "TREND" => last(cell, most),
                    _ => middle(cell, most),
                };
            }
        }
    }

    fn text(&self, width: Option<usize>) -> String {
        let mut widths = self.widths();
        widths.pop();
        let before = INDENT + widths.iter().map(|width| width + BETWEEN).sum::<usize>();
        let line = |row: &Vec<String>, style: &dyn Fn(&str) -> String| {
            let cells = row.iter().zip(&widths).map(|(cell, wide)| format!("{cell:<0$}", wide + BETWEEN));
            let first = " ".repeat(INDENT) + &cells.collect::<Vec<_>>().concat();
            let note = row.last().map(String::as_str).unwrap_or_default();
            let lines = note_lines(note, width.map(|width| width.saturating_sub(before)));
            let mut text = String::new();
            for (at, note) in lines.iter().enumerate() {
                let start = if at == 0 { first.clone() } else { " ".repeat(before) };
                let line = if note.is_empty() { start } else { format!("{start}{}", style(note)) };
                text.push_str(line.trim_end());
                text.push('\n');
            }
            text
        };
        let rows = self.rows.iter().map(|row| line(row, &|note: &str| styled(YELLOW, note)));
        line(&self.header, &str::to_owned) + &rows.collect::<String>()
    }
}

/// Lines of a note, at least one.
fn note_lines(note: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return vec![note.to_owned()] };
    let options = Options::new(width).break_words(false).word_splitter(WordSplitter::NoHyphenation);
    let lines: Vec<String> = textwrap::wrap(note, options).into_iter().map(Cow::into_owned).collect();
    if lines.is_empty() { vec![String::new()] } else { lines }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// A text of at most so many characters, without those in its middle.
fn middle(text: &str, most: usize) -> String {
    if length(text) <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let end = kept / 2;
    let start: String = text.chars().take(kept - end).collect();
    format!("{start}…{}", last(text, end))
}

/// The last characters of a text.
fn last(text: &str, most: usize) -> String {
    text.chars().skip(length(text).saturating_sub(most)).collect()
}

/// Node, GPU and resource in at most so many characters: the resource is shortened first, and the GPU is kept.
fn device(text: &str, most: usize) -> String {
    /// Of a shorter resource nothing can be recognized.
    const RESOURCE: usize = 6;
    let Some((place, resource)) = text.split_once(' ') else { return middle(text, most) };
    match most.checked_sub(length(place) + 1) {
        Some(left) if left >= RESOURCE => format!("{place} {}", middle(resource, left)),
        _ => middle(place, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_shortened_in_its_middle_and_a_device_keeps_its_gpu() {
        assert_eq!(middle("a-dev/notebook", 14), "a-dev/notebook");
        assert_eq!(middle("a-dev/notebook", 9), "a-de…book");
        assert_eq!(device("gpu-1/1:7 nvidia.com/mig-1g.10gb", 21), "gpu-1/1:7 nvidi….10gb");
        assert_eq!(device("gpu-1/1:7 nvidia.com/mig-1g.10gb", 12), "gpu-1/1:7");
        assert_eq!(device("ip-10-0-17-3/12:7 nvidia.com/gpu", 10), "ip-10…12:7");
    }
}
