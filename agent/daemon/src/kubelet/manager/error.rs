//! Why a reconcile of the device plugin failed.

use std::io;

use crate::kubelet::chain;

/// A write that failed; the next reconcile tries it again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Of the CDI specification.
    #[error("writing the CDI specification: {}", chain(.0))]
    Spec(io::Error),
    /// Of the Node.
    #[error("writing the node's allocatable: {}", chain(.0))]
    Allocatable(kube::Error),
}
