//! Fleets and boards for tests and benchmarks, and the exact solver that plans are compared with.

pub(crate) mod boards;
pub(crate) mod brute;
pub(crate) mod fleet;
