//! What every client of an API server shares.
//!
//! A program makes its client with [`client::named`], so that a connection error names the server. An error becomes text with
//! [`error::sentence`] alone: the `Display` of `kube::Error` has the debug text of Rust structs.

pub mod client;
mod credentials;
pub mod error;
pub mod kubeconfig;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
