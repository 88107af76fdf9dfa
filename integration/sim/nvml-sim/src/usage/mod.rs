//! What processes use of GPUs: memory, time, and their limits.

pub mod accounting;
pub mod activity;
pub mod gpm;
pub mod memory;
pub mod memory_limits;
pub mod process;
