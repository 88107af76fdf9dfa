//! Watches of objects.
//!
//! [`events`] is the one way to watch: it starts again after every failure, which [`Restarts`] logs. [`Watch`] keeps the objects of a kind, or a part of
//! each, in a [`Store`] that reports changes. [`FanOut`] gives each object to several indexes, where no objects are kept.

mod cached;
mod events;
mod fan_out;
mod store;

pub use cached::{LONGEST_DELAY, Watch, differs, serves};
pub use events::{Restarts, confirmed_events, events};
pub use fan_out::{FanOut, Published, Sink, Slot};
pub use store::{Change, Key, Projection, Reading, Store, Writer};
