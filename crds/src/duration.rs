//! Durations as people write them in manifests: `90s`, `15m`, `1h30m`.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration like `30m`; units are `s`, `m` and `h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationText(String);

/// Why a text is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a duration: write it like 90s, 15m or 1h30m")]
pub struct DurationError(String);

impl DurationText {
    /// Checks the text and keeps it as written.
    pub fn parse(text: impl Into<String>) -> Result<Self, DurationError> {
        let this = Self(text.into());
        this.get().map(|_| this)
    }

    /// A literal of this crate, checked by its tests.
    pub(crate) fn constant(text: &'static str) -> Self {
        Self(text.into())
    }

    /// The duration in seconds, or what is wrong with it (the API server's pattern lets nothing wrong pass).
    pub fn get(&self) -> Result<Duration, DurationError> {
        let wrong = || DurationError(self.0.clone());
        let (mut seconds, mut number) = (0_u64, None::<u64>);
        for c in self.0.chars() {
            let unit = match c {
                '0'..='9' => {
                    let digit = u64::from(c.to_digit(10).ok_or_else(wrong)?);
                    number =
                        Some(number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(digit)).ok_or_else(wrong)?);
                    continue;
                }
                's' => 1,
                'm' => 60,
                'h' => 3600,
                _ => return Err(wrong()),
            };
            let part = number.take().and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)?;
            seconds = seconds.checked_add(part).ok_or_else(wrong)?;
        }
        if number.is_some() || self.0.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
    }
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
        json_schema!({"type": "string", "pattern": "^([0-9]{1,6}[smh])+$", "maxLength": 20})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let seconds = |t: &str| DurationText(t.into()).get().map(|d| d.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("1h30m"), Ok(5400));
        for wrong in ["", "5", "m", "1d", "-1s", "99999999999999999999h"] {
            assert_eq!(seconds(wrong), Err(DurationError(wrong.into())));
        }
    }
}
