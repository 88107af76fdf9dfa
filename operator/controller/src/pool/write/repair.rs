//! When a field of a Node that another client keeps changing is written again.

use std::time::Duration;

use gputenancy_crds::backoff::Backoff;
use k8s_openapi::jiff::Timestamp;

/// Delays before repairs. After the first one the cache shows our own write; a field that stays unchanged for the longest is no longer contested.
const DELAY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(5));
/// A field that was repaired so many times in a row is contested.
const CONTESTED: u32 = 3;

/// What to do about a field that differs from the wanted value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Write it now; `contested`: another client has changed it several times in a row.
    Now {
        /// For events.
        contested: bool,
    },
    /// Not before this time.
    At(Timestamp),
}

/// The value that was written last, and when.
#[derive(Clone, Debug)]
pub struct LastWrite<V>(Option<Written<V>>);

#[derive(Clone, Debug)]
struct Written<V> {
    value: V,
    at: Timestamp,
    /// How often the same value was written in a row.
    times: u32,
}

impl<V> Default for LastWrite<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V: PartialEq> LastWrite<V> {
    /// The value that was written last.
    pub fn value(&self) -> Option<&V> {
        self.0.as_ref().map(|last| &last.value)
    }

    /// Decides about a field that has another value than `wanted`: a new value is written at once, the same one with exponential backoff.
    pub fn decide(&self, wanted: &V, now: Timestamp) -> Repair {
        let Some(last) = self.0.as_ref().filter(|last| last.value == *wanted) else {
            return Repair::Now { contested: false };
        };
        match last.at.checked_add(DELAY.after(last.times)) {
            Ok(due) if due > now => Repair::At(due),
            _ => Repair::Now { contested: last.times >= CONTESTED && !rested(last, now) },
        }
    }

    /// Records a successful write.
    pub fn written(&mut self, value: V, now: Timestamp) {
        let last = self.0.as_ref().filter(|last| last.value == value && !rested(last, now));
        let times = last.map_or(1, |last| last.times.saturating_add(1));
        self.0 = Some(Written { value, at: now, times });
    }
}

/// The field had its value for so long that an earlier contest is over.
fn rested<V>(last: &Written<V>, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(last.at)).is_ok_and(|age| age >= DELAY.after(last.times) + DELAY.longest())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn field_that_was_written_long_ago_is_repaired_at_once() {
        let mut last = LastWrite::default();
        assert_eq!(last.decide(&"a", at(0)), Repair::Now { contested: false });
        last.written("a", at(0));
        assert_eq!(last.decide(&"a", at(1)), Repair::At(at(2)), "the cache may lag behind");
        assert_eq!(last.decide(&"b", at(1)), Repair::Now { contested: false });
        assert_eq!(last.decide(&"a", at(2)), Repair::Now { contested: false });
    }

    #[test]
    fn field_that_another_client_keeps_changing_is_repaired_with_backoff() {
        let mut last = LastWrite::default();
        let (mut writes, mut contested) = (Vec::new(), Vec::new());
        for second in 0..3600 {
            if let Repair::Now { contested: yes } = last.decide(&"a", at(second)) {
                last.written("a", at(second));
                writes.push(second);
                contested.push(yes);
            }
        }
        assert_eq!(writes.get(..6).unwrap(), [0, 2, 6, 14, 30, 62]);
        assert_eq!(contested.get(..4).unwrap(), [false, false, false, true]);
        assert!(writes.windows(2).all(|pair| pair[1] - pair[0] <= 300), "{writes:?}");
        let quiet = writes.last().unwrap() + 601;
        assert_eq!(last.decide(&"a", at(quiet)), Repair::Now { contested: false });
        last.written("a", at(quiet));
        assert_eq!(last.decide(&"a", at(quiet)), Repair::At(at(quiet + 2)));
    }
}
