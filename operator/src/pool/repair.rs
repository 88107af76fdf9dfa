//! When a field of a Node that another client keeps changing is written again.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::plan::NodeName;

/// Delay before the first repair: by then the cache shows our own write.
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// Longest delay; a field that stays unchanged for so long is no longer contested.
const MAX_DELAY: SignedDuration = SignedDuration::from_mins(5);
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

#[derive(Clone, Debug)]
struct Written<V> {
    value: V,
    at: Timestamp,
    /// How often the same value was written in a row.
    repairs: u32,
}

impl<V> Written<V> {
    fn delay(&self) -> SignedDuration {
        let factor = 2_i32.saturating_pow(self.repairs);
        FIRST_DELAY.checked_mul(factor).unwrap_or(MAX_DELAY).min(MAX_DELAY)
    }
}

/// The values that were written last, by node.
#[derive(Clone, Debug)]
pub struct Repairs<V>(BTreeMap<NodeName, Written<V>>);

impl<V> Default for Repairs<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V: PartialEq> Repairs<V> {
    /// Decides about a node that has another value than `wanted`: a new value is written at once, the same one with exponential backoff.
    pub fn decide(&self, node: &NodeName, wanted: &V, now: Timestamp) -> Repair {
        let Some(last) = self.0.get(node).filter(|last| last.value == *wanted) else {
            return Repair::Now { contested: false };
        };
        match last.at.checked_add(last.delay()) {
            Ok(due) if due > now => Repair::At(due),
            _ => Repair::Now { contested: last.repairs + 1 >= CONTESTED && !rested(last, now) },
        }
    }

    /// Records a successful write.
    pub fn written(&mut self, node: &NodeName, value: V, now: Timestamp) {
        let last = self.0.get(node).filter(|last| last.value == value && !rested(last, now));
        let repairs = last.map_or(0, |last| last.repairs.saturating_add(1));
        self.0.insert(node.clone(), Written { value, at: now, repairs });
    }

    /// Drops nodes that are gone.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|node, _| exists(node.as_str()));
    }
}

/// The field had its value for so long that an earlier contest is over.
fn rested<V>(last: &Written<V>, now: Timestamp) -> bool {
    now.duration_since(last.at) >= last.delay() + MAX_DELAY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn field_that_was_written_long_ago_is_repaired_at_once() {
        let (node, mut repairs) = (NodeName::from("n"), Repairs::default());
        assert_eq!(repairs.decide(&node, &"a", at(0)), Repair::Now { contested: false });
        repairs.written(&node, "a", at(0));
        assert_eq!(repairs.decide(&node, &"a", at(1)), Repair::At(at(2)), "the cache may lag behind");
        assert_eq!(repairs.decide(&node, &"b", at(1)), Repair::Now { contested: false });
        assert_eq!(repairs.decide(&node, &"a", at(2)), Repair::Now { contested: false });
        repairs.retain(|_| false);
        assert_eq!(
            repairs.decide(&node, &"a", at(1)),
            Repair::Now { contested: false },
            "a node that was created again"
        );
    }

    #[test]
    fn field_that_another_client_keeps_changing_is_repaired_with_backoff() {
        let (node, mut repairs) = (NodeName::from("n"), Repairs::default());
        let (mut writes, mut contested) = (Vec::new(), Vec::new());
        for second in 0..3600 {
            if let Repair::Now { contested: yes } = repairs.decide(&node, &"a", at(second)) {
                repairs.written(&node, "a", at(second));
                writes.push(second);
                contested.push(yes);
            }
        }
        assert_eq!(writes.get(..6).unwrap(), [0, 2, 6, 14, 30, 62]);
        assert_eq!(contested.get(..4).unwrap(), [false, false, false, true]);
        assert!(writes.windows(2).all(|pair| pair[1] - pair[0] <= 300), "{writes:?}");
        let quiet = writes.last().unwrap() + 601;
        assert_eq!(repairs.decide(&node, &"a", at(quiet)), Repair::Now { contested: false });
        repairs.written(&node, "a", at(quiet));
        assert_eq!(repairs.decide(&node, &"a", at(quiet)), Repair::At(at(quiet + 2)));
    }
}
