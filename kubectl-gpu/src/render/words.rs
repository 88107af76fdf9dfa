//! Numbers and colours as people read them.

use anstyle::{AnsiColor, Style};

/// Headings.
pub(super) const BOLD: Style = Style::new().bold();
/// What is created, and what is well.
pub(super) const GREEN: Style = AnsiColor::Green.on_default();
/// What goes.
pub(super) const RED: Style = AnsiColor::Red.on_default();
/// What is waited for.
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// A text in a style; the stream takes the style away where nobody would see it.
pub(super) fn styled(style: Style, text: &str) -> String {
    format!("{}{text}{}", style.render(), style.render_reset())
}

/// Seconds as `45s`, `2m30s`, `1h5m`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ if seconds % 3600 < 60 => format!("{}h", seconds / 3600),
        _ => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A number and its word: `1 pod`, `2 pods`.
pub(super) fn counted(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

/// A text in lines of at most so many characters, broken between words.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        let all: Vec<String> = [0, 59, 60, 61, 3599, 3600, 3659, 3661, 90_000].map(span).into();
        assert_eq!(all, ["0s", "59s", "1m", "1m1s", "59m59s", "1h", "1h", "1h1m", "25h"]);
    }

    #[test]
    fn lines_break_between_words_and_a_long_word_has_its_own() {
        assert_eq!(wrapped("aa bb cccccc d", 5), ["aa bb", "cccccc", "d"]);
    }
}
