//! Liveness and readiness of the operator.

use std::{fmt::Display, sync::Arc};

use gputenancy_cluster::service::endpoints::Probes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// Ready once every cache is filled and no right is missing. Liveness does not depend on it: a restart cures neither a missing CRD
/// nor a missing right.
#[derive(Clone, Default)]
pub struct Readiness {
    list: watch::Sender<Option<String>>,
    rights: watch::Sender<Option<String>>,
}

impl Readiness {
    /// Not ready before the first list of this resource.
    pub fn waits_for(&self, resource: &str) {
        self.list.send_replace(Some(format!("waiting for the first list of {resource}")));
    }

    /// All lists are complete.
    pub fn is_ready(&self) {
        self.list.send_replace(None);
    }

    /// Missing rights, one per line.
    pub fn lacks(&self, rights: Option<String>) {
        self.rights.send_replace(rights);
    }

    /// The right or the list that is missing.
    fn missing(&self) -> Option<String> {
        self.rights.borrow().clone().or_else(|| self.list.borrow().clone())
    }
}

/// What the endpoints of the operator report.
pub struct Health {
    /// Ready, or why not.
    pub readiness: Readiness,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl Probes for Health {
    fn ready(&self) -> Result<(), impl Display> {
        self.readiness.missing().map_or(Ok(()), Err)
    }

    fn registry(&self) -> &Registry {
        self.metrics.registry()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_names_the_missing_list_or_right() {
        let readiness = Readiness::default();
        readiness.waits_for("gputenants");
        assert_eq!(readiness.missing().as_deref(), Some("waiting for the first list of gputenants"));
        readiness.is_ready();
        assert_eq!(readiness.missing(), None);
        readiness.lacks(Some("may not watch nodes".into()));
        assert_eq!(readiness.missing().as_deref(), Some("may not watch nodes"));
        readiness.lacks(None);
        assert_eq!(readiness.missing(), None);
    }
}
