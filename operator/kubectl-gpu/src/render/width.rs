//! How wide the text may be.

use std::sync::OnceLock;

use terminal_size::{Width as Columns, terminal_size_of};

/// Characters in a line of a sentence where nothing says how wide the output is.
const TEXT: u16 = 100;
/// A narrower output gets lines of this many characters: columns of single letters help no reader.
const MIN: u16 = 40;

/// Set once, at the start of the program.
static WIDTH: OnceLock<Option<u16>> = OnceLock::new();

/// Takes the width from the variable COLUMNS, or else from the terminal behind standard output.
pub fn set(columns: Option<&str>) {
    let terminal = || terminal_size_of(std::io::stdout()).map(|(Columns(width), _)| width);
    let width = columns.and_then(|text| text.trim().parse().ok()).filter(|width| *width > 0).or_else(terminal);
    // a second call would be a mistake of this program without a consequence
    let _ = WIDTH.set(width.map(|width| width.max(MIN)));
}

/// Characters in a line, if the output has a width.
fn known() -> Option<u16> {
    WIDTH.get().copied().flatten()
}

/// Characters in a line of a sentence.
pub(super) fn text() -> u16 {
    known().map_or(TEXT, |width| width.min(TEXT))
}

/// Characters in a row of a table whose rows are one line each, such as for `grep`, where nothing limits them.
pub(super) fn row() -> Option<u16> {
    known()
}
