//! Numbers and durations as text.

use std::time::Duration;

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

/// A time limit as `30 s`; below one second as `250 ms`.
pub fn time_limit(limit: &Duration) -> String {
    match limit.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        _ => format!("{} s", limit.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limit_below_a_second_is_in_milliseconds() {
        let all: Vec<String> = [1, 999, 1000, 1500, 30_000].map(|ms| time_limit(&Duration::from_millis(ms))).into();
        assert_eq!(all, ["1 ms", "999 ms", "1 s", "1.5 s", "30 s"]);
    }

    #[test]
    fn span_has_at_most_two_units() {
        let all: Vec<String> = [0, 59, 60, 61, 3599, 3600, 3659, 3661, 90_000].map(span).into();
        assert_eq!(all, ["0s", "59s", "1m", "1m1s", "59m59s", "1h", "1h", "1h1m", "25h"]);
    }
}
