//! The ledger of GPU memory: what the processes of one container have allocated on their share of a GPU, in memory that they and the agent
//! map.
//!
//! The agent writes the [`Limits`], which containers map read-only. Processes count in the [`Usage`], which belongs to one container: a
//! program that forges it deceives its own container alone, and the agent trusts nothing in it.
//!
//! A share may also have a part of the GPU's time: [`Pace`] says when it may launch, from what [`Usage::charge_time`] has charged. [`Arbiter`] is the
//! agent's half of that: it tells each share what its neighbours have run, and grants time that they leave idle.
//!
//! [`Ledger::reserve`] is called before the driver allocates, [`Ledger::release`] after it has freed. Neither takes a lock that another process could
//! have, and the sum of all reservations never exceeds the limit. A process may be killed between any two instructions: what it held is given back by
//! the next process that joins, or before it is refused, or calls [`Ledger::recover`]. `accounts.rs` says why that is exact.

mod accounts;
mod arbiter;
mod division;
mod ledger;
mod map;
mod owner;
mod pace;
mod page;
pub mod paths;
mod processes;
mod sync;
mod word;
mod work;

pub use arbiter::{Arbiter, Arbitrated, LAG, Member};
pub use division::{Demand, divide};
pub use ledger::{Denied, Ledger};
pub use map::{Damage, MapError, Mapped, now, without_waiting};
pub use pace::{Launch, Pace, Turn, Used};
pub use page::{Counts, Limits, OnMissing, UNIT, UUID_LENGTH, Usage};
pub use processes::Process;
pub use work::Work;
