//! Kubernetes quantities: [`Amount`] for arithmetic, [`MemoryText`] for a field that holds an amount of memory.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    iter::Sum,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A quantity in thousandths, so that `1024Mi` equals `1Gi` and sums cannot overflow.
///
/// ```
/// use gputenancy_crds::quantity::Amount;
/// use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
///
/// let amount = |text: &str| Amount::parse(&Quantity(text.into()));
/// assert_eq!(amount("1024Mi"), amount("1Gi"));
/// assert_eq!(amount("500m").map(|half| half.plus(half).decimal()), Some("1".into()));
/// assert_eq!(amount("much"), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

/// Suffixes of the powers of 1/1000, of 1000 and of 1024.
const SMALL: [&str; 3] = ["m", "u", "n"];
const DECIMAL: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Amount {
    /// An amount of whole units.
    pub fn units(n: i64) -> Self {
        Self(i128::from(n) * 1000)
    }

    /// An amount in thousandths.
    pub fn of_milli(n: i128) -> Self {
        Self(n)
    }

    /// Parses a quantity; `None` when it is not one.
    pub fn parse(quantity: &Quantity) -> Option<Self> {
        Self::read(&quantity.0)
    }

    /// Parses the text of a quantity by the grammar of Kubernetes; what is finer than a thousandth is cut off.
    fn read(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let place = |suffixes: &[&str]| Some(u32::try_from(suffixes.iter().position(|s| *s == suffix)?).ok()? + 1);
        let (multiplier, divisor) = if suffix.is_empty() {
            (1, 1)
        } else if let Some(place) = place(&SMALL) {
            (1, 1000_i128.pow(place))
        } else if let Some(place) = place(&DECIMAL) {
            (1000_i128.pow(place), 1)
        } else if let Some(place) = place(&BINARY) {
            (1024_i128.pow(place), 1)
        } else {
            let power = |exponent: i32| 10_i128.checked_pow(exponent.unsigned_abs());
            match suffix.strip_prefix(['e', 'E'])?.parse().ok()? {
                exponent @ 0.. => (power(exponent)?, 1),
                exponent => (1, power(exponent)?),
            }
        };
        let (digits, scale) = decimal(number)?;
        let thousandths = digits.checked_mul(multiplier)?.checked_mul(1000)? / scale.checked_mul(divisor)?;
        Some(Self(if negative { -thousandths } else { thousandths }))
    }

    /// The amount in thousandths.
    pub fn milli(self) -> i128 {
        self.0
    }

    /// The difference, never below zero.
    #[must_use]
    pub fn less(self, taken: Self) -> Self {
        Self(self.0.saturating_sub(taken.0).max(0))
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// An amount of bytes in the largest binary unit of which it is a whole multiple.
    pub fn binary(self) -> Quantity {
        let units = BINARY.iter().scan(1000, |unit, suffix| {
            *unit *= 1024;
            Some((*unit, suffix))
        });
        match units.filter(|(unit, _)| self.0 > 0 && self.0 % unit == 0).last() {
            Some((unit, suffix)) => Quantity(format!("{}{suffix}", self.0 / unit)),
            None => self.quantity(),
        }
    }

    /// The amount as a decimal number, such as `3.5`.
    pub fn decimal(self) -> String {
        let (whole, part) = (self.0 / 1000, self.0 % 1000);
        let digits = format!("{part:03}");
        if part == 0 { whole.to_string() } else { format!("{whole}.{}", digits.trim_end_matches('0')) }
    }

    /// The amount in the form that the API server writes.
    pub fn quantity(self) -> Quantity {
        Quantity(if self.0 % 1000 == 0 { (self.0 / 1000).to_string() } else { format!("{}m", self.0) })
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Self::plus)
    }
}

/// A decimal number without sign as digits and the power of ten that divides them: `1.5` is (15, 10).
pub(crate) fn decimal(text: &str) -> Option<(i128, i128)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{part}");
    // `parse` would also take a sign
    let digits = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    Some((digits, 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?))
}

/// Pattern of a quantity that is not negative.
pub(crate) const NOT_NEGATIVE: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$";

/// An amount of memory, written as a Kubernetes quantity of bytes: `10Gi`, `1.5Gi`, `10G`, `1e10` or `10737418240`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemoryText(Quantity);

impl Eq for MemoryText {}

impl PartialOrd for MemoryText {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By text, so that it agrees with equality: `1Gi` and `1024Mi` differ.
impl Ord for MemoryText {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.0.cmp(&other.0.0)
    }
}

impl Hash for MemoryText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.0.hash(state);
    }
}

impl Default for MemoryText {
    fn default() -> Self {
        Self::from_mib(0)
    }
}

/// A text that is not an amount of memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an amount of memory: write a quantity of bytes, such as 10Gi, 1.5Gi, 10G or 10737418240")]
pub struct QuantityError(String);

impl MemoryText {
    /// Pattern of an amount above zero, for fields in which zero has no meaning.
    pub(crate) const POSITIVE: &str =
        r"^\+?(0*[1-9][0-9]*(\.[0-9]*)?|0*\.0*[1-9][0-9]*)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?$";

    /// An amount given in MiB.
    pub fn from_mib(mib: i64) -> Self {
        Self(Quantity(format!("{mib}Mi")))
    }

    /// Checks the text and keeps it as written.
    ///
    /// ```
    /// use gputenancy_crds::MemoryText;
    ///
    /// let memory = MemoryText::parse("1.5Gi")?;
    /// assert_eq!((memory.mib()?, memory.to_string().as_str()), (1536, "1.5Gi"));
    /// assert!(MemoryText::parse("-1Gi").is_err());
    /// # Ok::<(), gputenancy_crds::quantity::QuantityError>(())
    /// ```
    pub fn parse(text: impl Into<String>) -> Result<Self, QuantityError> {
        let this = Self(Quantity(text.into()));
        this.mib().map(|_| this)
    }

    /// The amount in MiB, rounded down.
    pub fn mib(&self) -> Result<i64, QuantityError> {
        let milli = Amount::parse(&self.0).map(Amount::milli).filter(|milli| *milli >= 0);
        milli.and_then(|milli| i64::try_from(milli / (1000 << 20)).ok()).ok_or_else(|| QuantityError(self.0.0.clone()))
    }
}

impl fmt::Display for MemoryText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.0)
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
        json_schema!({"x-kubernetes-int-or-string": true, "pattern": NOT_NEGATIVE, "minimum": 0, "maxLength": 32})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amount_parses_what_kubernetes_accepts() {
        let equal = [
            ("1Gi", "1024Mi"),
            ("0.5", "500m"),
            ("64", "64000m"),
            ("1e3", "1k"),
            ("1.5Gi", "1536Mi"),
            ("2E3", "2000"),
            ("1500e-3", "1.5"),
            ("1e+3", "1k"),
            ("+1.", "1"),
            (".5", "500m"),
            ("-.5", "-500m"),
            ("1E", "1000P"),
        ];
        for (a, b) in equal {
            assert!(Amount::read(a).is_some(), "{a}");
            assert_eq!(Amount::read(a), Amount::read(b), "{a} {b}");
        }
        for wrong in ["", ".", "x", "1.2.3", "1Xi", "1e", "1e++3", "1e1.5", "--1", "+-1", "1 Gi", "1e99"] {
            assert_eq!(Amount::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn amount_written_as_quantity_parses_to_itself() {
        for n in [0, 1, 500, 1500, 64_000, 1_024_000, 5 << 50, 3000 << 40] {
            assert_eq!(Amount::parse(&Amount(n).quantity()), Some(Amount(n)));
            assert_eq!(Amount::parse(&Amount(n).binary()), Some(Amount(n)));
        }
        assert_eq!(Amount(1536 * (1000 << 20)).binary().0, "1536Mi");
        assert_eq!([3500, 2000, 875, 10, 0].map(|n| Amount(n).decimal()), ["3.5", "2", "0.875", "0.01", "0"]);
    }

    #[test]
    fn memory_parses_quantities_as_mib() {
        let mib = |value: serde_json::Value| serde_json::from_value::<MemoryText>(value).unwrap().mib();
        for (written, expected) in
            [("10Gi", 10240), ("9856Mi", 9856), ("10G", 9536), ("1.5Gi", 1536), ("1e10", 9536), ("10737418240", 10240)]
        {
            assert_eq!(mib(written.into()), Ok(expected), "{written}");
        }
        assert_eq!(mib(10_737_418_240_i64.into()), Ok(10240));
        for wrong in ["", "Gi", "-1Gi", "10GB", "10 Gi", "99999999999999999999Ei"] {
            assert!(mib(wrong.into()).is_err(), "{wrong}");
        }
    }
}
