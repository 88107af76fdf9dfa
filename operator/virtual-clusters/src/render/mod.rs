//! From a tenant to the objects of its virtual cluster.
//!
//! [`version`] decides which version is rendered, [`values`] makes the values, [`helm`] runs `helm template` on the packed chart, which
//! [`pull`] downloads where it has a URL, and [`objects`] parses the output and refuses all that is not of the tenant's namespace.

pub mod helm;
pub mod objects;
pub mod pull;
pub mod values;
pub mod version;

use gputenancy_crds::reasons::{self, Reason};

/// Why nothing is rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The version is not offered.
    #[error("spec.virtualCluster.version: {wanted} is not supported; choose one of {}", supported.join(", "))]
    NotSupported {
        /// The version of the spec.
        wanted: String,
        /// The versions of `virtualClusters.charts`.
        supported: Vec<String>,
    },
    /// The version may not follow the running one.
    #[error("spec.virtualCluster.version: {wanted} may not follow {running}: {why}")]
    VersionRefused {
        /// The version of the spec.
        wanted: String,
        /// The applied version.
        running: String,
        /// Why, and what is possible.
        why: String,
    },
    /// A value belongs to the platform.
    #[error("spec.virtualCluster.values: remove {key}: {why}")]
    ValueRefused {
        /// Path of the key.
        key: String,
        /// What sets it instead.
        why: &'static str,
    },
    /// The values lead to an object that may not be applied.
    #[error(
        "spec.virtualCluster.values lead to {object}, which is not applied: {why}; remove the values that ask for it"
    )]
    ObjectRefused {
        /// Kind and name.
        object: String,
        /// Why.
        why: String,
    },
    /// helm could not run, or ended with an error.
    #[error("helm template: {0}")]
    Helm(String),
    /// The output is not a list of objects.
    #[error("the output of helm template is not a list of Kubernetes objects: {0}")]
    Output(String),
}

impl RenderError {
    /// Reason of the condition `ChartRendered`.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotSupported { .. } => reasons::VERSION_NOT_SUPPORTED,
            Self::VersionRefused { .. } => reasons::VERSION_REFUSED,
            Self::ValueRefused { .. } | Self::ObjectRefused { .. } => reasons::VALUES_REFUSED,
            Self::Helm(_) | Self::Output(_) => reasons::RENDER_FAILED,
        }
    }
}
