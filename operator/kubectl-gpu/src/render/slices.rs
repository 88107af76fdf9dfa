//! The slices of each GPU as a bar to scale, in characters that every terminal has.

use anstyle::Style;

use super::{
    style::{GREEN, RED, YELLOW, heading, styled, wrapped},
    width,
};
use crate::{
    status::{FleetStatus, SliceBar, SlicePart, SliceState, StateWeight},
    units::counted,
};

const LEGEND: &str = "# used, . free, x withdrawn, - stranded, ~ unmanaged; a part without a name has no device";
/// Spaces in front of each line.
const INDENT: usize = 2;
/// Spaces between the name of a GPU, its bar and the note.
const BETWEEN: usize = 2;
/// Spaces in front of a bar below the name of its GPU.
const BELOW: usize = 4;
/// Characters of a bar: eight for each of eight slices; the last one ends the slice.
const WIDE: usize = 64;
/// Fewest characters of a bar next to the name of its GPU: eight slices have room for their names.
const ENOUGH: usize = 40;
/// Fewest characters of a bar.
const NARROW: usize = 24;

/// The bars of all GPUs, with a legend.
pub(super) fn slices(report: &FleetStatus, text: &mut String) {
    let gpus = report
        .nodes
        .iter()
        .flat_map(|node| node.gpus.iter().map(move |gpu| (format!("{} GPU {}", node.node, gpu.gpu), &gpu.slices)));
    let gpus: Vec<(String, &SliceBar)> = gpus.collect();
    if !gpus.is_empty() {
        text.push('\n');
        heading(text, "Slices");
        wrapped(text, INDENT, "", LEGEND);
        text.push_str(&lines(&gpus, width::row().map(usize::from)));
    }
}

/// A line for each GPU. `limit`: characters in a line of the output.
fn lines(gpus: &[(String, &SliceBar)], limit: Option<usize>) -> String {
    let longest = gpus.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let next_to_name = INDENT + longest + BETWEEN;
    let below = limit.is_some_and(|limit| limit < next_to_name + ENOUGH + 1);
    let column = if below { BELOW } else { next_to_name };
    let cells = limit.map_or(WIDE, |limit| limit.saturating_sub(column + 1).clamp(NARROW, WIDE));
    let [indent, between, next_line] = [" ".repeat(INDENT), " ".repeat(BETWEEN), format!("\n{}", " ".repeat(BELOW))];
    let mut text = String::new();
    for (name, bar) in gpus {
        let padding = " ".repeat(longest - name.chars().count());
        let space = if below { next_line.clone() } else { padding + &between };
        text.push_str(&format!("{indent}{name}{space}{}", drawn(bar, cells)));
        if bar.stranded_compute_slices > 0 {
            let note = format!("{} stranded", counted(bar.stranded_compute_slices, "compute slice"));
            let fits = limit.is_none_or(|limit| column + cells + 1 + BETWEEN + note.len() <= limit);
            text.push_str(if fits { &between } else { &next_line });
            text.push_str(&styled(YELLOW, &note));
        }
        text.push('\n');
    }
    text
}

/// A bar between brackets. It is one character longer than `cells` in every layout: each part ends with one.
fn drawn(bar: &SliceBar, cells: usize) -> String {
    let total = usize::try_from(bar.total).unwrap_or(0).max(1);
    let (mut text, mut slices, mut from) = ("[".to_owned(), 0, 0);
    for part in &bar.parts {
        slices += usize::try_from(part.slices).unwrap_or(0);
        let to = (slices * cells / total).min(cells);
        if to > from {
            if from > 0 {
                text.push('|');
            }
            text.push_str(&filled(part, to - from - 1));
            from = to;
        }
    }
    text + "]"
}

/// A part in so many characters: its name if there is room for it, then its states to scale.
fn filled(part: &SlicePart, width: usize) -> String {
    let name = part.device.as_deref().and_then(short).filter(|name| name.len() < width).unwrap_or_default();
    let room = width - name.len();
    let weight = |state: &StateWeight| usize::try_from(state.weight).unwrap_or(0);
    let total = part.states.iter().map(weight).sum::<usize>().max(1);
    let (mut text, mut left, mut further) = (name, room, part.states.len());
    for state in &part.states {
        further = further.saturating_sub(1);
        // each state has a character, and the last one what is left
        let share = (room * weight(state) + total / 2) / total;
        let cells = if further == 0 { left } else { share.max(1).min(left.saturating_sub(further)) };
        left -= cells;
        let (mark, style) = look(state.state);
        if cells > 0 {
            text.push_str(&styled(style, &mark.repeat(cells)));
        }
    }
    text
}

/// The name of a device in few characters: `1g:` of `1g.10gb`, `whole:` of `whole GPU`.
fn short(device: &str) -> Option<String> {
    let letters = device.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-');
    Some(letters.collect::<String>()).filter(|name| !name.is_empty()).map(|name| name + ":")
}

fn look(state: SliceState) -> (&'static str, Style) {
    match state {
        SliceState::Used => ("#", Style::new()),
        SliceState::Free => (".", GREEN),
        SliceState::Withdrawn => ("x", RED),
        SliceState::Stranded => ("-", YELLOW),
        SliceState::Unmanaged => ("~", Style::new()),
    }
}

#[cfg(test)]
mod tests {
    use SliceState::{Free, Stranded, Unmanaged, Used, Withdrawn};

    use super::*;

    fn part(device: Option<&str>, slices: i32, states: &[(SliceState, i32)]) -> SlicePart {
        let states = states.iter().map(|(state, weight)| StateWeight { state: *state, weight: *weight });
        SlicePart { device: device.map(str::to_owned), slices, states: states.collect() }
    }

    fn bar(parts: Vec<SlicePart>, stranded_compute_slices: i32) -> SliceBar {
        SliceBar { total: parts.iter().map(|part| part.slices).sum(), parts, stranded_compute_slices }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn bar_is_drawn_to_scale() {
        let mixed = vec![
            part(Some("1g.10gb"), 1, &[(Used, 1)]),
            part(Some("1g.10gb+me"), 1, &[(Free, 1)]),
            part(Some("2g.20gb"), 2, &[(Withdrawn, 1)]),
            part(None, 2, &[(Free, 1)]),
            part(None, 2, &[(Stranded, 1)]),
        ];
        let shared = vec![part(Some("3g.40gb"), 4, &[(Used, 1), (Free, 3)]), part(None, 4, &[(Stranded, 1)])];
        let cases = [
            (mixed, "[1g:####|1g:....|2g:xxxxxxxxxxxx|...............|---------------]"),
            (shared, "[3g:#######.....................|-------------------------------]"),
            (
                vec![part(Some("whole GPU"), 8, &[(Unmanaged, 1)])],
                "[whole:~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~]",
            ),
            (
                vec![part(Some("MPS shares"), 8, &[(Used, 30), (Free, 30), (Withdrawn, 30), (Stranded, 10)])],
                "[MPS:##################..................xxxxxxxxxxxxxxxxxx-----]",
            ),
            // a state with a small part has a character too
            (
                vec![part(Some("time-slices"), 1, &[(Used, 1), (Free, 127)])],
                "[time-slices:#..................................................]",
            ),
        ];
        for (parts, expected) in cases {
            assert_eq!(plain(&drawn(&bar(parts, 0), WIDE)), expected);
        }
    }

    #[test]
    fn bars_of_a_board_have_the_same_width_in_every_layout() {
        for (total, cells) in [(1_i32, WIDE), (4, WIDE), (7, WIDE), (8, WIDE), (8, NARROW), (12, NARROW), (12, 43)] {
            // each bit ends a part after its slice
            for ends in 0..1_u32 << (total - 1) {
                let mut parts: Vec<SlicePart> = vec![part(Some("1g.10gb"), 1, &[(Used, 2), (Free, 1)])];
                for slice in 0..total - 1 {
                    match parts.last_mut().filter(|_| ends & (1_u32 << slice) == 0) {
                        Some(last) => last.slices += 1,
                        None => parts.push(part(None, 1, &[(Stranded, 1)])),
                    }
                }
                let bar = bar(parts, 0);
                let text = plain(&drawn(&bar, cells));
                assert_eq!((bar.total, text.len()), (total, cells + 1), "{text}");
                assert_eq!(text.matches('|').count() + 1, bar.parts.len(), "{text}");
            }
        }
    }

    #[test]
    fn bar_is_below_its_name_where_the_line_is_too_short_for_both() {
        let halves = || vec![part(Some("3g.40gb"), 4, &[(Used, 1)]), part(Some("3g.40gb"), 4, &[(Free, 1)])];
        let (first, second) = (bar(halves(), 1), bar(halves(), 0));
        let gpus = [("n1 GPU 0".to_owned(), &first), ("n10 GPU 1".to_owned(), &second)];
        let wide = "  n1 GPU 0   [3g:############################|3g:............................]  1 compute slice stranded\n  n10 GPU 1  [3g:############################|3g:............................]\n";
        assert_eq!(plain(&lines(&gpus, None)), wide);
        let narrow = "  n1 GPU 0   [3g:###################|3g:...................]\n    1 compute slice stranded\n  n10 GPU 1  [3g:###################|3g:...................]\n";
        assert_eq!(plain(&lines(&gpus, Some(60))), narrow);
        let below = "  n1 GPU 0\n    [3g:##############|3g:..............]\n    1 compute slice stranded\n  n10 GPU 1\n    [3g:##############|3g:..............]\n";
        assert_eq!(plain(&lines(&gpus, Some(41))), below);
    }

    #[test]
    fn name_of_others_takes_no_more_room_than_its_part() {
        let cases =
            [("1g\u{1b}[2J", "1g:####"), ("a-very-long-name", "#######"), ("", "#######"), ("\u{202e}", "#######")];
        for (name, expected) in cases {
            assert_eq!(plain(&filled(&part(Some(name), 1, &[(Used, 1)]), 7)), expected);
        }
    }
}
