//! One watch for several indexes.

use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// Takes the events of a watch.
pub trait Sink<K>: Send {
    /// A new list begins; what is known counts until it has ended.
    fn begin(&mut self);
    /// An object of the new list.
    fn listed(&mut self, object: &K);
    /// The new list has ended.
    fn end(&mut self);
    /// An object came or changed.
    fn apply(&mut self, object: &K);
    /// An object went.
    fn delete(&mut self, object: &K);
}

/// Gives every event of one watch to several sinks, in the order in which they were added.
///
/// ```
/// use std::collections::BTreeSet;
///
/// use gputenancy_cluster::watch::{FanOut, Published};
/// use kube::runtime::watcher::Event;
/// use tokio::sync::watch;
///
/// type Names = BTreeSet<String>;
/// fn insert(names: &mut Names, name: &String) -> bool { names.insert(name.clone()) }
/// fn remove(names: &mut Names, name: &String) -> bool { names.remove(name) }
///
/// let (known, listed) = (watch::Sender::new(Names::new()), watch::Sender::new(None::<Names>));
/// let mut sinks = FanOut::default()
///     .to(Published::new(&known, insert, remove))
///     .to(Published::new(&listed, insert, remove));
/// sinks.pass(&Event::Apply("a".to_owned()), |name| name);
/// assert_eq!((known.borrow().len(), listed.borrow().is_none()), (1, true), "the first list has not ended");
/// ```
pub struct FanOut<'s, K>(Vec<Box<dyn Sink<K> + 's>>);

impl<K> Default for FanOut<'_, K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'s, K> FanOut<'s, K> {
    /// With one sink more.
    #[must_use]
    pub fn to(mut self, sink: impl Sink<K> + 's) -> Self {
        self.0.push(Box::new(sink));
        self
    }

    /// Passes one event on, of whose object `of` is the part that the sinks read.
    pub fn pass<O>(&mut self, event: &Event<O>, of: impl Fn(&O) -> &K) {
        for sink in &mut self.0 {
            match event {
                Event::Init => sink.begin(),
                Event::InitApply(object) => sink.listed(of(object)),
                Event::InitDone => sink.end(),
                Event::Apply(object) => sink.apply(of(object)),
                Event::Delete(object) => sink.delete(of(object)),
            }
        }
    }
}

/// An index in a channel, or none before the first list.
pub trait Slot<I>: From<I> {
    /// The index, if it is known.
    fn index(&mut self) -> Option<&mut I>;
}

impl<I> Slot<I> for I {
    fn index(&mut self) -> Option<&mut I> {
        Some(self)
    }
}

impl<I> Slot<I> for Option<I> {
    fn index(&mut self) -> Option<&mut I> {
        self.as_mut()
    }
}

/// Changes an index by an object. True: it has changed.
type Change<I, K> = fn(&mut I, &K) -> bool;

/// Publishes an index: a new list replaces it as a whole, and readers are woken when it changes.
pub struct Published<'s, K, I, S> {
    listed: I,
    sender: &'s watch::Sender<S>,
    apply: Change<I, K>,
    delete: Change<I, K>,
}

impl<'s, K, I: Default, S> Published<'s, K, I, S> {
    /// Publishes to this channel; one of options is `None` until the first list has ended. `apply` records an object, and `delete` removes it.
    pub fn new(sender: &'s watch::Sender<S>, apply: Change<I, K>, delete: Change<I, K>) -> Self {
        Self { listed: I::default(), sender, apply, delete }
    }
}

impl<K, I, S> Sink<K> for Published<'_, K, I, S>
where
    I: Default + Send,
    S: Slot<I> + Send + Sync,
{
    fn begin(&mut self) {
        self.listed = I::default();
    }

    fn listed(&mut self, object: &K) {
        (self.apply)(&mut self.listed, object);
    }

    fn end(&mut self) {
        self.sender.send_replace(std::mem::take(&mut self.listed).into());
    }

    fn apply(&mut self, object: &K) {
        self.sender.send_if_modified(|slot| slot.index().is_some_and(|index| (self.apply)(index, object)));
    }

    fn delete(&mut self, object: &K) {
        self.sender.send_if_modified(|slot| slot.index().is_some_and(|index| (self.delete)(index, object)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    type Names = BTreeSet<&'static str>;

    fn published<S: Slot<Names> + Send + Sync>(sender: &watch::Sender<S>) -> Published<'_, &'static str, Names, S> {
        Published::new(sender, |names, name| names.insert(*name), BTreeSet::remove)
    }

    #[test]
    fn indexes_have_the_new_list_when_it_has_ended_and_wake_readers_of_changes_only() {
        let (optional, plain) = (watch::Sender::new(None::<Names>), watch::Sender::new(Names::default()));
        let (mut read, known) = (optional.subscribe(), || plain.borrow().iter().copied().collect::<Vec<_>>());
        let mut sinks = FanOut::default().to(published(&optional)).to(published(&plain));
        let mut pass = |event| sinks.pass(&event, |name| name);
        pass(Event::Apply("early"));
        assert_eq!((optional.borrow().clone(), known()), (None, vec!["early"]));
        for event in [Event::Init, Event::InitApply("a"), Event::InitApply("b")] {
            pass(event);
        }
        assert_eq!((optional.borrow().clone(), known()), (None, vec!["early"]), "the list has not ended");
        pass(Event::InitDone);
        assert_eq!(known(), ["a", "b"]);
        read.mark_unchanged();
        pass(Event::Apply("a"));
        assert!(!read.has_changed().unwrap());
        pass(Event::Delete("a"));
        assert!(read.has_changed().unwrap());
        assert_eq!(*optional.borrow(), Some(["b"].into()));
        assert_eq!(known(), ["b"]);
    }
}
