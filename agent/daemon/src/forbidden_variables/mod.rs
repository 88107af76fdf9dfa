//! Variables that the API server cannot see: `envFrom` takes them from a `ConfigMap` or Secret, and admission policies read the pod alone.
//! The container runtime reports the variables that a container was started with. This needs no right to read Secrets, and a process
//! cannot hide a variable by changing its own environment, as it can in `/proc`.
//!
//! Each container is checked once, and only if its manifest has `envFrom`.

pub mod checker;
pub mod enforcement;
pub mod runtime;

pub use checker::EnvironmentChecker;
pub use enforcement::Enforcement;
pub use gputenancy_agent_core::forbidden_variables::{
    containers::{EnvFromContainer, EnvFromContainers},
    violations,
};
