//! Smallest, median and largest of some figures; pure.

use std::fmt;

/// Of no figures all three are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub min: f64,
    /// Of an even number of figures the mean of the two in the middle.
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of these figures, in any order.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        Self { min: at(0), median: f64::midpoint(at(last / 2), at(sorted.len() / 2)), max: at(last) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max } = self;
        write!(f, "min {min:.1}, median {median:.1}, max {max:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_sorts_and_takes_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 8.0]), Spread { min: 1.0, median: 3.0, max: 8.0 });
        assert_eq!(Spread::of([4.0, 1.0, 8.0, 2.0]), Spread { min: 1.0, median: 3.0, max: 8.0 });
        assert_eq!(Spread::of([2.5]).to_string(), "min 2.5, median 2.5, max 2.5");
        assert_eq!(Spread::of([]), Spread::default());
    }
}
