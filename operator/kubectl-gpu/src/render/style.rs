//! Styles and wrapped sentences.

use anstyle::{AnsiColor, Style};
use textwrap::{Options, WordSplitter};

use super::width;

/// Headings.
pub(super) const BOLD: Style = Style::new().bold();
/// Created, or in order.
pub(super) const GREEN: Style = AnsiColor::Green.on_default();
/// Removed, or wrong.
pub(super) const RED: Style = AnsiColor::Red.on_default();
/// Waiting, or changed.
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// A text in a style; the stream strips it where there is no terminal.
pub(super) fn styled(style: Style, text: &str) -> String {
    format!("{}{text}{}", style.render(), style.render_reset())
}

/// The codes of the styles above, and of their end.
const STYLES: [&str; 5] = ["0", "1", "31", "32", "33"];

/// The text without what a terminal would obey, except this program's styles, and without characters that hide or reorder others: teams write
/// events, names and annotations.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let style = || {
            let rest = text.get(at + 1..).and_then(|rest| rest.strip_prefix('['));
            rest.and_then(|rest| rest.split_once('m')).is_some_and(|(codes, _)| STYLES.contains(&codes))
        };
        let obeyed = character.is_control() && character != '\n' && !(character == '\u{1b}' && style());
        shown.push(if obeyed || is_invisible(character) { char::REPLACEMENT_CHARACTER } else { character });
    }
    shown
}

/// Of no width, empty, or changes the direction or the lines of the text: Unicode's formats, separators and fillers.
pub(super) fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e007f}'
    )
}

pub(super) fn heading(text: &mut String, words: &str) {
    text.push_str(&format!("{}\n", styled(BOLD, words)));
}

/// A sentence with a mark in front, in as many lines as it needs.
pub(super) fn wrapped(text: &mut String, indent: usize, mark: &str, words: &str) {
    let first = format!("{}{mark}", " ".repeat(indent));
    let next = " ".repeat(first.chars().count());
    let options = Options::new(width::text().into()).initial_indent(&first).subsequent_indent(&next);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    // line breaks of an API server's message do not count
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    text.push_str(&format!("{}\n", textwrap::fill(&words, options)));
}

/// What the user may not read.
pub(super) fn hidden(text: &mut String, not_visible: &[String]) {
    if !not_visible.is_empty() {
        text.push('\n');
        heading(text, "Not visible to you");
        for what in not_visible {
            wrapped(text, 2, "- ", what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_no_cursor_and_sets_no_title() {
        let shown = printable(&format!("{} \u{1b}[2J\u{1b}]0;owned\u{7}\r\n\u{9b}", styled(RED, "gone")));
        assert_eq!(shown, format!("{} \u{fffd}[2J\u{fffd}]0;owned\u{fffd}\u{fffd}\n\u{fffd}", styled(RED, "gone")));
    }

    #[test]
    fn text_of_others_hides_and_reorders_nothing() {
        for hidden in [
            "\u{1b}[8m",
            "\u{1b}[30;40m",
            "\u{202e}",
            "\u{200b}",
            "\u{2066}",
            "\u{61c}",
            "\u{2028}",
            "\u{2800}",
            "\u{e0041}",
        ] {
            let shown = printable(&format!("quota{hidden}exceeded"));
            assert!(!shown.contains(hidden) && shown.starts_with("quota\u{fffd}"), "{shown:?}");
        }
        let ours = [BOLD, GREEN, RED, YELLOW].map(|style| styled(style, "ä → b"));
        assert_eq!(ours.each_ref().map(|text| printable(text)), ours);
    }
}
