//! Durations of the API as the time type of the engine.

use gputenancy_crds::DurationText;
use k8s_openapi::jiff::SignedDuration;

/// A text that is no duration, which the API server's pattern refuses, counts as the field's default.
pub fn or_seconds(text: &DurationText, default: i64) -> SignedDuration {
    SignedDuration::from_secs(text.seconds().unwrap_or(default))
}
