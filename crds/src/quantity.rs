//! Amounts of GPU memory as Kubernetes quantities (`10Gi`, `9856Mi`), read as MiB.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An amount of memory like `10Gi`; suffixes are `Ki`, `Mi`, `Gi`, `Ti`, `M`, `G` and `T`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemoryText(String);

impl Default for MemoryText {
    fn default() -> Self {
        Self::from_mib(0)
    }
}

/// Why a text is not an amount of memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an amount of memory: write it like 10Gi or 9856Mi")]
pub struct QuantityError(String);

impl MemoryText {
    /// An amount given in MiB.
    pub fn from_mib(mib: i64) -> Self {
        Self(format!("{mib}Mi"))
    }

    /// Checks the text and keeps it as written.
    pub fn parse(text: impl Into<String>) -> Result<Self, QuantityError> {
        let this = Self(text.into());
        this.mib().map(|_| this)
    }

    /// The amount in MiB, rounded down.
    pub fn mib(&self) -> Result<i64, QuantityError> {
        let wrong = || QuantityError(self.0.clone());
        let digits = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (number, unit) = self.0.split_at(digits);
        let number: i64 = number.parse().map_err(|_| wrong())?;
        let bytes_per: i64 = match unit {
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        Ok(number.checked_mul(bytes_per).ok_or_else(wrong)? >> 20)
    }
}

impl fmt::Display for MemoryText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for MemoryText {
    fn schema_name() -> Cow<'static, str> {
        "Memory".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]{1,9}(Ki|Mi|Gi|Ti|M|G|T)$", "maxLength": 16})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kubernetes_quantities_as_mib() {
        assert_eq!(MemoryText("10Gi".into()).mib(), Ok(10240));
        assert_eq!(MemoryText("9856Mi".into()).mib(), Ok(9856));
        assert_eq!(MemoryText("10G".into()).mib(), Ok(9536));
        for wrong in ["", "10", "Gi", "1.5Gi", "-1Gi", "99999999999999999999Gi"] {
            assert!(MemoryText(wrong.into()).mib().is_err(), "{wrong}");
        }
    }
}
