//! Durations in manifests, in the format of `metav1.Duration`: `90s`, `15m`, `1h30m`.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::quantity::decimal;

/// A duration like `1h30m`, `1.5h` or `500ms`, not negative; more than 876000h (100 years) counts as 876000h.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationText(String);

impl Default for DurationText {
    /// No time.
    fn default() -> Self {
        Self::constant("0s")
    }
}

const LONGEST: Duration = Duration::from_hours(876_000);

/// A text that is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a duration: write numbers with the unit ms, s, m or h, such as 90s, 15m or 1h30m")]
pub struct DurationError(String);

impl DurationText {
    /// Checks the text and keeps it as written.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gputenancy_crds::DurationText;
    ///
    /// let text = DurationText::parse("1h30m")?;
    /// assert_eq!((text.get()?, text.to_string().as_str()), (Duration::from_mins(90), "1h30m"));
    /// assert!(DurationText::parse("90").is_err(), "a number needs a unit");
    /// # Ok::<(), gputenancy_crds::duration::DurationError>(())
    /// ```
    pub fn parse(text: impl Into<String>) -> Result<Self, DurationError> {
        let this = Self(text.into());
        this.get().map(|_| this)
    }

    /// A literal of this crate, checked by its tests.
    pub(crate) fn constant(text: &'static str) -> Self {
        Self(text.into())
    }

    /// The duration. It is always readable in an object that the API server has accepted.
    pub fn get(&self) -> Result<Duration, DurationError> {
        nanoseconds(&self.0)
            .map(|n| u64::try_from(n).map_or(LONGEST, Duration::from_nanos).min(LONGEST))
            .ok_or_else(|| DurationError(self.0.clone()))
    }

    /// The duration in seconds, rounded up.
    pub fn seconds(&self) -> Result<i64, DurationError> {
        let duration = self.get()?;
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        i64::try_from(seconds).map_err(|_| DurationError(self.0.clone()))
    }
}

/// Kube's own `Duration` is not used: it panics on `1h-5m` and on `1e300h`, and does not keep the text.
fn nanoseconds(text: &str) -> Option<i128> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    let numeric = |c: char| c.is_ascii_digit() || c == '.';
    let mut sum = None;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c| !numeric(c))?);
        let (unit, next) = tail.split_at(tail.find(numeric).unwrap_or(tail.len()));
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (digits, scale) = decimal(number)?;
        sum = Some(digits.checked_mul(unit)?.checked_div(scale)?.checked_add(sum.unwrap_or(0))?);
        rest = next;
    }
    sum
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^\+?(0|(([0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})(ns|us|µs|μs|ms|s|m|h))+)$";
        json_schema!({"type": "string", "pattern": pattern, "maxLength": 32})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_parses_what_go_accepts() {
        let millis = |t: &str| DurationText(t.into()).get().map(|d| d.as_millis());
        for (text, expected) in [
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("500ms", 500),
            ("0", 0),
            (".5m", 30_000),
            ("+1.s", 1000),
            ("1500us", 1),
            ("999999999999999h", 876_000 * 3_600_000),
        ] {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        for wrong in ["", "5", "m", ".s", "1d", "-1s", "1h-5m", "1e300h", "1h 30m", "99999999999999999999999999999999h"]
        {
            assert_eq!(millis(wrong), Err(DurationError(wrong.into())));
        }
    }

    #[test]
    fn duration_in_seconds_is_rounded_up() {
        let seconds = |t: &str| DurationText(t.into()).seconds();
        assert_eq!((seconds("500ms"), seconds("90s"), seconds("0")), (Ok(1), Ok(90), Ok(0)));
    }
}
