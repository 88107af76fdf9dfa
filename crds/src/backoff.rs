//! Delays that double with each failure in a row.

use std::time::Duration;

/// Delays of what is tried again: `first` after one failure, twice as long after each further one in a row, and at most `longest`.
///
/// ```
/// use std::time::Duration;
///
/// use gputenancy_crds::backoff::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(5));
/// let delays = [1, 2, 3].map(|failures| backoff.after(failures).as_secs());
/// assert_eq!(delays, [2, 4, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Delays from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after so many failures in a row; the first one also after none, for what is repeated without a failure.
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.longest)
    }

    /// The longest delay.
    pub const fn longest(self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_without_overflow() {
        let backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));
        let delays: Vec<u64> = (0..9).map(|failures| backoff.after(failures).as_secs()).collect();
        assert_eq!(delays, [2, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).after(u32::MAX), Duration::MAX);
    }
}
