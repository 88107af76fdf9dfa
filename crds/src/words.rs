//! Numbers in sentences of conditions, events and logs.

use std::fmt::Display;

/// A number with its word in singular or plural.
///
/// ```
/// use gputenancy_crds::words::counted;
///
/// assert_eq!([counted(1, "process"), counted(2, "process")], ["1 process", "2 processes"]);
/// ```
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(n: N, word: &str) -> String {
    let ending = match word {
        _ if n == N::from(1) => "",
        _ if word.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {word}{ending}")
}

/// The form of `be` for a number.
pub fn are<N: PartialEq + From<u8>>(n: &N) -> &'static str {
    if *n == N::from(1) { "is" } else { "are" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_every_other_number_plural() {
        let words = [
            counted(1_u32, "process"),
            counted(2_i64, "process"),
            counted(0_usize, "device"),
            counted(1_i32, "device"),
        ];
        assert_eq!(words, ["1 process", "2 processes", "0 devices", "1 device"]);
        assert_eq!((are(&1_i32), are(&0_usize)), ("is", "are"));
    }
}
