//! The latest changes of one guarantee.

use std::collections::{BTreeSet, VecDeque};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Flapping, TURNS, WINDOW};
use crate::duration::stamp;

/// Most field managers that are kept.
const MOST_WRITERS: usize = 8;

/// The latest changes of one guarantee, and what is planned meanwhile.
#[derive(Clone, Debug)]
pub(super) struct History {
    wanted: i32,
    planned: i32,
    /// When `wanted` is planned if it stays.
    due: Option<Timestamp>,
    /// When `wanted` last changed.
    changed: Timestamp,
    changes: u32,
    writers: BTreeSet<String>,
    /// Whether it last grew.
    grew: Option<bool>,
    /// The last turns, [`TURNS`] at most.
    turns: VecDeque<Timestamp>,
}

impl History {
    /// Of a guarantee that has been `count` until now.
    pub fn of(count: i32, now: Timestamp) -> Self {
        Self {
            wanted: count,
            planned: count,
            due: None,
            changed: now,
            changes: 0,
            writers: BTreeSet::new(),
            grew: None,
            turns: VecDeque::new(),
        }
    }

    /// Notes a change.
    pub fn change(&mut self, to: i32, writers: Vec<String>, now: Timestamp) {
        let grows = to > self.wanted;
        if self.grew.is_some_and(|grew| grew != grows) {
            self.turns.push_back(now);
            if self.turns.len() > TURNS {
                self.turns.pop_front();
            }
        }
        (self.wanted, self.changed, self.grew) = (to, now, Some(grows));
        self.changes = self.changes.saturating_add(1);
        let left = MOST_WRITERS.saturating_sub(self.writers.len());
        let new: Vec<String> = writers.into_iter().filter(|writer| !self.writers.contains(writer)).take(left).collect();
        self.writers.extend(new);
    }

    /// Decides what is planned at `now`.
    pub fn settle(&mut self, settle_time: SignedDuration, now: Timestamp) {
        // a later time is one from before the clock was set back
        self.changed = self.changed.min(now);
        self.turns.iter_mut().for_each(|turn| *turn = (*turn).min(now));
        let due = self.changed.checked_add(settle_time).ok().map(|due| stamp(due).0);
        let waits = self.wanted != self.planned && self.is_flapping(now) && due.is_some_and(|due| due > now);
        self.due = due.filter(|_| waits);
        if !waits {
            self.planned = self.wanted;
        }
    }

    pub fn due(&self) -> Option<Timestamp> {
        self.due
    }

    pub fn planned(&self) -> i32 {
        self.planned
    }

    /// Has it turned too often a short time ago?
    pub fn is_flapping(&self, now: Timestamp) -> bool {
        self.calm_at().is_some_and(|calm| calm > now)
    }

    /// When it has turned fewer times within the window.
    fn calm_at(&self) -> Option<Timestamp> {
        let oldest = self.turns.front().filter(|_| self.turns.len() >= TURNS)?;
        oldest.checked_add(WINDOW).ok()
    }

    /// It can be forgotten.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.changed.checked_add(WINDOW).is_ok_and(|over| over <= now)
    }

    /// When something follows without a change.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        [self.due, self.calm_at()].into_iter().flatten().filter(|at| *at > now).min()
    }

    pub fn describe<'a>(&'a self, tenant: &'a str, profile: &'a str) -> Flapping<'a> {
        let Self { wanted, planned, due, changes, writers, .. } = self;
        Flapping { tenant, profile, wanted: *wanted, planned: *planned, due: *due, changes: *changes, writers }
    }
}
