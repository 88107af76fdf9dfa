//! Registry keys of the driver, as its library needs them: also inside a container, which does not see the module's parameters.

use std::fs;
use std::path::Path;

/// Name of the file in the state folder, with the keys alone.
pub const FILE: &str = "registry";
/// Key that lets freed memory stay as it is.
const DISABLE: &str = "RMDisableScrubOnFree";

/// The driver overwrites memory that a process has freed, before another process gets it; also without the file.
pub fn scrubs(dir: &Path) -> bool {
    !fs::read_to_string(dir.join(FILE)).is_ok_and(|keys| keys.split(';').any(disables))
}

fn disables(setting: &str) -> bool {
    let Some((key, value)) = setting.split_once('=') else { return false };
    let value = value.trim().to_ascii_lowercase();
    let number = value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u32::from_str_radix(hex, 16));
    key.trim().eq_ignore_ascii_case(DISABLE) && number.is_ok_and(|number| number != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends there")]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_that_disables_scrubbing_does_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(scrubs(folder.path()), "without the file");
        for (keys, scrubbed) in [
            ("", true),
            ("PowerMizerEnable=0x1;RMDisableScrubOnFree=0", true),
            ("xRMDisableScrubOnFree=1", true),
            ("RMDisableScrubOnFree=1", false),
            ("A=1; rmdisablescrubonfree = 0x1", false),
        ] {
            fs::write(folder.path().join(FILE), keys).unwrap();
            assert_eq!(scrubs(folder.path()), scrubbed, "{keys}");
        }
    }
}
