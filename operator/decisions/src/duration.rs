//! Durations and times of the API, and those that decisions use.

use gputenancy_crds::DurationText;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

/// A text that is no duration, which the API server's pattern refuses, counts as the field's default.
pub fn or_seconds(text: &DurationText, default: i64) -> SignedDuration {
    SignedDuration::from_secs(text.seconds().unwrap_or(default))
}

/// A time for the API: whole seconds, as the API server keeps them.
pub fn stamp(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
