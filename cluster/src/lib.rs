//! The code that every program shares which talks to an API server.
//!
//! A program makes its client with [`client::named`], so that a connection error names the server. An error becomes text with
//! [`error::sentence`] alone: the `Display` of `kube::Error` has the debug text of Rust structs. Objects are followed with [`watch`] and written with
//! [`write`](mod@write); transitions are reported with [`events`]. [`rights`] says which rights a program needs and lacks, and [`service`] is what a program that runs
//! for long needs besides: log, endpoints, end. [`agent_metrics`] reads what agents measure.

pub mod agent_metrics;
pub mod client;
mod credentials;
pub mod desired;
pub mod error;
pub mod events;
pub mod kubeconfig;
pub mod lease;
pub mod rights;
#[cfg(feature = "service")]
pub mod service;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
pub mod watch;
pub mod write;
