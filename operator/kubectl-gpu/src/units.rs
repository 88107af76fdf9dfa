//! Numbers and durations as text.

pub use gputenancy_crds::words::counted;
use k8s_openapi::jiff::SignedDuration;

/// Whole seconds; 0 for a negative duration.
pub fn seconds(duration: SignedDuration) -> u64 {
    u64::try_from(duration.as_secs()).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_has_at_most_two_units() {
        let all: Vec<String> = [0, 59, 60, 61, 3599, 3600, 3659, 3661, 90_000].map(span).into();
        assert_eq!(all, ["0s", "59s", "1m", "1m1s", "59m59s", "1h", "1h", "1h1m", "25h"]);
    }
}
