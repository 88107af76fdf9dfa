//! The operator's metrics.

use gputenancy_cluster::{
    rights::Right,
    service::metrics::{Counters, Gauges, Labels, register, set_missing_rights},
};
use gputenancy_crds::{
    Stranded,
    reasons::{self, Reason},
};
use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{pod_info::PodInfo, status_metrics::StatusMetrics};

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    writes: Counters<2>,
    reconciles: Counters<1>,
    errors: Counters<1>,
    seconds: Family<Labels<1>, Histogram>,
    changes: Gauges<1>,
    tenants: Gauges<1>,
    foreign: Gauges<1>,
    silent_agents: Gauges<1>,
    marked_nodes: Gauges<1>,
    flapping_guarantees: Gauges<1>,
    stopped_rollouts: Gauges<1>,
    stranded_slices: Gauges<2>,
    canaries: Counters<1>,
    budget_moves: Histogram,
    queue_waits: Family<Labels<2>, Histogram>,
    queue_fairness: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    missing_rights: Gauges<3>,
    leader: Gauge,
    /// Pods of tenants; see [`PodInfo`].
    pub pod_info: PodInfo,
    /// Budgets, queues and capacity; see [`StatusMetrics`].
    pub statuses: StatusMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let statuses = StatusMetrics::default();
        registry.sub_registry_with_prefix("gputenancy").register_collector(Box::new(statuses.clone()));
        let r = registry.sub_registry_with_prefix("gputenancy_operator");
        let seconds: Family<Labels<1>, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 8)));
        let budget_moves = Histogram::new(exponential_buckets(0.05, 2.0, 10));
        // one second to nine hours
        let queue_waits: Family<Labels<2>, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 16)));
        let pod_info = PodInfo::default();
        r.register_collector(Box::new(pod_info.clone()));
        Self {
            writes: register(r, "api_writes", "Writes to the API server by kind and verb", Family::default()),
            reconciles: register(r, "reconciles", "Reconciles by controller", Family::default()),
            errors: register(r, "reconcile_errors", "Failed reconciles by controller", Family::default()),
            seconds: register(r, "reconcile_seconds", "Duration of reconciles by controller", seconds),
            changes: register(
                r,
                "gpu_changes",
                "GPUs with a change in progress or a failed one, by phase",
                Family::default(),
            ),
            tenants: register(r, "tenants", "Tenants by state", Family::default()),
            foreign: register(
                r,
                "foreign_partitioners",
                "Nodes of pools whose GPUs have a conflicting owner, by owner",
                Family::default(),
            ),
            silent_agents: register(
                r,
                "silent_agents",
                "Nodes whose agent has not reported for more than a minute, as named by the condition AgentSilent of their pool",
                Family::default(),
            ),
            marked_nodes: register(
                r,
                "marked_nodes",
                "Nodes that others have cordoned, tainted or marked as unhealthy, as named by the condition NodesMarked of their pool",
                Family::default(),
            ),
            flapping_guarantees: register(
                r,
                "flapping_guarantees",
                "Guarantees that change up and down, as named by the condition DemandFlapping of their pool",
                Family::default(),
            ),
            stopped_rollouts: register(
                r,
                "stopped_rollouts",
                "1 for each pool whose staged rollout has stopped",
                Family::default(),
            ),
            stranded_slices: register(
                r,
                "stranded_slices",
                "Free slices of a pool that no profile of it can use, by kind: compute or memory",
                Family::default(),
            ),
            canaries: register(r, "canaries", "Canary verifications of GPUs by outcome", Family::default()),
            budget_moves: register(
                r,
                "budget_move_seconds",
                "Time from a pod's refusal by a quota until its headroom is enforced",
                budget_moves,
            ),
            queue_waits: register(
                r,
                "queue_wait_seconds",
                "Time that jobs waited for a place in their queue, by tenant and resource",
                queue_waits,
            ),
            queue_fairness: register(
                r,
                "queue_fairness",
                "Evenness, by weight, of what the teams of a group borrow: 1 is even, 1/n is all for one of n",
                Family::default(),
            ),
            missing_rights: register(
                r,
                "missing_rights",
                "Missing rights, and the feature that needs them",
                Family::default(),
            ),
            pod_info,
            statuses,
            leader: register(r, "leader", "1 on the leader", Gauge::default()),
            registry,
        }
    }
}

impl Metrics {
    /// Counts one write.
    pub fn write(&self, kind: &str, verb: &'static str) {
        self.writes.get_or_create(&[("kind", kind.to_owned().into()), ("verb", verb.into())]).inc();
    }

    /// Records how long a job has waited for its place in a queue; `tenant` is empty where there are too many for series of their own.
    pub fn queue_waited(&self, tenant: &str, resource: &str, seconds: f64) {
        let labels = [("tenant", tenant.to_owned().into()), ("resource", resource.to_owned().into())];
        self.queue_waits.get_or_create(&labels).observe(seconds);
    }

    /// Sets the evenness of each group.
    pub fn queue_fairness<'g>(&self, groups: impl IntoIterator<Item = (&'g str, f64)>) {
        self.queue_fairness.clear();
        for (group, index) in groups {
            self.queue_fairness.get_or_create(&[("group", group.to_owned().into())]).set(index);
        }
    }

    /// Counts one reconciliation of a controller.
    pub fn reconciled(&self, controller: &'static str, seconds: f64, failed: bool) {
        let label = [("controller", controller.into())];
        self.reconciles.get_or_create(&label).inc();
        self.seconds.get_or_create(&label).observe(seconds);
        // from 0 on, so that the first failure is a rate
        self.errors.get_or_create(&label).inc_by(u64::from(failed));
    }

    /// Counts GPUs by phase of their change.
    pub fn changes<'a>(&self, phases: impl Iterator<Item = &'a str>) {
        count(&self.changes, phases);
    }

    /// Counts tenants by state.
    pub fn tenants<'a>(&self, states: impl Iterator<Item = &'a str>) {
        count(&self.tenants, states);
    }

    /// Counts nodes by conflicting owner.
    pub fn foreign(&self, owners: impl Iterator<Item = &'static str>) {
        self.foreign.clear();
        for by in owners {
            self.foreign.get_or_create(&[("by", by.into())]).inc();
        }
    }

    /// The pool of each node whose agent is silent.
    pub fn silent_agents<'a>(&self, pools: impl Iterator<Item = &'a str>) {
        count_pools(&self.silent_agents, pools);
    }

    /// The pool of each node that others have marked.
    pub fn marked_nodes<'a>(&self, pools: impl Iterator<Item = &'a str>) {
        count_pools(&self.marked_nodes, pools);
    }

    /// The pool of each guarantee that flaps.
    pub fn flapping_guarantees<'a>(&self, pools: impl Iterator<Item = &'a str>) {
        count_pools(&self.flapping_guarantees, pools);
    }

    /// The pools whose rollout has stopped.
    pub fn stopped_rollouts<'a>(&self, pools: impl Iterator<Item = &'a str>) {
        self.stopped_rollouts.clear();
        for pool in pools {
            self.stopped_rollouts.get_or_create(&[("pool", pool.to_owned().into())]).set(1);
        }
    }

    /// Stranded slices of each pool.
    pub fn stranded_slices<'a>(&self, pools: impl Iterator<Item = (&'a str, Stranded)>) {
        self.stranded_slices.clear();
        for (pool, Stranded { compute, memory }) in pools {
            for (kind, slices) in [("compute", compute), ("memory", memory)] {
                let labels = [("pool", pool.to_owned().into()), ("kind", kind.into())];
                self.stranded_slices.get_or_create(&labels).set(slices.into());
            }
        }
    }

    /// Counts events about canary verifications.
    pub fn event(&self, reason: Reason) {
        let state = match reason {
            reasons::CANARY_PASSED => "passed",
            reasons::CANARY_FAILED => "failed",
            _ => return,
        };
        self.canaries.get_or_create(&[("state", state.into())]).inc();
    }

    /// A refused pod has got headroom after this time.
    pub fn budget_moved(&self, seconds: f64) {
        self.budget_moves.observe(seconds);
    }

    /// Missing rights.
    pub fn missing_rights(&self, missing: &[Right]) {
        set_missing_rights(&self.missing_rights, missing);
    }

    /// Whether this replica is the leader.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// The registry behind `/metrics`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

fn count<'a>(family: &Gauges<1>, states: impl Iterator<Item = &'a str>) {
    family.clear();
    for state in states {
        family.get_or_create(&[("state", state.to_owned().into())]).inc();
    }
}

fn count_pools<'a>(family: &Gauges<1>, pools: impl Iterator<Item = &'a str>) {
    family.clear();
    for pool in pools {
        family.get_or_create(&[("pool", pool.to_owned().into())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_carry_the_names_that_dashboards_use() {
        let metrics = Metrics::default();
        metrics.write("Namespace", "apply");
        metrics.reconciled("node", 0.01, true);
        metrics.changes(["Evicting", "Evicting"].into_iter());
        metrics.foreign(["HAMi", "HAMi"].into_iter());
        metrics.silent_agents(["a100", "a100"].into_iter());
        metrics.marked_nodes(["a100"].into_iter());
        metrics.flapping_guarantees(["a100"].into_iter());
        metrics.stranded_slices([("a100", Stranded { compute: 1, memory: 0 })].into_iter());
        for reason in [reasons::CANARY_FAILED, reasons::ROLLING_BACK] {
            metrics.event(reason);
        }
        let text = gputenancy_cluster::service::endpoints::text(metrics.registry()).unwrap();
        assert!(text.contains("gputenancy_operator_foreign_partitioners{by=\"HAMi\"} 2"), "{text}");
        assert!(text.contains("gputenancy_operator_silent_agents{pool=\"a100\"} 2"), "{text}");
        assert!(text.contains("gputenancy_operator_marked_nodes{pool=\"a100\"} 1"), "{text}");
        assert!(text.contains("gputenancy_operator_stranded_slices{pool=\"a100\",kind=\"compute\"} 1"), "{text}");
        assert!(text.contains("gputenancy_operator_flapping_guarantees{pool=\"a100\"} 1"), "{text}");
        assert!(text.contains("gputenancy_operator_canaries_total{state=\"failed\"} 1"), "{text}");
        assert!(!text.contains("state=\"passed\""), "{text}");
        assert!(text.contains("gputenancy_operator_api_writes_total{kind=\"Namespace\",verb=\"apply\"} 1"), "{text}");
        assert!(text.contains("gputenancy_operator_gpu_changes{state=\"Evicting\"} 2"), "{text}");
        assert!(text.contains("gputenancy_operator_reconcile_errors_total{controller=\"node\"} 1"), "{text}");
    }
}
