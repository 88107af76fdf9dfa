//! One decision about the fleet, from what the caches show to everything that is to be written.
//!
//! Data flows one way: `read`, `derive`, `decide`, `status`; `decision` goes through them in this order.

pub mod decide;
pub mod decision;
pub mod derive;
pub mod read;
pub mod status;
#[cfg(test)]
mod tests;
