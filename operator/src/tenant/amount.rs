//! Kubernetes quantities as numbers, so that `1024Mi` and `1Gi` are the same and sums can be bounded.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// An amount in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// So many whole units.
    #[cfg(test)]
    pub fn units(n: i32) -> Self {
        Self(i128::from(n) * 1000)
    }

    /// Reads a quantity; `None` when it is not one.
    pub fn parse(quantity: &Quantity) -> Option<Self> {
        let text = quantity.0.as_str();
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (numerator, denominator): (i128, i128) = match suffix {
            "n" => (1, 1_000_000_000),
            "u" => (1, 1_000_000),
            "m" => (1, 1000),
            "" => (1, 1),
            "k" => (1000, 1),
            "M" => (1_000_000, 1),
            "G" => (1_000_000_000, 1),
            "T" => (1_000_000_000_000, 1),
            "P" => (1_000_000_000_000_000, 1),
            "E" => (1_000_000_000_000_000_000, 1),
            "Ki" => (1 << 10, 1),
            "Mi" => (1 << 20, 1),
            "Gi" => (1 << 30, 1),
            "Ti" => (1 << 40, 1),
            "Pi" => (1 << 50, 1),
            "Ei" => (1 << 60, 1),
            exponent => {
                let power: u32 = exponent.strip_prefix(['e', 'E'])?.trim_start_matches('+').parse().ok()?;
                (10_i128.checked_pow(power)?, 1)
            }
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{part}");
        let scale = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
        let value: i128 = digits.parse().ok()?;
        let thousandths = value.checked_mul(numerator)?.checked_mul(1000)?;
        Some(Self(thousandths / scale.checked_mul(denominator)?))
    }

    /// The amount in thousandths.
    pub fn milli(self) -> i128 {
        self.0
    }

    /// So many thousandths.
    pub fn of_milli(n: i128) -> Self {
        Self(n)
    }

    /// What is left after `taken`, never below zero.
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
        let fits = |shift: u32| self.0 > 0 && self.0 % (1000_i128 << shift) == 0;
        let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
        match units.into_iter().find(|(shift, _)| fits(*shift)) {
            Some((shift, suffix)) => Quantity(format!("{}{suffix}", self.0 / (1000_i128 << shift))),
            None => self.quantity(),
        }
    }

    /// The amount as people write it, such as `3.5`.
    pub fn decimal(self) -> String {
        let (whole, part) = (self.0 / 1000, self.0 % 1000);
        let digits = format!("{part:03}");
        if part == 0 { whole.to_string() } else { format!("{whole}.{}", digits.trim_end_matches('0')) }
    }

    /// The amount as the API server would write it.
    pub fn quantity(self) -> Quantity {
        Quantity(if self.0 % 1000 == 0 { (self.0 / 1000).to_string() } else { format!("{}m", self.0) })
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Self::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_compare_equal_however_they_are_written() {
        let amount = |text: &str| Amount::parse(&Quantity(text.into()));
        for (a, b) in
            [("1Gi", "1024Mi"), ("0.5", "500m"), ("64", "64000m"), ("1e3", "1k"), ("1.5Gi", "1536Mi"), ("2E3", "2000")]
        {
            assert!(amount(a).is_some(), "{a}");
            assert_eq!(amount(a), amount(b), "{a} {b}");
        }
        for wrong in ["", "x", "1.2.3", "1Xi"] {
            assert_eq!(amount(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for n in [0, 1, 500, 1500, 64_000, 1_024_000, 5 << 50, 3000 << 40] {
            assert_eq!(Amount::parse(&Amount(n).quantity()), Some(Amount(n)));
            assert_eq!(Amount::parse(&Amount(n).binary()), Some(Amount(n)));
        }
        assert_eq!(Amount(1536 * (1000 << 20)).binary().0, "1536Mi");
        assert_eq!([3500, 2000, 875, 10, 0].map(|n| Amount(n).decimal()), ["3.5", "2", "0.875", "0.01", "0"]);
    }
}
