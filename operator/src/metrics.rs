//! What Prometheus reads.

use std::sync::atomic::{AtomicI64, AtomicU64};

use gputenancy_rights::Right;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    kind: String,
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lacking {
    verb: &'static str,
    resource: String,
    feature: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Owner {
    by: &'static str,
}

/// All metrics of the operator.
pub struct Metrics {
    registry: Registry,
    writes: Family<Write, Counter<u64, AtomicU64>>,
    reconciles: Family<Controller, Counter>,
    errors: Family<Controller, Counter>,
    seconds: Family<Controller, Histogram, fn() -> Histogram>,
    changes: Family<State, Gauge<i64, AtomicI64>>,
    tenants: Family<State, Gauge<i64, AtomicI64>>,
    foreign: Family<Owner, Gauge<i64, AtomicI64>>,
    canaries: Family<State, Counter>,
    budget_moves: Histogram,
    missing_rights: Family<Lacking, Gauge<i64, AtomicI64>>,
    leader: Gauge<i64, AtomicI64>,
}

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 8))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut this = Self {
            registry: Registry::default(),
            writes: Family::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            changes: Family::default(),
            tenants: Family::default(),
            foreign: Family::default(),
            canaries: Family::default(),
            budget_moves: Histogram::new(exponential_buckets(0.05, 2.0, 10)),
            missing_rights: Family::default(),
            leader: Gauge::default(),
        };
        {
            let Self {
                registry,
                writes,
                reconciles,
                errors,
                seconds,
                changes,
                tenants,
                foreign,
                canaries,
                budget_moves,
                missing_rights,
                leader,
            } = &mut this;
            let registry = registry.sub_registry_with_prefix("gputenancy_operator");
            registry.register("api_writes", "Writes to the API server", writes.clone());
            registry.register("reconciles", "Reconciliations", reconciles.clone());
            registry.register("reconcile_errors", "Reconciliations that ended with an error", errors.clone());
            registry.register("reconcile_seconds", "Time of a reconciliation", seconds.clone());
            registry.register(
                "gpu_changes",
                "GPUs that are changing, or whose last change failed, by phase",
                changes.clone(),
            );
            registry.register("tenants", "Tenants by state", tenants.clone());
            registry.register(
                "foreign_partitioners",
                "Nodes of pools whose GPUs have another owner, by owner",
                foreign.clone(),
            );
            registry.register(
                "canaries",
                "GPUs whose new devices canary pods have tried, by what came of it",
                canaries.clone(),
            );
            registry.register(
                "budget_move_seconds",
                "Time from a controller's word that a quota refused its pod until room for it is in force",
                budget_moves.clone(),
            );
            registry.register(
                "missing_rights",
                "Rights that the operator lacks, and the feature that alone needs them",
                missing_rights.clone(),
            );
            registry.register("leader", "1 on the replica that writes", leader.clone());
        }
        this
    }
}

impl Metrics {
    /// Counts one write.
    pub fn write(&self, kind: &str, verb: &'static str) {
        self.writes.get_or_create(&Write { kind: kind.into(), verb }).inc();
    }

    /// Counts one reconciliation of a controller.
    pub fn reconciled(&self, controller: &'static str, seconds: f64, failed: bool) {
        let label = Controller { controller };
        self.reconciles.get_or_create(&label).inc();
        self.seconds.get_or_create(&label).observe(seconds);
        if failed {
            self.errors.get_or_create(&label).inc();
        }
    }

    /// Says how many GPUs are in which phase of a change.
    pub fn changes<'a>(&self, phases: impl Iterator<Item = &'a str>) {
        count(&self.changes, phases);
    }

    /// Says how many tenants are in which state.
    pub fn tenants<'a>(&self, states: impl Iterator<Item = &'a str>) {
        count(&self.tenants, states);
    }

    /// Says who else owns GPUs of pools' nodes, once for each node.
    pub fn foreign(&self, owners: impl Iterator<Item = &'static str>) {
        self.foreign.clear();
        for by in owners {
            self.foreign.get_or_create(&Owner { by }).inc();
        }
    }

    /// Counts what is worth it among a change's events.
    pub fn event(&self, reason: &'static str) {
        let state = match reason {
            "CanaryPassed" => "passed",
            "CanaryFailed" => "failed",
            _ => return,
        };
        self.canaries.get_or_create(&State { state: state.into() }).inc();
    }

    /// A refused pod has found room in force after so long.
    pub fn budget_moved(&self, seconds: f64) {
        self.budget_moves.observe(seconds);
    }

    /// Says which rights are missing.
    pub fn missing_rights(&self, missing: &[Right]) {
        self.missing_rights.clear();
        for right in missing {
            let label =
                Lacking { verb: right.verb, resource: right.what(), feature: right.feature.unwrap_or_default() };
            self.missing_rights.get_or_create(&label).set(1);
        }
    }

    /// Says whether this replica is the leader.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// The registry behind `/metrics`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

fn count<'a>(family: &Family<State, Gauge<i64, AtomicI64>>, states: impl Iterator<Item = &'a str>) {
    family.clear();
    for state in states {
        family.get_or_create(&State { state: state.into() }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_carry_the_names_that_dashboards_use() {
        let metrics = Metrics::default();
        metrics.write("Namespace", "apply");
        metrics.reconciled("fleet", 0.01, true);
        metrics.changes(["Evicting", "Evicting"].into_iter());
        metrics.foreign(["HAMi", "HAMi"].into_iter());
        for reason in ["CanaryFailed", "RollingBack"] {
            metrics.event(reason);
        }
        let text = gputenancy_service::endpoints::text(metrics.registry()).unwrap();
        assert!(text.contains("gputenancy_operator_foreign_partitioners{by=\"HAMi\"} 2"), "{text}");
        assert!(text.contains("gputenancy_operator_canaries_total{state=\"failed\"} 1"), "{text}");
        assert!(!text.contains("state=\"passed\""), "{text}");
        assert!(text.contains("gputenancy_operator_api_writes_total{kind=\"Namespace\",verb=\"apply\"} 1"), "{text}");
        assert!(text.contains("gputenancy_operator_gpu_changes{state=\"Evicting\"} 2"), "{text}");
        assert!(text.contains("gputenancy_operator_reconcile_errors_total{controller=\"fleet\"} 1"), "{text}");
    }
}
