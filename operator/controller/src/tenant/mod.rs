//! The controller of tenants: observe from the caches, decide, write, report.

mod context;
mod controller;
mod decide;
mod execute;
mod memory;
mod observe;
mod render;
mod report;
mod status;
#[cfg(test)]
mod tests;

pub use context::{Context, Settings, Views};
pub use controller::run;
use gputenancy_cluster::error::sentence;
pub(crate) use gputenancy_crds::quantity::Amount;
pub use render::namespace_defaults::{Standard, StandardError};

/// Why a tenant could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The API server refused a write.
    #[error("{doing}: {}", sentence(&**source))]
    Write {
        /// The write.
        doing: String,
        /// The API server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The caches lag behind a write of this object.
    #[error("{0}: the cache lags behind the API server")]
    Lagging(String),
    /// A later leader has written the quota of this namespace.
    #[error(
        "the quota of namespace {0} was written by a later leader: this replica writes nothing for the tenant and should lose its Lease; restart it if it does not"
    )]
    Outranked(String),
}

fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> TenantError {
    let doing = doing.into();
    move |source| match &source {
        // decided on an old version, or on the absence of a namespace that exists by now
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => TenantError::Lagging(doing),
        _ => TenantError::Write { doing, source: Box::new(source) },
    }
}
