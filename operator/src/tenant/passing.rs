//! For how long tenants have been in a state that passes by itself and that nobody has been told of.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::ROOM;

/// Since when, by tenant.
#[derive(Debug, Default)]
pub(super) struct Passing(HashMap<String, Instant>);

impl Passing {
    /// A tenant is in such a state; for how long by now.
    pub fn lasts(&mut self, tenant: &str, now: Instant) -> Duration {
        let since = *self.0.entry(tenant.to_owned()).or_insert(now);
        now.saturating_duration_since(since)
    }

    /// A tenant is in such a state no longer. Thousands come at once and pass together: the room goes with the last of them.
    pub fn is_over(&mut self, tenant: &str) {
        if self.0.remove(tenant).is_some() && self.0.is_empty() {
            self.0.shrink_to(ROOM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_lasts_from_when_it_was_first_seen_until_it_is_over() {
        let (mut passing, start) = (Passing::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(passing.lasts("a", start), Duration::ZERO);
        assert_eq!(passing.lasts("b", after(1)), Duration::ZERO);
        assert_eq!(passing.lasts("a", after(3)), Duration::from_secs(3));
        passing.is_over("a");
        assert_eq!(passing.lasts("a", after(4)), Duration::ZERO);
        assert_eq!(passing.lasts("b", after(4)), Duration::from_secs(3), "each for itself");
    }

    #[test]
    fn when_the_last_state_is_over_the_room_of_ten_thousand_is_given_back() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        let names: Vec<String> = (0..10_000).map(|i| format!("t-{i}")).collect();
        for name in &names {
            passing.lasts(name, now);
        }
        let (last, others) = names.split_last().unwrap();
        for name in others {
            passing.is_over(name);
        }
        assert!(passing.0.capacity() >= 10_000, "one is left, and thousands may come again");
        passing.is_over(last);
        assert!(passing.0.capacity() <= 2 * ROOM, "{}", passing.0.capacity());
        passing.is_over(last);
    }
}
