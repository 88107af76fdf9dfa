//! What teams have to know about their waiting jobs: one event when a job waits, and one when it is suspended for another. Pure.
//!
//! `team` finds the jobs of a team and their order, `words` writes the events. A change of a GPU has an event of its own, on the pod.

mod team;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;

use gputenancy_cluster::events::Notice;
use gputenancy_decisions::queues::job::ADMITTED_AT_ONCE;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::observe::Observed;
use team::{Job, TeamJobs};

/// The first jobs in the queue of a team have events; another one has its event when it is among them.
const MOST_OF_A_TEAM: usize = 20;
/// Events of one decision; others follow with the next one.
const MOST_AT_ONCE: usize = 10;
/// Until the next decision, if there are more.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// What has happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    /// It is suspended for another job.
    Suspended,
    /// It waits for quota.
    Waits,
}

/// A transition of a job: it has one event.
type Transition = (Timestamp, Topic, String);

/// The transitions that have their event.
#[derive(Debug, Default)]
pub struct Notices {
    known: BTreeSet<Transition>,
    /// Jobs that waited before this replica led have their event.
    begun: bool,
}

/// Events to publish, and what follows by time alone.
#[derive(Debug, Default, PartialEq)]
pub struct Due {
    /// To be published now.
    pub events: Vec<Notice>,
    /// When to decide again even if nothing changes.
    pub next: Option<Timestamp>,
}

impl Notices {
    /// The events that are due, each once.
    pub fn due(&mut self, seen: &Observed) -> Due {
        let teams = team::teams(seen);
        let all: Vec<(Transition, &TeamJobs<'_>, &Job<'_>)> = teams.iter().flat_map(transitions).collect();
        let is_over = |(since, topic, _): &Transition| seen.now.duration_since(*since) >= debounce(*topic);
        // a job that is gone, or in another state, needs no memory
        let current: BTreeSet<&Transition> = all.iter().map(|(transition, ..)| transition).collect();
        self.known.retain(|transition| current.contains(transition));
        if !self.begun {
            self.begun = true;
            self.known.extend(current.iter().filter(|t| t.1 == Topic::Waits && is_over(t)).map(|t| (*t).clone()));
        }
        let is_near = |topic: Topic, job: &Job<'_>| topic == Topic::Suspended || job.position <= MOST_OF_A_TEAM;
        let is_new = |transition: &Transition| !self.known.contains(transition);
        let mut open: Vec<_> = all.iter().filter(|(t, _, job)| is_near(t.1, job) && is_new(t)).collect();
        open.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let (over, later): (Vec<_>, Vec<_>) = open.into_iter().partition(|(transition, ..)| is_over(transition));
        let rest = (over.len() > MOST_AT_ONCE).then(|| seen.now.checked_add(PAUSE).ok()).flatten();
        let ends = later.iter().filter_map(|((since, topic, _), ..)| since.checked_add(debounce(*topic)).ok());
        let mut due = Due { events: Vec::new(), next: ends.chain(rest).min() };
        for (transition, team, job) in over.into_iter().take(MOST_AT_ONCE) {
            let event = match transition.1 {
                Topic::Suspended => words::suspended(team, job, seen),
                Topic::Waits => words::waits(team, job),
            };
            due.events.extend(event);
            self.known.insert(transition.clone());
        }
        due
    }
}

/// How long a state lasts before it has an event.
fn debounce(topic: Topic) -> SignedDuration {
    match topic {
        Topic::Suspended => SignedDuration::ZERO,
        Topic::Waits => ADMITTED_AT_ONCE,
    }
}

/// The present states of the jobs of a team.
fn transitions<'t, 's>(team: &'t TeamJobs<'s>) -> impl Iterator<Item = (Transition, &'t TeamJobs<'s>, &'t Job<'s>)> {
    let waits = team.waiting.iter().map(|job| (Topic::Waits, job));
    let suspended = team.suspended.iter().map(|job| (Topic::Suspended, job));
    waits.chain(suspended).map(move |(topic, job)| ((job.since, topic, job.uid.clone()), team, job))
}
