//! What the count of memory needs from the standard library. `tests/model.rs` compiles the same files with loom's types instead.

pub(crate) use std::{
    sync::{Mutex, atomic::AtomicU64},
    thread::yield_now,
};
