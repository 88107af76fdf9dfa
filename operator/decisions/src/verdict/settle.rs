//! A verdict outlives its last mark for a while, so that a mark that comes and goes is one verdict and moves no device twice.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A verdict on a node, and since when nothing on the node says so any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The last verdict of the marks; `None`: there is no verdict.
    pub why: Option<String>,
    /// When the last mark was found gone; `None`: there still is one, or no verdict.
    pub gone_since: Option<Timestamp>,
}

impl Settled {
    /// When the verdict ends if no mark returns.
    pub fn ends(&self, clear_after: SignedDuration) -> Option<Timestamp> {
        self.gone_since?.checked_add(clear_after).ok()
    }
}

/// The verdict at `now`, from the one before and what the node carries now.
pub fn settle(before: &Settled, marked: Option<String>, clear_after: SignedDuration, now: Timestamp) -> Settled {
    if marked.is_some() {
        return Settled { why: marked, gone_since: None };
    }
    let Some(why) = before.why.clone() else { return Settled::default() };
    // a later time is one from before the clock was set back
    let since = before.gone_since.map_or_else(|| in_seconds(now), |since| since.min(now));
    let since = Settled { why: Some(why), gone_since: Some(since) };
    if since.ends(clear_after).is_none_or(|end| end <= now) { Settled::default() } else { since }
}

/// Messages say when a verdict ends.
fn in_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLEAR_AFTER: SignedDuration = SignedDuration::from_mins(2);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn condition_that_flaps_twenty_times_in_ten_minutes_is_one_verdict() {
        let (mut state, mut turns) = (Settled::default(), 0);
        for second in 0..900 {
            let marked = (second < 600 && second % 30 < 15).then(|| "it is cordoned".to_owned());
            let next = settle(&state, marked, CLEAR_AFTER, at(second));
            turns += usize::from(next.why.is_some() != state.why.is_some());
            state = next;
        }
        assert_eq!((turns, state), (2, Settled::default()));
    }

    #[test]
    fn verdict_ends_although_the_clock_was_set_back() {
        let gone = settle(&Settled { why: Some("x".into()), gone_since: None }, None, CLEAR_AFTER, at(100_000));
        let back = settle(&gone, None, CLEAR_AFTER, at(1000));
        assert_eq!(back.ends(CLEAR_AFTER), Some(at(1120)));
        assert_eq!(settle(&back, None, CLEAR_AFTER, at(1120)), Settled::default());
    }

    proptest! {
        /// A verdict begins with its first mark and ends `clear_after` later than its last.
        #[test]
        fn verdict_holds_from_the_first_mark_until_a_while_after_the_last(
            marks in proptest::collection::vec(any::<bool>(), 1..400),
        ) {
            let mut state = Settled::default();
            for (second, marked) in marks.iter().enumerate() {
                state = settle(&state, marked.then(|| "x".to_owned()), CLEAR_AFTER, at(i64::try_from(second).unwrap()));
                // the mark is found gone one second after it was seen last
                let recent = marks.iter().take(second + 1).rev().take(121).any(|marked| *marked);
                prop_assert_eq!(state.why.is_some(), recent, "at {}", second);
            }
        }
    }
}
