//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

/// Lowercase, two for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // writing into a String never fails
        let _ = write!(text, "{byte:02x}");
        text
    })
}
