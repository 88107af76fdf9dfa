//! Tenants that are to be looked at: each once, and never two looks at one. Pure.
//!
//! Who came first goes first; but who has been begun with is finished first, for of ten thousand that come at once none would be ready before
//! all are.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::ROOM;

/// A tenant's name.
pub type Name = Arc<str>;

/// How long after a word about a tenant it is looked at, or after the look during which the word came: one change brings several words, and
/// a look that writes brings one for each write.
pub const GATHERED: Duration = Duration::from_millis(50);
/// Of so many looks one is had by who comes anew, however many are begun with: whoever never comes to rest keeps nobody out.
const TURN: u8 = 8;

/// Who waits, who is being looked at, and who is to be looked at again when: nobody is two of these at once.
#[derive(Debug, Default)]
pub struct Queue {
    /// Who comes anew.
    fresh: Lane,
    /// Who has been begun with.
    begun: Lane,
    waiting: HashSet<Name>,
    /// Who is being looked at, and whether there has been something new meanwhile.
    running: HashMap<Name, bool>,
    /// Who was not at rest when last looked at.
    restless: HashSet<Name>,
    later: BTreeSet<(Instant, Name)>,
    again: HashMap<Name, Instant>,
    /// Looks since somebody who came anew had one.
    turn: u8,
}

/// From when on each may be looked at. All wait equally long, so this is in order.
type Lane = VecDeque<(Instant, Name)>;

/// How a look has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// There was nothing to be done, or nothing that could be, and nothing is waited for that comes in a moment.
    pub at_rest: bool,
    /// After how long there is to be another if there is nothing new before.
    pub again: Option<Duration>,
}

/// Where somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Fresh,
    Begun,
    Later,
}

impl Queue {
    /// There is something new about a tenant. The look that it gets takes the place of the one that was wanted later.
    pub fn come(&mut self, name: Name, now: Instant) {
        if let Some(news) = self.running.get_mut(&name) {
            *news = true;
        } else if !self.waiting.contains(&name) {
            self.forget_later(&name);
            self.wait(name, now);
        }
    }

    fn wait(&mut self, name: Name, now: Instant) {
        self.waiting.insert(name.clone());
        let lane = if self.restless.contains(&name) { &mut self.begun } else { &mut self.fresh };
        lane.push_back((now + GATHERED, name));
    }

    /// Who is looked at next; nobody while all that wait came a moment ago.
    pub fn take(&mut self, now: Instant) -> Option<Name> {
        let first = self.first(now)?;
        let (_, name) = match first {
            Place::Fresh => self.fresh.pop_front()?,
            Place::Begun => self.begun.pop_front()?,
            Place::Later => self.later.first().cloned()?,
        };
        self.turn = if first == Place::Fresh { 0 } else { self.turn.saturating_add(1) };
        self.waiting.remove(&name);
        self.forget_later(&name);
        self.running.insert(name.clone(), false);
        if self.waiting.is_empty() {
            self.fresh.shrink_to(ROOM);
            self.begun.shrink_to(ROOM);
            self.waiting.shrink_to(ROOM);
        }
        Some(name)
    }

    /// Where the one waits whose turn it is.
    fn first(&self, now: Instant) -> Option<Place> {
        let ripe = |lane: &Lane| lane.front().is_some_and(|(from, _)| *from <= now);
        let (fresh, begun) = (ripe(&self.fresh).then_some(Place::Fresh), ripe(&self.begun).then_some(Place::Begun));
        let later = self.later.first().filter(|(at, _)| *at <= now).map(|_| Place::Later);
        let before = later.or(begun);
        if self.turn < TURN - 1 { before.or(fresh) } else { fresh.or(before) }
    }

    /// A look at a tenant has ended.
    pub fn done(&mut self, name: &Name, outcome: Outcome, now: Instant) {
        let Outcome { at_rest, again } = outcome;
        let news = self.running.remove(name).unwrap_or_default();
        if !at_rest {
            self.restless.insert(name.clone());
        } else if self.restless.remove(name) && self.restless.is_empty() {
            self.restless.shrink_to(ROOM);
        }
        if news {
            self.wait(name.clone(), now);
        } else if let Some(after) = again {
            let at = now + after;
            self.again.insert(name.clone(), at);
            self.later.insert((at, name.clone()));
        }
    }

    fn forget_later(&mut self, name: &Name) {
        let Some(at) = self.again.remove(name) else { return };
        self.later.remove(&(at, name.clone()));
        if self.again.is_empty() {
            self.again.shrink_to(ROOM);
        }
    }

    /// When somebody can be taken at the earliest if nobody comes and no look ends; in the past: now.
    pub fn wakes(&self) -> Option<Instant> {
        let lanes = [&self.fresh, &self.begun].into_iter().filter_map(VecDeque::front).map(|(from, _)| *from);
        lanes.chain(self.later.first().map(|(at, _)| *at)).min()
    }

    /// How many are being looked at.
    pub fn running(&self) -> usize {
        self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(names: &[&str], now: Instant) -> Queue {
        let mut queue = Queue::default();
        for name in names {
            queue.come((*name).into(), now);
        }
        queue
    }

    fn rests(again: Option<Duration>) -> Outcome {
        Outcome { at_rest: true, again }
    }

    const RESTLESS: Outcome = Outcome { at_rest: false, again: None };

    fn all(queue: &mut Queue, now: Instant) -> Vec<Name> {
        std::iter::from_fn(|| queue.take(now)).collect()
    }

    #[test]
    fn who_came_first_goes_first_and_once_however_often_there_was_something_new() {
        let now = Instant::now();
        let mut queue = queue(&["b", "a", "b", "c", "b"], now);
        assert_eq!(queue.take(now), None, "more may be said in a moment");
        assert_eq!(queue.wakes(), Some(now + GATHERED));
        let then = now + GATHERED;
        assert_eq!(all(&mut queue, then), ["b", "a", "c"].map(Name::from));
        assert_eq!((queue.running(), queue.wakes()), (3, None));
    }

    #[test]
    fn nobody_is_looked_at_twice_at_once_and_nothing_new_is_lost_meanwhile() {
        let now = Instant::now();
        let then = now + GATHERED;
        let mut queue = queue(&["a", "b"], now);
        let a = queue.take(then).unwrap();
        queue.come("a".into(), then);
        let later = then + GATHERED;
        assert_eq!(all(&mut queue, later), [Name::from("b")], "a is being looked at");
        assert_eq!(queue.wakes(), None, "only the end of a look helps");
        queue.done(&a, rests(Some(Duration::ZERO)), later);
        assert_eq!(queue.take(later), None, "more may be said of what that look has done");
        assert_eq!(all(&mut queue, later + GATHERED), [a]);
    }

    #[test]
    fn a_look_that_is_due_later_comes_then_or_with_something_new_before() {
        let before = Instant::now();
        let (now, minute) = (before + GATHERED, Duration::from_mins(1));
        let mut queue = queue(&["a"], before);
        let a = queue.take(now).unwrap();
        queue.done(&a, rests(Some(minute)), now);
        assert_eq!((queue.take(now), queue.wakes()), (None, Some(now + minute)));
        assert_eq!(queue.take(now + minute), Some(a.clone()));
        queue.done(&a, rests(Some(minute)), now + minute);
        queue.come(a.clone(), now + minute);
        assert_eq!(queue.take(now + minute + GATHERED), Some(a.clone()));
        queue.done(&a, rests(None), now + minute);
        assert_eq!((queue.take(now + minute * 3), queue.wakes()), (None, None), "that look has been had");
    }

    #[test]
    fn a_crowd_that_has_gone_leaves_no_room_behind() {
        let now = Instant::now();
        let mut queue = Queue::default();
        (0..10_000).for_each(|n| queue.come(n.to_string().into(), now));
        while let Some(name) = queue.take(now + GATHERED) {
            queue.done(&name, RESTLESS, now);
        }
        (0..10_000).for_each(|n| queue.come(n.to_string().into(), now));
        let later = now + GATHERED * 2;
        while let Some(name) = queue.take(now + GATHERED) {
            queue.done(&name, rests(Some(GATHERED)), now + GATHERED);
        }
        while let Some(name) = queue.take(later) {
            queue.done(&name, rests(None), later);
        }
        let Queue { fresh, begun, waiting, running, restless, later, again, turn: _ } = &queue;
        assert!(fresh.capacity() <= ROOM && begun.capacity() <= ROOM && again.capacity() <= 2 * ROOM);
        assert!(waiting.capacity() <= 2 * ROOM && restless.capacity() <= 2 * ROOM);
        assert_eq!((running.len(), later.len()), (0, 0));
    }

    #[test]
    fn who_has_been_begun_with_goes_first_and_keeps_nobody_out_for_ever() {
        let now = Instant::now();
        let then = now + GATHERED;
        let mut queue = queue(&["hot"], now);
        let hot = queue.take(then).unwrap();
        for n in 0..4 {
            queue.come(n.to_string().into(), now);
        }
        let mut taken = Vec::new();
        queue.done(&hot, RESTLESS, then);
        for _ in 0..20 {
            // there is always something new about it
            queue.come(hot.clone(), now);
            let name = queue.take(then).unwrap();
            queue.done(&name, if name == hot { RESTLESS } else { rests(None) }, then);
            taken.push(name);
        }
        assert_eq!((&*taken[0], &*taken[7], &*taken[15]), ("hot", "0", "1"));
        assert_eq!(taken.iter().filter(|name| **name != hot).count(), 2);
    }

    #[test]
    fn who_brings_about_something_new_while_looked_at_has_been_begun_with() {
        let now = Instant::now();
        let then = now + GATHERED;
        let mut queue = queue(&["a"], now);
        let a = queue.take(then).unwrap();
        queue.come("b".into(), then);
        // its own writes come back before the look has ended
        queue.come(a.clone(), then);
        queue.done(&a, RESTLESS, then);
        assert_eq!(queue.take(then + GATHERED), Some(a));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Come(u8),
        Take,
        Done(usize, Option<u16>, bool),
        Pass(u16),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0_u8..6).prop_map(Event::Come),
            Just(Event::Take),
            (any::<usize>(), prop::option::of(0_u16..300), any::<bool>())
                .prop_map(|(n, again, rest)| Event::Done(n, again, rest)),
            (0_u16..120).prop_map(Event::Pass),
        ]
    }

    proptest! {
        #[test]
        fn whoever_has_something_new_is_looked_at_after_it_and_never_twice_at_once(events in prop::collection::vec(event(), 0..120)) {
            let (mut queue, mut now) = (Queue::default(), Instant::now());
            // who is being looked at, and whether there has been something new meanwhile
            let mut running: Vec<(Name, bool)> = Vec::new();
            // who is owed a look, from when on, and whether for something new
            let mut owed: HashMap<Name, (Instant, bool)> = HashMap::new();
            for event in events {
                match event {
                    Event::Come(n) => {
                        let name = Name::from(n.to_string());
                        queue.come(name.clone(), now);
                        if let Some((_, news)) = running.iter_mut().find(|(looked_at, _)| *looked_at == name) {
                            *news = true;
                            continue;
                        }
                        let due = owed.entry(name).or_insert((now + GATHERED, true));
                        if !due.1 {
                            *due = (now + GATHERED, true);
                        }
                    }
                    Event::Take => {
                        let due: Vec<Name> = owed
                            .iter()
                            .filter(|(_, (at, _))| *at <= now)
                            .map(|(name, _)| name.clone())
                            .collect();
                        let taken = queue.take(now);
                        prop_assert_eq!(taken.is_some(), !due.is_empty());
                        if let Some(name) = taken {
                            prop_assert!(due.contains(&name));
                            owed.remove(&name);
                            running.push((name, false));
                        }
                    }
                    Event::Done(..) if running.is_empty() => {}
                    Event::Done(n, again, at_rest) => {
                        let (name, news) = running.remove(n % running.len());
                        let again = again.map(|ms| Duration::from_millis(ms.into()));
                        queue.done(&name, Outcome { at_rest, again }, now);
                        if news {
                            owed.insert(name, (now + GATHERED, true));
                        } else if let Some(after) = again {
                            owed.insert(name, (now + after, false));
                        }
                    }
                    Event::Pass(ms) => now += Duration::from_millis(ms.into()),
                }
                prop_assert_eq!(queue.running(), running.len());
                prop_assert_eq!(queue.wakes(), owed.values().map(|(at, _)| *at).min());
            }
        }
    }
}
