//! Variables that the API server cannot see: what a container gets by `envFrom` is in a `ConfigMap` or Secret, and admission policies read
//! the pod alone. The container runtime knows what a container was started with, so nobody needs a right to read Secrets, and a
//! process cannot hide it by changing its own environment, as it can in `/proc`.
//!
//! A container is looked at once, and only if its manifest has `envFrom`; at rest there is nothing to do.

mod event;
pub mod guard;
pub mod runtime;
pub mod suspects;
pub mod verdict;

pub use guard::{Answer, Guard};
pub use suspects::{Suspect, Suspects};
