//! The program's metrics.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gputenancy_cluster::service::metrics::{Counters, Gauges, Labels, register};
use gputenancy_crds::{VirtualClusterStatus, condition::READY, reasons};
use prometheus_client::{
    metrics::{
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::kubeconfig::IssuedKubeconfig;

/// The program's metrics.
pub struct Metrics {
    registry: Registry,
    clusters: Gauges<3>,
    issued: Gauges<1>,
    expires: Gauges<1>,
    reconciles: Counters<1>,
    seconds: Histogram,
    renders: Counters<1>,
    repairs: Counters<1>,
    // the present labels of each virtual cluster, to remove them with it
    labels: Mutex<BTreeMap<String, Labels<3>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("gputenancy");
        let r = &mut registry;
        Self {
            clusters: register(
                r,
                "virtual_clusters",
                "1 for each virtual cluster, with the status and reason of its condition Ready",
                Family::default(),
            ),
            issued: register(
                r,
                "virtual_clusters_kubeconfig_issued_timestamp_seconds",
                "When the token of the team's kubeconfig was issued",
                Family::default(),
            ),
            expires: register(
                r,
                "virtual_clusters_kubeconfig_expires_timestamp_seconds",
                "When the token of the team's kubeconfig expires",
                Family::default(),
            ),
            reconciles: register(
                r,
                "virtual_clusters_reconciles",
                "Reconciles of virtual clusters by result",
                Family::default(),
            ),
            // up to 66 seconds: helm alone may take 60
            seconds: register(
                r,
                "virtual_clusters_reconcile_seconds",
                "Duration of reconciles of virtual clusters",
                Histogram::new(exponential_buckets(0.01, 3.0, 9)),
            ),
            renders: register(r, "virtual_clusters_renders", "Runs of helm template by result", Family::default()),
            repairs: register(
                r,
                "virtual_clusters_repairs",
                "Objects that had been changed or deleted and are as rendered again, by kind",
                Family::default(),
            ),
            labels: Mutex::default(),
            registry,
        }
    }
}

impl Metrics {
    /// Sets the series of a virtual cluster. Without a kubeconfig its times stay: it was issued before, and only its renewal fails. While the
    /// control plane is stopped or deleted nothing renews it, and there are none.
    pub fn report(&self, tenant: &str, status: &VirtualClusterStatus, kubeconfig: Option<&IssuedKubeconfig>) {
        if let Some(ready) = status.conditions.iter().find(|c| c.type_ == READY) {
            let labels: Labels<3> = [
                ("tenant", tenant.to_owned().into()),
                ("ready", ready.status.clone().into()),
                ("reason", ready.reason.clone().into()),
            ];
            self.clusters.get_or_create(&labels).set(1);
            let former = self.labels().insert(tenant.to_owned(), labels.clone());
            if let Some(former) = former.filter(|former| *former != labels) {
                self.clusters.remove(&former);
            }
        }
        let ended = [reasons::VIRTUAL_CLUSTER_PAUSED, reasons::DELETING];
        if status.conditions.iter().any(|c| ended.iter().any(|reason| *reason == c.reason.as_str())) {
            self.forget_kubeconfig(tenant);
        } else if let Some(present) = kubeconfig {
            let label = [("tenant", tenant.to_owned().into())];
            self.issued.get_or_create(&label).set(present.issued.as_second());
            self.expires.get_or_create(&label).set(present.expires.as_second());
        }
    }

    /// Removes the series of a virtual cluster that no longer exists.
    pub fn forget(&self, tenant: &str) {
        let former = self.labels().remove(tenant);
        if let Some(former) = former {
            self.clusters.remove(&former);
        }
        self.forget_kubeconfig(tenant);
    }

    fn forget_kubeconfig(&self, tenant: &str) {
        let label = [("tenant", tenant.to_owned().into())];
        self.issued.remove(&label);
        self.expires.remove(&label);
    }

    /// Counts one reconcile; `failed`: this cluster's API server refused a read or write or did not answer.
    pub fn reconciled(&self, duration: Duration, failed: bool) {
        self.reconciles.get_or_create(&[("result", result(!failed).into())]).inc();
        self.seconds.observe(duration.as_secs_f64());
    }

    /// Counts one run of `helm template`.
    pub fn rendered(&self, ok: bool) {
        self.renders.get_or_create(&[("result", result(ok).into())]).inc();
    }

    /// Counts one restored object.
    pub fn repaired(&self, kind: &'static str) {
        self.repairs.get_or_create(&[("kind", kind.into())]).inc();
    }

    /// The registry behind `/metrics`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    fn labels(&self) -> MutexGuard<'_, BTreeMap<String, Labels<3>>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn result(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{
        condition::{ConditionUpdate, merge},
        reasons::Reason,
    };
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn status(ready: bool, reason: Reason) -> VirtualClusterStatus {
        let update = ConditionUpdate { type_: READY, status: Some(ready), reason, message: String::new() };
        let conditions = merge(&[], vec![update], Some(1), Timestamp::UNIX_EPOCH);
        VirtualClusterStatus { conditions, ..VirtualClusterStatus::default() }
    }

    fn present() -> IssuedKubeconfig {
        let at = |second| Timestamp::from_second(second).unwrap();
        IssuedKubeconfig { mark: String::new(), issued: at(100), expires: at(86_500) }
    }

    fn text(metrics: &Metrics) -> String {
        gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap()
    }

    #[test]
    fn metrics_carry_the_names_that_alerts_use() {
        let metrics = Metrics::default();
        metrics.report("team-a", &status(true, reasons::READY), Some(&present()));
        metrics.reconciled(Duration::from_millis(200), false);
        metrics.reconciled(Duration::from_millis(200), true);
        metrics.rendered(true);
        metrics.repaired("Service");
        let text = text(&metrics);
        for line in [
            "gputenancy_virtual_clusters{tenant=\"team-a\",ready=\"True\",reason=\"Ready\"} 1",
            "gputenancy_virtual_clusters_kubeconfig_issued_timestamp_seconds{tenant=\"team-a\"} 100",
            "gputenancy_virtual_clusters_kubeconfig_expires_timestamp_seconds{tenant=\"team-a\"} 86500",
            "gputenancy_virtual_clusters_reconciles_total{result=\"ok\"} 1",
            "gputenancy_virtual_clusters_reconciles_total{result=\"error\"} 1",
            "gputenancy_virtual_clusters_reconcile_seconds_count 2",
            "gputenancy_virtual_clusters_renders_total{result=\"ok\"} 1",
            "gputenancy_virtual_clusters_repairs_total{kind=\"Service\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }

    #[test]
    fn virtual_cluster_has_one_series_and_none_when_it_is_gone() {
        let metrics = Metrics::default();
        metrics.report("team-a", &status(false, reasons::CONTROL_PLANE_STARTING), None);
        metrics.report("team-a", &status(true, reasons::READY), Some(&present()));
        metrics.report("team-b", &status(true, reasons::READY), None);
        let count = |text: &str, tenant: &str| text.matches(&format!("tenant=\"{tenant}\"")).count();
        assert_eq!((count(&text(&metrics), "team-a"), count(&text(&metrics), "team-b")), (3, 1));
        metrics.forget("team-a");
        assert_eq!((count(&text(&metrics), "team-a"), count(&text(&metrics), "team-b")), (0, 1));
    }

    #[test]
    fn times_of_the_kubeconfig_outlast_a_failed_renewal_and_no_pause() {
        let metrics = Metrics::default();
        metrics.report("team-a", &status(true, reasons::READY), Some(&present()));
        metrics.report("team-a", &status(false, reasons::VIRTUAL_CLUSTER_UNREACHABLE), None);
        assert!(text(&metrics).contains("expires_timestamp_seconds{tenant=\"team-a\"} 86500"));
        metrics.report("team-a", &status(false, reasons::VIRTUAL_CLUSTER_PAUSED), None);
        assert!(!text(&metrics).contains("timestamp_seconds{"), "{}", text(&metrics));
    }
}
