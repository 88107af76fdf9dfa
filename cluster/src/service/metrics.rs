//! Metrics with labels, without a type for each set of labels.

use std::borrow::Cow;

use crate::rights::Right;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

/// Names and values of labels.
pub type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];
/// Counters by labels.
pub type Counters<const N: usize> = Family<Labels<N>, Counter>;
/// Gauges by labels.
pub type Gauges<const N: usize> = Family<Labels<N>, Gauge>;

/// Registers a metric and returns it.
pub fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Sets the gauges to the missing rights.
pub fn set_missing_rights(gauges: &Gauges<3>, missing: &[Right]) {
    gauges.clear();
    for right in missing {
        let feature = right.feature.unwrap_or_default();
        let labels = [("verb", right.verb.into()), ("resource", right.what().into()), ("feature", feature.into())];
        gauges.get_or_create(&labels).set(1);
    }
}
