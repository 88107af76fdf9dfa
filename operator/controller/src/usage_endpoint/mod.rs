//! Lets a team read the metrics of its own tenant over HTTPS: `GET /tenants/NAME/metrics` with a bearer token.
//!
//! [`listener`] bounds and ends connections, [`certificate`] has the TLS configuration. [`access`] asks the API server who calls and whether they may
//! read the tenant; [`agents`] reads the agents of the nodes on which its pods run; [`selection`] keeps what is the tenant's (pure).

mod access;
mod agents;
mod certificate;
mod listener;
mod selection;
mod server;

pub use server::{Server, UsageArgs, UsageError};
