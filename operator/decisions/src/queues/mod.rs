//! Numbers of the queues of a batch scheduler: what each team may use at once of each resource of each flavor, without being reclaimed, and what it may
//! borrow and lend.
//!
//! [`divide()`] splits verified devices: guarantees first, by rank; the rest is spare for all. [`plan_writes()`] orders the writes of new numbers, so that
//! the sum over all queues never exceeds the devices that exist. Both are pure; the controller renders the numbers as objects of the scheduler.

mod divide;
mod fairness;
pub mod job;
mod lent;
mod pool;
mod split;
#[cfg(test)]
mod tests;
mod writes;

pub use divide::{Entitlement, Shares, Supply, Team, divide};
pub use fairness::{Borrower, fairness};
pub use lent::{Used, Uses, lent};
pub use pool::PoolQueue;
pub use writes::{QueueWrites, plan_writes};

use std::collections::BTreeMap;

/// A resource of a flavor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Name of the flavor: the devices of one pool.
    pub flavor: String,
    /// Extended resource that pods request.
    pub resource: String,
}

/// Limits of one queue for one resource of one flavor, in devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// What the queue may use without borrowing; nothing of it is reclaimed.
    pub nominal: i64,
    /// What it may use above that while others leave it idle.
    pub borrow: i64,
    /// What others may use of `nominal` while it is idle.
    pub lend: i64,
}

/// Limits of one queue.
pub type Table = BTreeMap<Cell, Limits>;

/// The table with a cell for each of its resources of each of its flavors: the form in which objects of Kueue have limits.
pub fn complete(table: &Table) -> Table {
    let mut complete = table.clone();
    for flavor in table.keys().map(|cell| &cell.flavor) {
        for resource in table.keys().map(|cell| &cell.resource) {
            complete.entry(Cell { flavor: flavor.clone(), resource: resource.clone() }).or_default();
        }
    }
    complete
}
