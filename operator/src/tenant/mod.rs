//! The controller of tenants: observe from the caches, decide, write, report.

mod budget;
mod carry;
mod context;
mod controller;
mod decide;
mod network;
mod observe;
mod pull;
mod refused_controllers;
mod render;
mod report;
mod standard;
mod status;
mod teardown;
mod tenant_role;
#[cfg(test)]
mod tests;
mod wake_controllers;

pub use context::{Context, Settings};
pub use controller::run;
pub(crate) use gputenancy_crds::quantity::Amount;
pub use standard::{Standard, StandardError};

/// Why a tenant could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The API server refused a write.
    #[error("{doing}: {source}")]
    Write {
        /// What was being done.
        doing: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The caches lag behind what is written; says where.
    #[error("{0}: the cache lags behind the API server")]
    Lagging(String),
    /// Another operator leads by now and has written a quota; says of which namespace.
    #[error(
        "the quota of namespace {0} was written by a later leader: this operator writes nothing for the tenant and is about to lose its Lease; if it does not, restart it"
    )]
    Outranked(String),
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> TenantError {
    let doing = doing.into();
    move |source| match &source {
        // decided on an old version, or on a namespace's absence that is over
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => TenantError::Lagging(doing),
        _ => TenantError::Write { doing, source: Box::new(source) },
    }
}
